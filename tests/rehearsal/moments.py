"""When to kill a pod: half-way through its work, while it writes, or in the middle of an upload."""

import time
from pathlib import Path

from rehearsal.pod import Moment


def written(pattern: str) -> Moment:
    """Once what its stage makes has begun to be there, in the folder of the run."""
    return lambda work: any(work.glob(f"runs/*/{pattern}"))


def busy(seconds: float) -> Moment:
    """That long after the stage began its work."""

    def moment(work: Path) -> bool:
        scratch = work / "runs" / ".tmp"  # the first thing that a stage makes
        return scratch.exists() and time.time() - scratch.stat().st_mtime > seconds

    return moment


def uploading(name: str, storage: Path) -> Moment:
    """While an object of that name, held by the object storage whose folder is given, is on its way."""
    hold, held = storage / "hold", storage / "held"

    def moment(work: Path) -> bool:
        if held.exists():
            held.unlink()
            hold.unlink()
            return True
        if not hold.exists():
            new = storage / "new"
            new.write_text(name)
            new.rename(hold)  # whole at once: an empty one would hold all uploads
        return False

    return moment
