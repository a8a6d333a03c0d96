"""Where a run's files are on disk, and directories and files that are written completely or not at all."""

import atexit
import contextlib
import ctypes
import errno
import fcntl
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


def file_name(name: str) -> str:
    """A name as a part of a file's name: `sums:2,words:1` is `sums-2-words-1`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:48]


def display_path(path: Path) -> str:
    """A path relative to the working directory, where it lies in it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def versions(folder: Path) -> list[Path]:
    """The finished subfolders of `folder` that are named by a number, `00000`, `00001`, …, in order."""
    return sorted(path for path in folder.glob("[0-9]*") if path.name.isdigit() and path.is_dir())


# What a disk may answer, by errno, and what SQLite and torch make of it.
DISK = {code: os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)}
SQLITE = ("disk is full", "attempt to write a readonly database", "disk I/O error", "unable to open database file")
WORDS = {**{words: words for words in SQLITE}, "unexpected pos": "the disk took less than there was to write"}


class DiskError(OSError):
    """A file or folder could not be written: which, and why, in a sentence."""


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """What is written in this block belongs to `target`: where the disk is full or read-only, DiskError names it.

    The libraries that write say so with exceptions of their own, and most of them without the file.
    """
    try:
        yield
    except (DiskError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        if (found := _disk_answer(error)) is None:
            raise
        code, why, named = found
        path = Path(named) if named and Path(named).is_relative_to(target) else target
        failed = DiskError(f"{display_path(path)} cannot be written: {why}; once it can, the same command goes on.")
        failed.errno = code
        raise failed from error


def _disk_answer(error: BaseException | None) -> tuple[int | None, str, str] | None:
    """The errno, the words and the file of the answer of a disk that is behind an error; None where none is."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK:
            return error.errno, DISK[error.errno], os.fsdecode(error.filename) if error.filename else ""
        said = str(error)
        for code, words in DISK.items():
            if words in said:
                return code, words, ""
        for words, meant in WORDS.items():
            if words in said:
                return None, meant, ""
        error = error.__cause__ or error.__context__
    return None


def write_file(path: Path, content: str | bytes) -> None:
    """Write a single file, whole or not at all, where its folder is not itself one that is written as a whole."""
    new = path.with_name(f".{path.name}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.write_bytes(content.encode() if isinstance(content, str) else content)
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)


# `policies/00003` is written as `policies/.00003.new-<host>-<pid>.<random>`. "old" instead of "new" is a directory that
# is about to be replaced, where it cannot be exchanged with the new one in a single step.
NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL)  # of file systems that cannot lock a directory
UNFINISHED = re.compile(r"\.(?P<target>.+)\.(?P<kind>new|old)-(?P<host>.+)-(?P<pid>\d+)\.\w+")


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """A new directory that takes the place of `target` when the block ends without an error.

    Whenever the process is killed, `target` is the old directory or the new one. Only on a file system that cannot
    exchange two directories it may be missing, until the next `atomic_directory` in the same parent puts it back.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _repair(target.parent)
        new, lock = _own_directory(target.parent, f".{target.name}.new-{socket.gethostname()}-{os.getpid()}.")
        locks = [lock]
        try:
            yield new
            new.chmod(0o755)  # mkdtemp makes it private
            if not _exchange(new, target):
                old = target.with_name(f".{target.name}.old-{new.name.rpartition('.new-')[2]}")
                if target.exists():
                    locks.append(_lock(target))
                    os.rename(target, old)
                os.rename(new, target)
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # unfinished, or after an exchange the old directory
            for one in locks:
                os.close(one)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories in one step (Linux's renameat2); False where one is missing or it is not supported."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd, rename_exchange = -100, 2
    return renameat2 is not None and renameat2(at_fdcwd, bytes(one), at_fdcwd, bytes(other), rename_exchange) == 0


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in the folders of a run, and put back what they were about to replace."""
    for parent in [folder, *folder.glob("*"), *folder.glob("*/*")]:
        if parent.is_dir():
            _repair(parent)


def _repair(parent: Path) -> None:
    """Remove the unfinished directories of killed writers in `parent`; put an old one back that was not replaced."""
    for path in parent.iterdir():
        found = UNFINISHED.fullmatch(path.name)
        if found is None:
            continue
        target = parent / found["target"]
        # Another process may repair as well.
        with contextlib.suppress(FileNotFoundError), _if_left(path, found["host"], found["pid"]) as left:
            if left and found["kind"] == "old" and not target.exists():
                os.rename(path, target)
            elif left:
                shutil.rmtree(path)


# A directory belongs to a living process as long as that has it locked: process ids say nothing to another container
# that shares the disk.


def _own_directory(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new directory that this process has locked, and the descriptor that holds the lock."""
    while True:
        new = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError):  # taken for a left one, before it was locked
            lock = _lock(new)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == new.stat().st_ino:
                    return new, lock
            os.close(lock)


def _lock(folder: Path) -> int:
    """The descriptor of a locked directory; not locked where the file system cannot do so."""
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@contextlib.contextmanager
def _if_left(folder: Path, host: str, pid: str) -> Iterator[bool]:
    """Whether the process that made `folder` is dead. Without locks that is known of processes of this host only."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield host == socket.gethostname() and not Path("/proc", pid).exists()
    finally:
        os.close(descriptor)


def remove_at_exit(folder: Path) -> None:
    """Remove `folder` when this process ends; a forked child leaves it alone."""
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))


@functools.cache
def use_scratch_folder() -> None:
    """Put the temporary files of this process, and of those that it starts, under `runs/.tmp/` until it ends, and
    remove those of killed processes."""
    home = (RUNS / ".tmp").absolute()
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
    for folder in home.iterdir():
        host, _, pid = folder.name.partition(".")[0].rpartition("-")
        with contextlib.suppress(OSError), _if_left(folder, host, pid) as left:
            if left:
                shutil.rmtree(folder, ignore_errors=True)
    with writing(home):
        scratch, _ = _own_directory(home, f"{socket.gethostname().replace('.', '_')}-{os.getpid()}.")
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    remove_at_exit(scratch)
