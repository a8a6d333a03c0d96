"""Names of runs, taken by one process at a time, and the folders in which runs may be."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.run import names
from tasks.run.create import check_folder

ROOT = str(Path(__file__).parents[2])
TAKE = (
    "import sys; from tasks.run import names\n"
    "print(names.take_new(sys.argv[1]) if sys.argv[2:] else names.take(sys.argv[1]), flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "_held", {})
    return tmp_path


def other(*arguments: str) -> "subprocess.Popen[str]":
    """A process that takes a name, and holds it until its input ends."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    line = [sys.executable, "-c", TAKE, *arguments]
    return subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_name_is_held_until_its_process_ends(home: Path) -> None:
    holder = other("monday")
    assert holder.stdout is not None and holder.stdout.readline() == "None\n"
    said = rf'run_name is "monday", which process {holder.pid} on .*, since 20\d\d-.* UTC, has; allowed: another'
    with pytest.raises(ValueError, match=said):
        names.take("monday")
    names.take("tuesday")
    holder.kill()
    holder.wait()
    names.take("monday")
    names.take("monday")  # once more in this process: it goes on with its own run


def test_processes_that_begin_in_one_second_have_names_of_their_own(home: Path) -> None:
    started = [other("blackjack-20261130-231500", "new") for _ in range(4)]
    given = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        process.communicate()
    assert sorted(given) == ["blackjack-20261130-231500", *(f"blackjack-20261130-231500-{n}" for n in (2, 3, 4))]
    (home / "runs" / "x").mkdir()
    assert names.take_new("x") == "x-2"


@pytest.mark.parametrize("path", ["/feature%2Fx/runs", "/a?b/runs", "/a#b/runs", "/[x]/runs", "/a\nb/runs", "/a::b"])
def test_a_folder_that_a_library_would_misread_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(ascii(path))} is where the runs would be, with .* in its path"):
        check_folder(Path(path))


@pytest.mark.parametrize(
    "path", ["/home/me/runs", "/Über uns/ä & b;c'd/runs", "/日本/runs", "/a:b/@c/runs", '/"quoted"/$HOME']
)
def test_any_other_folder_is_fine(path: str) -> None:
    check_folder(Path(path))
