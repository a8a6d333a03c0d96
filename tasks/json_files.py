"""JSON files, read so that a broken one is named: what is cut, empty or of another kind is one sentence."""

import json
from pathlib import Path
from typing import Any, TypeVar

from tasks.json_records import Record

R = TypeVar("R", bound=Record)
LFS = b"version https://git-lfs"


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError, in one sentence, for anything else."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(_refusal(path, f"cannot be read ({error.strerror})")) from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.startswith(LFS):
            raise ValueError(
                _refusal(path, "is a pointer of Git LFS, not the file (git lfs pull fetches it)")
            ) from None
        raise ValueError(_refusal(path, f"is no JSON ({' '.join(str(error).split())})")) from None
    if not isinstance(found, dict):
        raise ValueError(_refusal(path, f"holds {json.dumps(found)[:40]}"))
    return found


def read_record(path: Path, kind: type[R]) -> R:
    """The record in a JSON file. Raises ValueError, in one sentence that names the file, where there is none."""
    given = read_object(path)
    try:
        return kind.from_dict(given)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is no {kind.__name__} ({said}); allowed: a file as this version writes it.") from None


def _refusal(path: Path, why: str) -> str:
    return f"{path} {why}; allowed: a file with a JSON object."
