"""Folders appear whole or not at all, whatever happens half-way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.folders import atomic_directory, run_folder


def test_the_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with atomic_directory(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
        assert folder.parent == target.parent  # on the same disk, so that the last step is a mere renaming
    assert (target / "a").read_text() == "1"
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o755


def test_what_an_earlier_attempt_left_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("first", "second"):
        with atomic_directory(target) as folder:
            (folder / name).touch()
    assert [path.name for path in target.iterdir()] == ["second"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_half_way_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "target"
    with atomic_directory(target) as folder:
        (folder / "old").touch()
    with pytest.raises(error), atomic_directory(target) as folder:
        (folder / "new").touch()
        raise error
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_process_killed_half_way_leaves_no_target(tmp_path: Path) -> None:
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
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(tmp_path.rglob("half"))
    assert not target.exists()
    with atomic_directory(target) as folder:  # and what it left is in nobody's way
        (folder / "whole").touch()
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_a_run_lies_where_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder("monday") == tmp_path / "runs" / "monday"
