"""How many threads this process's libraries start, and how they wait: set before torch and vLLM are loaded.

A thread of OpenMP that waits for work spins. That is quick while it is alone; beside another busy process it takes the
core from the very thread that it waits for. A few spins bridge the gaps between two loops of a model, and no more.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

SPINS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}  # of GNU's OpenMP, which torch has, and of Intel's
NUMBER = "OMP_NUM_THREADS"
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

_limited = False  # whether NUMBER is what `configure` found, not the user's


def configure() -> None:
    """Set the variables of OpenMP that the user has not set. Threads are as many as the container may use cores."""
    global _limited
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPINS.items():
            os.environ.setdefault(name, value)
    if NUMBER not in os.environ and cores() < len(os.sched_getaffinity(0)):
        os.environ[NUMBER], _limited = str(cores()), True


def share(ranks: int) -> str:
    """The threads of each of `ranks` processes that share this one's cores; the user's own number, if there is one."""
    given = None if _limited else os.environ.get(NUMBER)
    return given or str(max(1, cores() // ranks))


def cores() -> int:
    """Cores that this process may use: those that it may run on, or less by a quota of its control groups."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Cores by the quota of each control group that this process is in, of version 1 or 2."""
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = GROUPS / controllers
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container the path is the host's, and only the base is here
            if not folder.is_relative_to(base):
                break
            quota, period = _quota_of(folder)
            if quota > 0 and period > 0:
                yield quota / period


def _quota_of(folder: Path) -> tuple[int, int]:
    """Microseconds of processor time in each period of so many; (0, 0) without a quota."""
    if (file := folder / "cpu.max").is_file():
        quota, period = file.read_text().split()
        return (0, 0) if quota == "max" else (int(quota), int(period))
    if (file := folder / "cpu.cfs_quota_us").is_file():
        return int(file.read_text()), int((folder / "cpu.cfs_period_us").read_text())
    return 0, 0
