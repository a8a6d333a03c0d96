"""Which tokens end a turn: what the chat template writes behind a reply, and what the checkpoint's files name.

A checkpoint's files may disagree: many a tokenizer_config.json names the end of a text as its eos_token, where the
template ends a turn with another token; generation_config.json lists several. What the template writes is what later
turns hold, so that it is the end; a policy may have learned any of those named, so that each of them ends a reply.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tasks.policy import refuse
from tasks.policy.contents import read_json

FILES = ("config.json", "generation_config.json")
REPLY, NEXT = "first reply", "next question"


def named_ends(folder: Path) -> dict[int, str]:
    """The ids that FILES name as eos_token_id, and the file. Raises ValueError for what is no id."""
    found: dict[int, str] = {}
    for name in FILES:
        given = read_json(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        for one in given if isinstance(given, list) else [] if given is None else [given]:
            if not isinstance(one, int) or isinstance(one, bool) or one < 0:
                refuse(folder, f", whose {name} has eos_token_id {one}", "the id of a token, or a list of ids")
            found.setdefault(one, name)
    return found


def turn_ends(
    tokenizer: Any, folder: Path, render: Callable[[list[dict[str, str]], bool], str]
) -> tuple[int, tuple[int, ...]]:
    """The token that the template writes behind a reply, and all tokens that end a reply, that one first.

    `render(messages, add_generation_prompt)` is the template. Where it writes no token there, the end is the
    tokenizer's eos_token, and every later turn begins a new sample. Raises ValueError, in one sentence, where it writes
    text there that is none of the tokens, or where a file names a token that is not there.
    """
    eos: int | None = tokenizer.eos_token_id
    named, known = named_ends(folder), set(tokenizer.get_vocab().values())
    for one, file in named.items():
        if one not in known:
            refuse(folder, f", whose {file} has eos_token_id {one}, which is none of its tokens", "ids of its tokens")
    conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": REPLY}]
    behind = render(conversation, False).rpartition(REPLY)[2]
    special = _specials(tokenizer)
    written = _first_special(tokenizer, behind, special)
    if written is None and behind.strip() and (eos is None or tokenizer.eos_token not in behind):
        shown = behind.strip().splitlines()[0][:40]
        why = f", whose chat template writes {shown!r} behind a reply, which is none of its tokens"
        refuse(folder, why, "a template that ends a turn with a token of the tokenizer")
    if written is None:  # some end a reply with the token that begins the next turn
        longer = render([*conversation, {"role": "user", "content": NEXT}], False)
        following = _first_special(tokenizer, longer.rpartition(REPLY)[2].partition(NEXT)[0], special)
        written = following if following in named else eos
    if written is None:
        refuse(folder, ", whose files name no token that ends a turn", "a tokenizer with an eos_token")
    return written, tuple(dict.fromkeys([written, *([] if eos is None else [eos]), *named]))


def _specials(tokenizer: Any) -> set[int]:
    """The ids of tokens that stand for no text."""
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def _first_special(tokenizer: Any, text: str, special: Collection[int]) -> int | None:
    """The special token with which `text` begins, white space aside."""
    for one in tokenizer.encode(text, add_special_tokens=False):
        if one in special:
            return one
        if tokenizer.decode([one]).strip():
            return None
    return None
