"""The names of runs, each taken by one process at a time: two that write into one folder would mix their results."""

import fcntl
import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path

from tasks.folders import RUNS, run_folder, write_file, writing

_held: dict[Path, int] = {}  # names that this process has, until it ends: descriptors of locked files


_wanted: list[str] = []  # models whose retraining this process is to take


def take(name: str) -> None:
    """Take the name of a run for this process. Raises ValueError where another one has it: which, and since when."""
    while _wanted:
        take_retraining(_wanted.pop(), now=True)
    if said := _holder((RUNS / ".names" / name).absolute()):
        allowed = "another run_name, or the same command once that has ended"
        raise ValueError(f'run_name is "{name}", which {said} has; allowed: {allowed}.')


def take_retraining(model: str, *, now: bool = False) -> None:
    """Take the retraining of a model for this process. Raises ValueError where another night is still at it.

    Nothing is written before the inputs were checked: where no night was yet, it is taken with the name of the run.
    """
    if not now and not (RUNS / ".names" / f".retraining-{model}").exists():
        _wanted.append(model)
        return
    if said := _holder((RUNS / ".names" / f".retraining-{model}").absolute()):
        allowed = (
            "one retraining of a model at a time on a machine; this one ends here, and the next start is as planned"
        )
        raise ValueError(f"{model} is retrained by {said.rstrip(',')}; allowed: {allowed}.")


def token(name: str) -> str:
    """The token of a new run, the same until `forget_token`: a process that is killed after it opened its MLflow run,
    and before it wrote the run's record, is followed by one that finds that run."""
    path = _token_file(name)
    if not path.is_file():
        write_file(path, uuid.uuid4().hex)
    return path.read_text()


def forget_token(name: str) -> None:
    """Once the run has its record."""
    _token_file(name).unlink(missing_ok=True)


def _token_file(name: str) -> Path:
    return (RUNS / ".names" / f".token-{name}").absolute()


def _holder(path: Path) -> str:
    """Lock a file for this process until it ends; the process that has it, and since when, where that is another."""
    if path in _held:
        return ""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(descriptor, 1000).decode() or "another process"
        os.close(descriptor)
        return said
    except OSError:
        pass  # a file system without locks
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    try:
        with writing(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, since {since},".encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    _held[path] = descriptor
    return ""


def take_new(name: str) -> str:
    """Take a name that no run has: this one, or with a number behind it."""
    number, tried = 1, name
    while True:
        if not run_folder(tried).exists():
            try:
                take(tried)
            except ValueError:
                pass
            else:
                if not run_folder(tried).exists():  # nor made by another process just now
                    return tried
        number += 1
        tried = f"{name}-{number}"
