"""Where a run's files are on disk, and directories that are written completely or not at all."""

import atexit
import contextlib
import ctypes
import functools
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

RUNS = Path("runs")


def run_folder(run_name: str) -> Path:
    """The folder of a run, below the folder in which it was started."""
    return (RUNS / run_name).absolute()


def display_path(path: Path) -> str:
    """A path relative to the working directory, where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def versions(folder: Path) -> list[Path]:
    """The finished subfolders of `folder` that are named by a number, `00000`, `00001`, …, in order."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


# `policies/00003` is written as `policies/.00003.new-<host>-<pid>.<random>`. "old" instead of "new" is a directory that
# is about to be replaced, where it cannot be exchanged with the new one in a single step.
UNFINISHED = re.compile(r"\.(?P<target>.+)\.(?P<kind>new|old)-(?P<host>.+)-(?P<pid>\d+)\.\w+")


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """A new directory that takes the place of `target` when the block ends without an error.

    Whenever the process is killed, `target` is the old directory or the new one. Only on a file system that cannot
    exchange two directories it may be missing, until the next `atomic_directory` in the same parent puts it back.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _repair(target.parent)
    prefix = f".{target.name}.new-{socket.gethostname()}-{os.getpid()}."
    new = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield new
        new.chmod(0o755)  # mkdtemp makes it private
        if not _exchange(new, target):
            old = target.with_name(f".{target.name}.old-{new.name.rpartition('.new-')[2]}")
            if target.exists():
                os.rename(target, old)
            os.rename(new, target)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # unfinished, or after an exchange the old directory


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories in one step (Linux's renameat2); False where one is missing or it is not supported."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd, rename_exchange = -100, 2
    return renameat2 is not None and renameat2(at_fdcwd, bytes(one), at_fdcwd, bytes(other), rename_exchange) == 0


def _repair(parent: Path) -> None:
    """Remove the unfinished directories of killed writers in `parent`; put an old one back that was not replaced."""
    for path in parent.iterdir():
        found = UNFINISHED.fullmatch(path.name)
        if found is None or found["host"] != socket.gethostname() or _is_alive(found["pid"]):
            continue
        target = parent / found["target"]
        with contextlib.suppress(FileNotFoundError):  # another process repairs as well
            if found["kind"] == "old" and not target.exists():
                os.rename(path, target)
            else:
                shutil.rmtree(path)


def _is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()


def remove_at_exit(folder: Path) -> None:
    """Remove `folder` when this process ends; a forked child leaves it alone."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))


@functools.cache
def use_scratch_folder() -> None:
    """Put the temporary files of this process, and of those that it starts, under `runs/.tmp/` until it ends, and
    remove those of killed processes."""
    home = (RUNS / ".tmp").absolute()
    for folder in home.glob("*"):
        if not _is_alive(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    scratch = home / str(os.getpid())
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    remove_at_exit(scratch)
