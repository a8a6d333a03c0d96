"""What a person sees, through a pipe and on a terminal."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import a_run
from tasks.folders import run_folder
from tasks.stages import show_iteration
from tasks.tracking import console

COLUMNS = ["before", "after", "always right"]
METRICS = {"rollout/raw_reward": -0.18, "rollout/episodes_per_s": 1842.4, "time/iteration_s": 71.04}
METRICS |= {"train/kl": 0.0123, "train/entropy": 0.42}
ROWS = [["expected reward", "-0.400 ±0.020", "-0.050 ±0.020", "-0.042"], ["solved", "28.0%", "43.0%", "-"]]


def everything() -> None:
    console.stage("policy 0: [tiny] is made")
    evaluation = run_folder("monday") / "evaluations" / "00004" / "evaluation.json"
    evaluation.parent.mkdir(parents=True)
    evaluation.write_text('{"reward": {"mean": 0.1234, "ci95": 0.02}}')
    show_iteration(a_run("monday", "sqlite://", iterations=60), 7, METRICS)
    console.stage("evaluation of policy 7", "  expected reward -0.050 ±0.020", style="bold green")
    below = {"policy": "runs/monday/policy-" + "0" * 150, "report": "runs/monday/report.html", "curves": "make ui"}
    console.table(COLUMNS, ROWS, below)


def test_through_a_pipe_there_are_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "pace", console.Pace())
    monkeypatch.setenv("FORCE_COLOR", "1")  # as many build machines have it
    everything()
    out = capsys.readouterr().out
    assert [c for c in out if c != "\n" and not c.isprintable()] == []
    lines = out.splitlines()
    assert lines[0].endswith("policy 0: [tiny] is made")
    assert "policy  7/60  reward -0.180  evaluated +0.123 at 4  KL 0.0123  entropy 0.420" in lines[1]
    assert lines[1].endswith("1,842 episodes/s   71.0 s  left 1:02:45")  # 53 iterations like this one
    assert lines[2].endswith("evaluation of policy 7  expected reward -0.050 ±0.020")
    assert lines[3] == ""  # so each of the three events was one line
    assert "policy  runs/monday/policy-" + "0" * 150 in lines  # a path stays whole, to be copied
    assert lines[-2:] == ["report  runs/monday/report.html", "curves  make ui"]


def test_on_a_terminal_there_are_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.stage("training")
    assert "\x1b[" in capsys.readouterr().out


def test_the_table_has_a_column_for_each_name(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(COLUMNS, ROWS, {})
    shown = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert shown == ROWS


def test_before_the_first_evaluation_an_iteration_says_nothing_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    show_iteration(a_run("no such run", "sqlite://", iterations=2), 1, METRICS)
    assert "reward -0.180  KL" in capsys.readouterr().out


def test_clock() -> None:
    assert [console.clock(s) for s in (-3, 0, 65.4, 7439)] == ["0:00", "0:00", "1:05", "2:03:59"]


# A stage of three steps and what is printed after it; the last step only when the parent has seen the one before.
STAGE = """
import sys, time
from tasks.tracking import console
console.stage("before")
with console.bar("rollout 3", "groups kept") as watch:
    for done in (1, 2, 3):
        watch(done, 3, f"{done * 100} episodes/s")
        time.sleep(0.6)
console.stage("after")
"""


def on_a_terminal(code: str, **environment: str) -> str:
    """What a program writes to a terminal of 100 columns."""
    parent, child = pty.openpty()
    settings = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "WORLD_SIZE")}
    own = {"TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    process = subprocess.Popen([sys.executable, "-c", code], stdin=child, stdout=child, env={**settings, **own})
    os.close(child)
    said = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        said += piece
    os.close(parent)
    assert process.wait() == 0
    return said.decode()


def left_on_the_screen(said: str) -> list[str]:
    """The lines that stay, of a program that only goes up, erases lines and colours."""
    lines, row = [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", said):
        if piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\r":
            pass
        elif piece.endswith("A"):
            row -= int(piece[2:-1] or 1)
        elif piece.endswith("K"):
            lines[row] = ""
        elif not piece.startswith("\x1b"):
            lines[row] = piece if said and lines[row] == "" else lines[row] + piece
    return [line.strip() for line in lines if line.strip()]


def test_a_long_stage_has_a_bar_that_goes_when_it_ends() -> None:
    said = on_a_terminal(STAGE)
    for seen in ("rollout 3", "2/3 groups kept", "200 episodes/s"):
        assert seen in re.sub(r"\x1b\[[0-9;]*m", "", said)
    before, after = left_on_the_screen(said)
    assert before.endswith("before") and after.endswith("after")


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1"}, {"TERM": "dumb"}])
def test_on_several_ranks_and_on_dumb_terminals_there_is_no_bar(environment: dict[str, str]) -> None:
    said = on_a_terminal(STAGE, **environment)
    assert "groups kept" not in said and "before" in said and "after" in said


def test_through_a_pipe_there_is_no_bar() -> None:
    own = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([sys.executable, "-c", STAGE], env=own, capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["before", "after"]
    assert done.stderr == "" and done.stdout.replace("\n", "").isprintable()


def test_an_error_inside_a_stage_takes_its_bar_away() -> None:
    code = STAGE.replace("time.sleep(0.6)", "sys.exit('stopped')").replace("import sys", "import atexit, sys")
    code = code.replace('console.stage("before")', 'atexit.register(console.stage, "the end")')
    parent, child = pty.openpty()
    own = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], stdout=child, env=own, stderr=subprocess.PIPE, text=True)
    said = os.read(parent, 65536).decode()
    os.close(parent)
    os.close(child)
    assert done.returncode == 1 and done.stderr == "stopped\n"
    assert [line.split()[-1] for line in left_on_the_screen(said)] == ["end"]
    assert "\x1b[?25h" in said  # and the cursor is back


def test_the_time_left_is_that_of_the_iterations_that_this_process_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = console.Pace()
    assert pace.seconds_left(11, 20, 30.0) == 9 * 30  # the first: all that is known is how long it took
    now += 12
    assert pace.seconds_left(12, 20, 10.0) == 8 * 12  # 10 s of work and 2 s between
    now += 6
    assert pace.seconds_left(13, 20, 6.0) == 7 * 9
    now += 100
    assert pace.seconds_left(1, 4, 5.0) == 3 * 5  # another run in this process


def test_the_pause_of_an_interrupted_iteration_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "STARTED", 500.0)
    monkeypatch.setattr(time, "monotonic", lambda: 560.0)  # this process is a minute old
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert console.seconds_here(9_990.0, 8.0, here=True) == 10  # it began in this process
    assert console.seconds_here(1_000.0, 8.0, here=True) == 60  # its rollout was played by one that was killed
    assert console.seconds_here(1_000.0, 70.0, here=True) == 70  # which worked for longer than this one lives
    assert console.seconds_here(9_000.0, 8.0, here=False) == 1000
