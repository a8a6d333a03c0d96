"""Where things of a run lie on disk, and how they come to be there whole or not at all."""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

RUNS = Path("runs")


def run_folder(run_name: str) -> Path:
    """The folder that holds all of a run, under the folder in which it was started."""
    return (RUNS / run_name).absolute()


def shown(path: Path) -> str:
    """A path as short as it can be from where the command was started."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its place when the block ends without an error.

    A process that is killed half-way leaves `target` as it was; what an earlier attempt left there is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)  # mkdtemp makes it private
        if target.exists():
            shutil.rmtree(target)
        os.replace(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def remove_at_exit(folder: Path) -> None:
    """Remove `folder` when this process ends; a forked child leaves it alone."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))


@functools.cache
def use_scratch_folder() -> None:
    """From now on this process, and what it starts, puts temporary files under `runs/.tmp/`, until it ends.

    What killed processes left there goes too.
    """
    home = (RUNS / ".tmp").absolute()
    for left in home.glob("*"):
        if not Path(f"/proc/{left.name}").exists():
            shutil.rmtree(left, ignore_errors=True)
    scratch = home / str(os.getpid())
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    remove_at_exit(scratch)
