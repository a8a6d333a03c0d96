"""The largest amount of memory that a stage took: of this process, and of its GPU where there is one."""

import contextlib
import sys
from pathlib import Path
from typing import Any

from tasks.policy.memory import GIB

PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Measure from here on: on one machine all stages run in one process, and each has its own peak."""
    with contextlib.suppress(OSError):  # without support of the kernel the peak is that of the whole process
        (PROCESS / "clear_refs").write_text("5")
    if torch := _torch_with_gpu():
        torch.cuda.reset_peak_memory_stats()


def peak_memory(stage: str) -> dict[str, float]:
    """`{"memory/train_gib": 1.9, "memory/train_gpu_gib": 61.2}`: resident memory of the process with what earlier
    stages keep in it, and the GPU memory that torch reserved."""
    (line,) = (line for line in (PROCESS / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    found = {f"memory/{stage}_gib": int(line.split()[1]) * 1024 / GIB}
    if torch := _torch_with_gpu():
        found[f"memory/{stage}_gpu_gib"] = torch.cuda.max_memory_reserved() / GIB
    return found


def _torch_with_gpu() -> Any:
    """torch, if this process has imported it and there is a GPU."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None
