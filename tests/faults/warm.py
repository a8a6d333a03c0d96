"""Trainings that begin without their imports: a process that has them forks one for each.

What it imports is what a training had imported at its end: this project's modules first, since they say how others are
imported. A training is `pyflyte run` as a user types it, in a folder of its own; shown.txt there has what it shows.
"""

import contextlib
import errno
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SET = ("VLLM", "HF_")  # variables that a training sets before it imports
# Variables of a training: files in which it lists its modules and its kinds of file operations; the kind before which
# it is killed, and that from which on the disk is full.
MODULES, OPERATIONS, KILLED_BEFORE, FULL_FROM = "TRY_MODULES", "TRY_OPERATIONS", "TRY_KILLED_BEFORE", "TRY_FULL_FROM"
KINDS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "sqlite3.connect")  # beside "open" for writing


def environment(**variables: str) -> dict[str, str]:
    """The variables of a process that knows nothing of the one that starts it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "MLFLOW", "TRY", *SET))}
    return kept | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", **variables}


class Warm:
    """The process that forks; one training at a time. `modules` is a file with their names."""

    processor_s = 0.0  # of the last training, of a processor

    def __init__(self, modules: Path):
        line = [sys.executable, __file__, str(modules)]
        self.process = subprocess.Popen(
            line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._line(600) == "ready"

    def _line(self, seconds: float) -> str:
        """What it says next; "" where that takes longer."""
        out = self.process.stdout
        assert out is not None
        return out.readline().decode().strip() if select.select([out], [], [], max(0, seconds))[0] else ""

    def start(self, home: Path, line: list[str], **variables: str) -> int:
        """Begin a training in `home`; its process id."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(home), line, variables]).encode() + b"\n")
        self.process.stdin.flush()
        return int(self._line(60))

    def wait(self, seconds: float = 600) -> int | None:
        """The exit status of the training, below 0 for a signal; None while it runs."""
        if not (said := self._line(seconds)):
            return None
        status, self.processor_s = int(said.split()[0]), float(said.split()[1])
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def watch(runs: str) -> None:
    """Look at the file operations below `runs`; list their kinds, end before one, or let the disk be full."""
    listed, killed_before, full_from = (os.environ.get(name) for name in (OPERATIONS, KILLED_BEFORE, FULL_FROM))
    seen: set[str] = set()

    def hook(event: str, given: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(given[1], str) and bool(set(given[1]) & set("wax+"))
        if not writes and event not in KINDS:
            return
        path = os.fsdecode(given[0]) if isinstance(given[0], str | bytes | os.PathLike) else ""
        if not path.startswith(runs):
            return
        kind = kind_of(event, path[len(runs) :])
        if listed and kind not in seen:
            with open(listed, "a") as file:
                file.write(f"{kind}\n")
        seen.add(kind)
        if kind == killed_before:
            os.kill(os.getpid(), signal.SIGKILL)
        if full_from in seen and (writes or event == "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    if listed or killed_before or full_from:
        sys.addaudithook(hook)


def kind_of(event: str, path: str) -> str:
    """Operations on the same file of any iteration, run and process are of one kind."""
    if path.startswith("/.tmp/"):
        return f"{event} /.tmp/*"
    path = re.sub(r"[.](new|old)-[^/]*", ".new", path)
    path = re.sub(r"[.]uploading[.][^/]*", ".uploading", path)  # of MLflow
    path = re.sub(r"/[.]tiny/[.]?[0-9a-f]+", "/.tiny/N", path)
    return f"{event} {re.sub('[0-9a-f]{32}|[0-9]+', 'N', path)}"


def train(line: list[str]) -> None:
    """`pyflyte` in this process."""
    from flytekit.clis.sdk_in_container.pyflyte import main
    from flytekit.core import local_cache

    from tasks.folders import RUNS
    from tasks.tracking import console

    local_cache.CACHE_LOCATION = str((RUNS / ".flyte-cache").absolute())  # else that of the folder of the imports
    console.STARTED = time.monotonic()
    watch(str(RUNS.absolute()))
    sys.argv = ["pyflyte", *line]
    try:
        main()
    finally:
        if MODULES in os.environ:
            variables = {name: value for name, value in os.environ.items() if name.startswith(SET)}
            Path(os.environ[MODULES]).write_text(json.dumps([variables, list(sys.modules)]))


def serve(modules: Path) -> None:
    """Import, and fork for each line that comes."""
    answers = os.dup(1)
    os.dup2(2, 1)  # for what an import prints
    (variables, names), own = json.loads(modules.read_text()), ("tasks", "workflows")
    os.environ.update(variables)
    for name in sorted(names, key=lambda name: not name.startswith(own)):
        with contextlib.suppress(Exception):  # of a placeholder, or what only its parent can import
            importlib.import_module(name)
    os.write(answers, b"ready\n")
    for given in sys.stdin:
        home, line, variables = json.loads(given)
        if not (pid := os.fork()):
            os.close(answers)
            os.chdir(home)
            shown, nothing = os.open("shown.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY), os.open(os.devnull, 0)
            for descriptor, target in ((nothing, 0), (shown, 1), (shown, 2)):
                os.dup2(descriptor, target)
            os.environ.update(variables)
            train(line)
            return
        os.write(answers, f"{pid}\n".encode())
        _, status, used = os.wait4(pid, 0)
        os.write(answers, f"{status} {used.ru_utime + used.ru_stime}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2:])
    else:
        serve(Path(sys.argv[1]))
