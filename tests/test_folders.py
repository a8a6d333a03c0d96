"""Directories appear complete or not at all, at whatever moment a process is killed."""

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from tasks import folders
from tasks.folders import atomic_directory, remove_leftovers, run_folder, versions


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with atomic_directory(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
        assert folder.parent == target.parent  # on the same disk, so that the last step is a rename
    assert (target / "a").read_text() == "1"
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o755


def test_the_directory_of_an_earlier_attempt_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("first", "second"):
        with atomic_directory(target) as folder:
            (folder / name).touch()
    assert [path.name for path in target.iterdir()] == ["second"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_old_directory(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "target"
    with atomic_directory(target) as folder:
        (folder / "old").touch()
    with pytest.raises(error), atomic_directory(target) as folder:
        (folder / "new").touch()
        raise error
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def killed_at_line(target: Path, line: int) -> bool:
    """Replace `target` in a process that is killed before the given line of `folders.py`; whether it got so far."""
    if process := os.fork():
        return os.WIFSIGNALED(os.waitpid(process, 0)[1])
    executed = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal executed
        if frame.f_code.co_filename != folders.__file__:
            return None
        executed += event == "line"
        if executed == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        with atomic_directory(target) as folder:
            (folder / "new").touch()
    finally:
        os._exit(0)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_process_killed_at_any_line_leaves_the_old_directory_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, exchanges: bool
) -> None:
    target, outcomes = tmp_path / "00003", []
    if not exchanges:  # as on a file system that cannot exchange directories
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    for line in itertools.count(1):
        shutil.rmtree(target, ignore_errors=True)
        if there:
            target.mkdir()
            (target / "old").touch()
        killed = killed_at_line(target, line)
        if exchanges and there:
            assert target.is_dir()  # at once; without an exchange when the next writer has repaired it
        with atomic_directory(tmp_path / "00004"):
            pass
        assert sorted(path.name for path in tmp_path.iterdir() if path != target) == ["00004"]
        outcomes.append([path.name for path in target.iterdir()] if target.exists() else None)
        if not killed:
            break
    assert len(outcomes) > 15
    before = ["old"] if there else None
    switch = outcomes.index(["new"])
    assert outcomes == [before] * switch + [["new"]] * (len(outcomes) - switch) and 0 < switch < len(outcomes) - 1


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    code = (
        "import sys, time; from pathlib import Path; from tasks.folders import atomic_directory\n"
        "with atomic_directory(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch()\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(target)])
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("half")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with atomic_directory(tmp_path / "other"), atomic_directory(tmp_path / "third"):
        assert len(list(tmp_path.glob(".other.*"))) == 1  # nor does a process remove its own
    assert len(list(tmp_path.rglob("half"))) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not target.exists()
    with atomic_directory(target) as folder:
        (folder / "whole").touch()
    assert [path.name for path in target.iterdir()] == ["whole"]
    assert not list(tmp_path.rglob("half"))


def test_what_another_container_writes_is_left_alone_until_it_is_dead(tmp_path: Path) -> None:
    # It shares the disk; its process ids and host name say nothing here.
    folder = tmp_path / ".00007.new-other-1.abc"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with atomic_directory(tmp_path / "00008"):
        assert folder.is_dir()
    os.close(lock)
    with atomic_directory(tmp_path / "00008"):
        assert not folder.exists()


def test_at_the_next_start_nothing_is_left_of_dead_writers(tmp_path: Path) -> None:
    for place in ("evaluations", "states", "shards/00001"):
        for name in (".00002.new-gone-77.x", ".00003.old-gone-77.y"):
            (tmp_path / place / name / "half").mkdir(parents=True)
        (tmp_path / place / "00001").mkdir(exist_ok=True)
    remove_leftovers(tmp_path)
    for place in ("evaluations", "states", "shards/00001"):
        # What was about to be replaced is back.
        assert [path.name for path in versions(tmp_path / place)] == ["00001", "00003"]
        assert sorted(path.name for path in (tmp_path / place).iterdir()) == ["00001", "00003"]


def test_a_live_scratch_folder_of_another_container_stays(tmp_path: Path) -> None:
    code = (
        "from tasks.folders import use_scratch_folder; use_scratch_folder(); import tempfile; print(tempfile.tempdir)"
    )
    homes = tmp_path / "runs" / ".tmp"
    for name in ("other-1.live", "other-1.dead", "4711"):
        (homes / name).mkdir(parents=True)
    lock = os.open(homes / "other-1.live", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    os.close(lock)
    assert Path(done.stdout.strip()).parent == homes
    assert [path.name for path in homes.iterdir()] == ["other-1.live"]


def test_versions_are_the_finished_folders_in_order(tmp_path: Path) -> None:
    assert versions(tmp_path / "evaluations") == []
    for name in ("00010", "00002", "00002.tmp", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "00003").touch()
    with atomic_directory(tmp_path / "00004"):
        assert [path.name for path in versions(tmp_path)] == ["00002", "00010"]
    assert versions(tmp_path) == [tmp_path / name for name in ("00002", "00004", "00010")]


def test_the_folder_of_a_run_is_where_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder("monday") == tmp_path / "runs" / "monday"
