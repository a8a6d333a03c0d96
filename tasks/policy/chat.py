"""From messages to token ids and back, by the checkpoint's own chat template.

A conversation is tokenised piece by piece: the initial messages once, each reply as the policy sampled it, each further
message as the tokens that the template puts between a reply and the next one. Only where the template rewrites an
earlier turn, as Qwen3's leaves out what was thought before, does the next prompt start over, with all of it.
"""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.environments.interface import Message, ToolSpec
from tasks.policy import refuse
from tasks.policy.contents import settings_digest
from tasks.policy.tool_formats import FORMATS
from tasks.policy.turn_end import turn_ends

OPENED = re.compile(r"(<think>\s*)?\Z")  # at the end of a prompt
CLOCK = re.compile(r"""strftime_now\(\s*(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")
MAX_PIECES = 65536  # kept at most: episodes repeat in all but what was thought in them


class Chat:
    """The tokenizer and chat template of one policy directory. Both stay the same for all versions of a run.

    With `thinking` the template is asked for a thought (Qwen3's enable_thinking; most templates have none). It is given
    `tools`, where the environment has some; where it ignores them, the system message gets their schemas. Messages of
    the role "tool" are the user's in a template that does not know this role, and the system's text stands before the
    first message in one that has no such role. A template with a clock is told the same `day` always, "2026-11-30".

    Raises ValueError, in one sentence, for a template that fails or ends no turn.
    """

    def __init__(self, folder: Path, thinking: bool = False, tools: Sequence[ToolSpec] = (), day: str | None = None):
        from transformers import AutoTokenizer

        self.folder = folder
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # of whatever kind: the files are the user's
            said = " ".join(str(error).split())[:200]
            refuse(folder, f", whose tokenizer cannot be read ({said})", "the files of a Hugging Face tokenizer")
        self.thinking = thinking
        self.tokenizer.chat_template = _on_day(self.tokenizer.chat_template, day or f"{datetime.now(UTC):%Y-%m-%d}")
        self.knows_tool_role = bool(re.search(r"""["']tool["']""", str(self.tokenizer.chat_template)))
        self._with_tools: dict[str, Chat] = {}
        self.tools: list[dict[str, Any]] | None = None
        self._pieces: dict[tuple[str | int, ...], list[int] | None] = {}
        self._schemas = ""  # of the tools, where the template ignores them
        self.knows_system_role = self._tells_the_system()
        # The token that ends a turn, and all those that end a reply.
        self.end_id, self.end_ids = turn_ends(self.tokenizer, folder, lambda told, go: self.prompt(told, generation=go))
        self._end: str = self.tokenizer.convert_ids_to_tokens(self.end_id)
        # What a prompt already says of the reply: "<think>\n", where the template opens the thought.
        self.opened = OPENED.search(self._render([{"role": "user", "content": "question"}]))[0]  # type: ignore[index]
        self._use(tools)

    def with_tools(self, tools: Sequence[ToolSpec]) -> "Chat":
        """The same chat with other tools; the tokenizer is shared, and what it has rendered is kept."""
        key = str([tool.to_json() for tool in tools])
        if key not in self._with_tools:
            self._with_tools[key] = other = copy.copy(self)
            other._use(tools)
        return self._with_tools[key]

    def _use(self, tools: Sequence[ToolSpec]) -> None:
        self._pieces, self._schemas = {}, ""
        self.tools = [tool.to_json() for tool in tools] or None
        if self.tools:
            asked: list[Message] = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
            shown, self.tools = self._render(asked), None
            if shown == self._render(asked):
                self._schemas = FORMATS["tool_call"].explain(tools)
            else:
                self.tools = [tool.to_json() for tool in tools]

    def initial_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation from its beginning, up to where the next reply starts."""
        piece = self._cached(("initial", *_key(messages)), lambda: self._encode(self._render(messages)))
        assert piece is not None
        return piece

    def next_ids(
        self, history: Sequence[Message], reply: str, messages: Sequence[Message], *, ended: bool = True
    ) -> list[int] | None:
        """Token ids from behind a sampled reply to where the next reply starts.

        The reply has its end-of-turn token, unless it is not `ended`: a stop string came first.

        None where the template renders what came before in other words than the policy saw and sampled: earlier
        thinking left out, a reply trimmed, an empty thought that only the prompt holds. Then the next prompt is
        `initial_ids` of the whole conversation. It depends on what was said, so each conversation asks.
        """

        def behind_the_reply() -> list[int] | None:
            before = self._render(history) + reply.removeprefix(self.opened) + (self._end if ended else "")
            after = self._render([*history, {"role": "assistant", "content": reply}, *messages])
            return self._encode(after[len(before) :]) if after.startswith(before) else None

        return self._cached(("next", len(history), ended, reply, *_key(history), *_key(messages)), behind_the_reply)

    def reply_text(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled reply, without its end-of-turn token, behind what the prompt has opened of it."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.end_ids else token_ids
        return self.opened + self.tokenizer.decode(ids, skip_special_tokens=False)

    def prompt(self, messages: Sequence[Message], *, generation: bool = True) -> str:
        """The text of a conversation; with `generation` up to where the next reply starts."""
        try:
            return self.tokenizer.apply_chat_template(
                self._told(messages),
                tools=self.tools,
                tokenize=False,
                add_generation_prompt=generation,
                enable_thinking=self.thinking,
            )
        except Exception as error:  # a template is a program of the user's
            said = " ".join(str(error).split())[:200] or type(error).__name__
            refuse(self.folder, f", whose chat template fails ({said})", "one that tells system, user and assistant")

    def _render(self, messages: Sequence[Message]) -> str:
        """The prompt for the reply that comes after `messages`."""
        return self.prompt(messages)

    def _tells_the_system(self) -> bool:
        self.knows_system_role, asked = True, [{"role": "system", "content": "4711"}, {"role": "user", "content": "?"}]
        with contextlib.suppress(ValueError):
            return "4711" in self.prompt(asked)
        return False

    def _told(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as this template can tell them."""
        told = list(messages)
        if not self.knows_tool_role:
            told = [{"role": "user", "content": m["content"]} if m["role"] == "tool" else m for m in told]
        if self._schemas:
            first, rest = (told[0]["content"], told[1:]) if told[0]["role"] == "system" else ("", told)
            told = [{"role": "system", "content": f"{first}\n\n{self._schemas}".lstrip()}, *rest]
        if not self.knows_system_role and len(told) > 1 and told[0]["role"] == "system":
            told = [{**told[1], "content": f"{told[0]['content']}\n\n{told[1]['content']}"}, *told[2:]]
        return told

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _cached(self, key: tuple[str | int, ...], make: Callable[[], list[int] | None]) -> list[int] | None:
        if key not in self._pieces:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.clear()
            self._pieces[key] = make()
        return self._pieces[key]


def _on_day(template: Any, day: str) -> Any:
    """A chat template, or several by name, in which every call of the clock is what it gives on that day."""
    if isinstance(template, dict):
        return {name: _on_day(one, day) for name, one in template.items()}
    at = datetime.fromisoformat(day)
    return CLOCK.sub(lambda call: json.dumps(at.strftime(call["format"])), template) if template else template


def _key(messages: Sequence[Message]) -> list[str]:
    """All that a template may render of messages."""
    plain = {"role", "content"}
    return [
        part
        for m in messages
        for part in ((m["role"], m["content"]) if m.keys() == plain else (json.dumps(m, sort_keys=True),))
    ]


_open: dict[str, Chat] = {}


def open_chat(folder: Path, thinking: bool = False, tools: Sequence[ToolSpec] = (), day: str | None = None) -> Chat:
    """The chat of a policy directory, kept open: the versions of a run share one tokenizer, and all it has rendered."""
    key = f"{settings_digest(folder)} {thinking} {day} {[tool.to_json() for tool in tools]}"
    if key not in _open:
        _open.clear()
        _open[key] = Chat(folder, thinking, tools, day)
    return _open[key]
