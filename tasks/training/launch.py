"""Why ranks that another process started have failed: what the first of them said."""

import json
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

OURS = {error.__name__: error for error in (ValueError, FloatingPointError, MemoryError)}  # that have sentences


def first_error(failed: Exception) -> Exception:
    """The error of the rank that failed first, as it was raised there.

    Each rank that fails leaves a file. When one is gone the others fail as well, for they wait for it, so the oldest
    file counts, whichever rank the launcher looked at.
    """
    assert isinstance(failed, ChildFailedError)
    rank, failure = failed.get_first_failure()
    left = sorted(Path(failure.error_file).parents[1].glob("*/error.json"), key=lambda path: path.stat().st_mtime_ns)
    if failure.exitcode < 0 or not left:
        return RuntimeError(f"rank {rank} of the training was lost: {failure.message.strip()}.")
    said = json.loads(left[0].read_text())["message"]["message"]
    kind, _, sentence = said.partition(": ")
    return OURS[kind](sentence) if kind in OURS else RuntimeError(said)
