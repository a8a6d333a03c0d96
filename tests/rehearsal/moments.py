"""Moments to kill a pod: during its work, while it writes, or in the middle of an upload."""

import time
from pathlib import Path

from rehearsal.pod import Moment


def written(pattern: str) -> Moment:
    """Once the stage has written something that matches `pattern` in the folder of the run."""
    return lambda work: any(work.glob(f"runs/*/{pattern}"))


def busy(seconds: float) -> Moment:
    """So many seconds after the stage began its work."""

    def moment(work: Path) -> bool:
        scratch = work / "runs" / ".tmp"  # the first thing that a stage makes
        return scratch.exists() and time.time() - scratch.stat().st_mtime > seconds

    return moment


def uploading(name: str, storage: Path) -> Moment:
    """While an object of that name is being uploaded; the object storage whose folder is given holds it."""
    hold, held = storage / "hold", storage / "held"

    def moment(work: Path) -> bool:
        if held.exists():
            held.unlink()
            hold.unlink()
            return True
        if not hold.exists():
            new = storage / "new"
            new.write_text(name)
            new.rename(hold)  # atomically: an empty file would hold all uploads
        return False

    return moment
