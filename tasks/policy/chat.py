"""From messages to token ids and back, by the checkpoint's own chat template.

A conversation is tokenised piece by piece: the initial messages once, each reply as the policy sampled it, each further
message as the tokens that the template puts between a reply and the next one. Only where the template rewrites an
earlier turn, as Qwen3's leaves out what was thought before, does the next prompt start over, with all of it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.environments.interface import Message, ToolSpec
from tasks.policy.tool_formats import FORMATS

MAX_PIECES = 65536  # kept at most: episodes repeat in all but what was thought in them


class Chat:
    """The tokenizer and chat template of one policy directory. Both stay the same for all versions of a run.

    With `thinking` the template is asked for a thought (Qwen3's enable_thinking; most templates have none). It is given
    `tools`, where the environment has some; where it ignores them, the system message gets their schemas. Messages of
    the role "tool" are the user's in a template that does not know this role.
    """

    def __init__(self, folder: Path, thinking: bool = False, tools: Sequence[ToolSpec] = ()):
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.thinking = thinking
        self.tools = [tool.to_json() for tool in tools] or None
        self.knows_tool_role = bool(re.search(r"""["']tool["']""", str(self.tokenizer.chat_template)))
        self.end_id: int = self.tokenizer.eos_token_id  # the token that ends a turn
        self._pieces: dict[tuple[str | int, ...], list[int] | None] = {}
        self._schemas = ""  # of the tools, where the template ignores them
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
            before = self._render(history) + reply + (self.tokenizer.eos_token if ended else "")
            after = self._render([*history, {"role": "assistant", "content": reply}, *messages])
            return self._encode(after[len(before) :]) if after.startswith(before) else None

        return self._cached(("next", len(history), ended, reply, *_key(history), *_key(messages)), behind_the_reply)

    def reply_text(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled reply, without its end-of-turn token."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] == self.end_id else token_ids
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _render(self, messages: Sequence[Message]) -> str:
        """The prompt for the reply that comes after `messages`."""
        return self.tokenizer.apply_chat_template(
            self._told(messages),
            tools=self.tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=self.thinking,
        )

    def _told(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as this template can tell them."""
        told = list(messages)
        if not self.knows_tool_role:
            told = [{"role": "user", "content": m["content"]} if m["role"] == "tool" else m for m in told]
        if self._schemas:
            first, rest = (told[0]["content"], told[1:]) if told[0]["role"] == "system" else ("", told)
            told = [{"role": "system", "content": f"{first}\n\n{self._schemas}".lstrip()}, *rest]
        return told

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _cached(self, key: tuple[str | int, ...], make: Callable[[], list[int] | None]) -> list[int] | None:
        if key not in self._pieces:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.clear()
            self._pieces[key] = make()
        return self._pieces[key]


def _key(messages: Sequence[Message]) -> list[str]:
    """All that a template may render of messages."""
    plain = {"role", "content"}
    return [
        part
        for m in messages
        for part in ((m["role"], m["content"]) if m.keys() == plain else (json.dumps(m, sort_keys=True),))
    ]


_open: dict[str, Chat] = {}


def open_chat(folder: Path, thinking: bool = False, tools: Sequence[ToolSpec] = ()) -> Chat:
    """The chat of a policy directory, kept open: the versions of a run share one tokenizer, and all it has rendered."""
    files = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    content = b"".join((folder / name).read_bytes() for name in files if (folder / name).is_file())
    key = f"{hashlib.sha256(content).hexdigest()} {thinking} {[tool.to_json() for tool in tools]}"
    if key not in _open:
        _open.clear()
        _open[key] = Chat(folder, thinking, tools)
    return _open[key]
