"""What a person sees, through a pipe and on a terminal."""

import sys

import pytest

from tasks.tracking import console

BEFORE = {
    "expected_reward": -0.4,
    "expected_reward_ci95": 0.02,
    "win_rate": 0.28,
    "push_rate": 0.05,
    "loss_rate": 0.67,
    "regret": 0.357,
    "regret_ci95": 0.011,
    "invalid_rate": 0.013,
    "agreement": 0.55,
}
AFTER = {**BEFORE, "expected_reward": -0.05, "regret": 0.008, "optimum_expected_reward": -0.042}


def everything() -> None:
    console.stage("policy 0: [tiny] is made")
    console.iteration_line(
        version=7,
        iterations=60,
        reward=-0.18,
        reward_se=0.01,
        kl=0.0123,
        entropy=0.42,
        kept_share=0.34,
        games_per_second=1842.4,
        seconds=3.14,
        seconds_left=3751,
    )
    console.evaluation_line(7, AFTER)
    console.summary_table(BEFORE, AFTER, "runs/monday/policy-" + "0" * 150, "make ui")


def test_through_a_pipe_there_are_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as many build machines have it
    everything()
    out = capsys.readouterr().out
    assert [c for c in out if c != "\n" and not c.isprintable()] == []
    lines = out.splitlines()
    assert lines[0].endswith("policy 0: [tiny] is made")
    assert "policy  7/60  reward -0.180 ±0.020  KL 0.0123  entropy 0.420  kept  34%" in lines[1]
    assert lines[1].endswith("1,842 games/s    3.1 s  left 1:02:31")
    assert "evaluation of policy 7" in lines[2]
    assert lines[3] == ""  # so each of the three events was one line
    assert "policy  runs/monday/policy-" + "0" * 150 in lines  # a path stays whole, to be copied
    assert lines[-1] == "curves  make ui"


def test_on_a_terminal_there_are_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.stage("training")
    assert "\x1b[" in capsys.readouterr().out


def test_the_table_sets_before_beside_after_and_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    console.summary_table(BEFORE, AFTER, "p", "make ui")
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := line.split("│")) == 4
    }
    assert rows["expected reward"] == ["-0.400 ±0.020", "-0.050 ±0.020", "-0.042"]
    assert rows["regret"] == ["0.357 ±0.011", "0.008 ±0.011", "0.000"]
    assert rows["losses"] == ["67.0%", "67.0%", "-"]  # nobody said what the optimum's are
    assert rows["agreement with the optimum"] == ["55.0%", "55.0%", "100.0%"]


def test_a_row_that_an_environment_does_not_know_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    console.summary_table({"expected_reward": 0.1}, {"expected_reward": 0.2}, "p", "make ui")
    out = capsys.readouterr().out
    assert "expected reward" in out
    assert "pushes" not in out


def test_clock() -> None:
    assert [console.clock(s) for s in (-3, 0, 65.4, 7439)] == ["0:00", "0:00", "1:05", "2:03:59"]
