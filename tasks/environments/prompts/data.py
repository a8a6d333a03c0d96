"""Prompts from a JSONL file: a row a line, a prompt in one of its columns; which are for training, which for tests.

{"prompt": "How many legs has a spider?", "answer": "8"}
{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "answer": "4"}
"""

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from tasks.environments.interface import Message
from tasks.seeds import BITS, derived_seed

Row = dict[str, Any]
LEAST = 2  # test prompts, which an interval needs


class Line(NamedTuple):
    """A row and where it stands. Example: `Line(3, {"prompt": "2+2?", "answer": "4"})`."""

    number: int
    row: Row


def messages_of(row: Row, column: str, system: str = "") -> list[Message]:
    """The messages of a row's prompt; a text is the user's. `system` goes before them, where they have none.

    Raises ValueError for a prompt that is neither a text nor such messages.
    """
    given = row.get(column)
    if isinstance(given, str) and given.strip():
        given = [{"role": "user", "content": given}]
    wrong = (
        f'its column "{column}" is no text and no list of messages with role and content, the last of them a user\'s'
    )
    if not isinstance(given, list) or not given or not all(map(_is_message, given)) or given[-1]["role"] != "user":
        raise ValueError(wrong)
    before = [{"role": "system", "content": system}] if system and given[0]["role"] != "system" else []
    return [*before, *map(dict, given)]


def _is_message(given: Any) -> bool:
    roles = ("system", "user", "assistant")
    return isinstance(given, dict) and given.get("role") in roles and isinstance(given.get("content"), str)


def read_lines(option: str, path: str, column: str) -> Sequence[Line]:
    """The rows of a file, which may lie in object storage. `option` names it in sentences.

    Raises ValueError for a file that is not there or has no row, and for a broken line, with its number.
    """
    from fsspec.core import url_to_fs

    files, place = url_to_fs(path)
    if not files.isfile(place):
        refuse(option, path, "which is not there")
    return _read(option, path, column, files.ukey(place))


@functools.lru_cache(maxsize=8)
def _read(option: str, path: str, column: str, state: str) -> Sequence[Line]:
    """`state` is the file's own, so that one that was changed is read again."""
    from fsspec.core import url_to_fs

    files, place = url_to_fs(path)
    lines = []
    for number, line in enumerate(files.cat_file(place).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), parse_constant=_no_number)
            if not isinstance(row, dict):
                raise ValueError("it is no object")
            messages_of(row, column)
        except ValueError as error:
            refuse(option, path, f"whose line {number} is broken: {error}")
        lines.append(Line(number, row))
    if not lines:
        refuse(option, path, "which has no row")
    return lines


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def refuse(option: str, path: str, what: str) -> NoReturn:
    """Raise ValueError for a file."""
    allowed = "a JSONL file, with an object a line that holds a prompt"
    raise ValueError(f'option {option} is "{path}", {what}; allowed: {allowed}.')


def split_rows(lines: Sequence[Line], column: str, share: float) -> tuple[list[Row], list[Row]]:
    """The rows for training and those for tests: about this share of the prompts, and at least two.

    It depends on the prompt alone: rows with the same prompt are on the same side, and a prompt stays on its side when
    others are added, but for those first two. Raises ValueError for fewer than three prompts.
    """
    keys = [_key(line.row, column) for line in lines]
    places = sorted({(derived_seed("test prompt", key), key) for key in keys})
    if len(places) <= LEAST:
        raise ValueError(f"option data has {len(places)} different prompts; allowed: {LEAST + 1} or more.")
    tests = {key for place, (seed, key) in enumerate(places) if seed < share * 2**BITS or place < LEAST}
    sides: tuple[list[Row], list[Row]] = ([], [])
    for key, line in zip(keys, lines, strict=True):
        sides[key in tests].append(line.row)
    return sides


def check_apart(train: Sequence[Line], test: Sequence[Line], column: str) -> None:
    """Raise ValueError where a prompt for training is one for tests too."""
    known = {_key(line.row, column): line.number for line in reversed(test)}
    for line in train:
        if number := known.get(_key(line.row, column)):
            raise ValueError(f"line {line.number} of option data has the prompt of line {number} of option test_data.")


def row_id(row: Row) -> int:
    """The same for equal rows."""
    return derived_seed("row", json.dumps(row, sort_keys=True))


def _key(row: Row, column: str) -> str:
    return json.dumps(messages_of(row, column), sort_keys=True)
