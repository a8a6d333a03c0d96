"""A pod without a pod: a task's own container command in a fresh process, in a folder that is deleted when it ends.

The process has the container's environment, what Flyte adds to that of every pod, what the administrator of a cluster
sets for all of them (object storage, MLflow), and nothing of this process's.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flyteidl.core.tasks_pb2 import TaskTemplate

from packages import BIN, ROOT

LIMIT = 600  # seconds of one attempt
Moment = Callable[[Path], int]  # the signal that a pod, whose working folder is given, is to get now; 0 for none


@dataclass(frozen=True)
class Attempt:
    """How one process ended."""

    status: int  # of the exit; -9 when it was killed, 143 when it ended itself at SIGTERM
    seconds: float
    peak: int  # bytes resident
    cpu: float  # seconds of processor
    shown: str  # standard output and error


def run_pod(
    template: TaskTemplate,
    paths: Mapping[str, str],
    own: Mapping[str, str],
    home: Path,
    kill: Moment | None = None,
) -> Attempt:
    """Run a task's container once, in `home`, which must not be there and is removed afterwards.

    `paths` are those that Flyte writes into the command, `own` the environment beside the container's.
    """
    assert template.WhichOneof("target") == "container", template.id.name
    container = template.container
    line = [paths.get(word, word) for word in (*container.command, *container.args)]
    for folder in ("work", "tmp"):
        (home / folder).mkdir(parents=True)
    environment = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "HOME": str(home / "work"),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": str(ROOT),  # the image has the project installed
        "OMP_NUM_THREADS": "1",
        "CXX": "/bin/false",  # no stage may need a compiler where there is no GPU
        **own,
        **{pair.key: pair.value for pair in container.env},
    }
    started, peak, cpu = time.monotonic(), 0, 0.0
    try:
        with (home / "shown").open("wb") as shown:
            process = subprocess.Popen(
                [str(BIN / line[0]), *line[1:]],
                cwd=home / "work",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
                start_new_session=True,
            )
            while process.poll() is None:
                peak, cpu = max(peak, _peak(process.pid)), max(cpu, _cpu(process.pid))
                late = time.monotonic() - started > LIMIT
                if number := signal.SIGKILL if late else kill(home / "work") if kill is not None else 0:
                    os.killpg(process.pid, number)
                    process.wait(LIMIT)
                time.sleep(0.02)
        text = (home / "shown").read_text(errors="replace")
        return Attempt(process.returncode, time.monotonic() - started, peak, cpu, text)
    finally:
        shutil.rmtree(home)


def _peak(process: int) -> int:
    """The most memory that a process has held so far, in bytes, without its children."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def _cpu(process: int) -> float:
    """Seconds of processor time of a process so far."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
