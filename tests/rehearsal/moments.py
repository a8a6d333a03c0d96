"""Moments to kill a pod: during its work, while it writes, or in the middle of an upload."""

import signal
import time
from pathlib import Path

from rehearsal.pod import Moment


def written(pattern: str, number: int = signal.SIGKILL) -> Moment:
    """Once the stage has written something that matches `pattern` in the folder of the run."""
    return lambda work: number if any(work.glob(f"runs/*/{pattern}")) else 0


def busy(seconds: float) -> Moment:
    """So many seconds after the stage began its work."""

    def moment(work: Path) -> int:
        scratch = work / "runs" / ".tmp"  # the first thing that a stage makes
        return signal.SIGKILL if scratch.exists() and time.time() - scratch.stat().st_mtime > seconds else 0

    return moment


def uploading(name: str, storage: Path) -> Moment:
    """While an object of that name is being uploaded; the object storage whose folder is given holds it."""
    hold, held = storage / "hold", storage / "held"

    def moment(work: Path) -> int:
        if held.exists():
            held.unlink()
            hold.unlink()
            return signal.SIGKILL
        if not hold.exists():
            new = storage / "new"
            new.write_text(name)
            new.rename(hold)  # atomically: an empty file would hold all uploads
        return 0

    return moment
