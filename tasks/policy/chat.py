"""From messages to token ids and back, by the checkpoint's own chat template.

A conversation is tokenised piece by piece and never again: the opening once, each reply as the policy sampled it,
each follow-up as the tokens that the template puts between a reply and the next one.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Message = dict[str, str]


class Chat:
    """The tokenizer and chat template of one policy directory. Both stay the same for all versions of a run."""

    def __init__(self, folder: Path):
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.end_id: int = self.tokenizer.eos_token_id  # the token that ends a turn
        self._pieces: dict[tuple[str, ...], list[int]] = {}

    def _render(self, messages: Sequence[Message], reply_next: bool) -> str:
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=reply_next)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages before the first reply, up to where that reply starts."""
        key = ("opening", *(part for m in messages for part in (m["role"], m["content"])))
        if key not in self._pieces:
            self._pieces[key] = self._encode(self._render(messages, reply_next=True))
        return self._pieces[key]

    def follow_up(self, history: Sequence[Message], reply: str, messages: Sequence[Message]) -> list[int]:
        """Token ids from behind a sampled reply (and its end-of-turn token) to where the next reply starts.

        Raises ValueError when the template writes earlier turns anew, so that the tokens sampled so far would no longer
        be the ones that the policy sees.
        """
        key = ("follow_up", *(part for m in messages for part in (m["role"], m["content"])))
        if key not in self._pieces:
            before = self._render(history, reply_next=True) + reply + self.tokenizer.eos_token
            after = self._render([*history, {"role": "assistant", "content": reply}, *messages], reply_next=True)
            if not after.startswith(before):
                raise ValueError(
                    "policy has a chat template that rewrites earlier turns; allowed: one that only appends."
                )
            self._pieces[key] = self._encode(after[len(before) :])
        return self._pieces[key]

    def reply(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled reply, without its end-of-turn token."""
        ids = list(token_ids)
        if ids and ids[-1] == self.end_id:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)


_open: dict[str, Chat] = {}


def open_chat(folder: Path) -> Chat:
    """The chat of a policy directory, kept open: the versions of a run share one tokenizer, and all it has rendered."""
    files = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    content = b"".join((folder / name).read_bytes() for name in files if (folder / name).is_file())
    key = hashlib.sha256(content).hexdigest()
    if key not in _open:
        _open.clear()
        _open[key] = Chat(folder)
    return _open[key]
