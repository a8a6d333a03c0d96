"""From messages to token ids and back, by the checkpoint's own chat template.

A conversation is tokenised piece by piece: the opening once, each reply as the policy sampled it, each follow-up as
the tokens that the template puts between a reply and the next one. Only where the template writes an earlier turn
anew, as Qwen3's leaves out what was thought before, does the next prompt start over, with the whole conversation.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]

PIECES = 65536  # kept at most: games repeat in all but what was thought in them


class Chat:
    """The tokenizer and chat template of one policy directory. Both stay the same for all versions of a run."""

    def __init__(self, folder: Path, thinking: bool = False):
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.thinking = thinking  # what Qwen3's template calls enable_thinking; most templates do not ask
        self.end_id: int = self.tokenizer.eos_token_id  # the token that ends a turn
        self._pieces: dict[tuple[str | int, ...], list[int] | None] = {}

    def _render(self, messages: Sequence[Message]) -> str:
        """The prompt for the reply that comes after `messages`."""
        return self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, enable_thinking=self.thinking
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _once(self, key: tuple[str | int, ...], make: Callable[[], list[int] | None]) -> list[int] | None:
        if key not in self._pieces:
            if len(self._pieces) >= PIECES:
                self._pieces.clear()
            self._pieces[key] = make()
        return self._pieces[key]

    def initial_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation from its beginning, up to where the next reply starts."""
        piece = self._once(("opening", *_parts(messages)), lambda: self._encode(self._render(messages)))
        assert piece is not None
        return piece

    def next_ids(self, history: Sequence[Message], reply: str, messages: Sequence[Message]) -> list[int] | None:
        """Token ids from behind a sampled reply (and its end-of-turn token) to where the next reply starts.

        None where the template renders what came before in other words than the policy saw and sampled: earlier
        thinking left out, a reply trimmed, an empty thought that only the prompt holds. Then the next prompt is
        `initial_ids` of the whole conversation. It is asked for each conversation, for it hangs on what was said.
        """

        def behind_the_reply() -> list[int] | None:
            before = self._render(history) + reply + self.tokenizer.eos_token
            after = self._render([*history, {"role": "assistant", "content": reply}, *messages])
            return self._encode(after[len(before) :]) if after.startswith(before) else None

        key = ("follow_up", len(history), reply, *_parts(history), *_parts(messages))
        return self._once(key, behind_the_reply)

    def reply_text(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled reply, without its end-of-turn token."""
        ids = list(token_ids)
        if ids and ids[-1] == self.end_id:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def _parts(messages: Sequence[Message]) -> list[str]:
    return [part for m in messages for part in (m["role"], m["content"])]


_open: dict[str, Chat] = {}


def open_chat(folder: Path, thinking: bool = False) -> Chat:
    """The chat of a policy directory, kept open: the versions of a run share one tokenizer, and all it has rendered."""
    files = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    content = b"".join((folder / name).read_bytes() for name in files if (folder / name).is_file())
    key = f"{hashlib.sha256(content).hexdigest()} {thinking}"
    if key not in _open:
        _open.clear()
        _open[key] = Chat(folder, thinking)
    return _open[key]
