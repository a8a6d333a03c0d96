"""Means, intervals, per-step and per-episode metrics and pass@k, worked out by hand."""

from dataclasses import replace
from math import sqrt

import pytest

from evaluation.counting import SPEC, episode
from tasks.environments.interface import Episode, Metric, Step
from tasks.evaluation.metrics import measure, pass_at
from tasks.evaluation.records import Mean


def test_mean_and_interval_by_hand() -> None:
    # Five rewards: deviations from the mean 0 are 1, 1, 0, 1, 1, so the sample variance is 4 / 4.
    found = measure(SPEC, [episode(str(i), [Step(reward=r)]) for i, r in enumerate((1.0, 1.0, 0.0, -1.0, -1.0))])
    assert found.reward == Mean(0, pytest.approx(1.959964 / sqrt(5)))
    assert list(found.metrics) == ["invalid", "truncated", "error"]


def test_a_metric_is_per_episode_or_per_step() -> None:
    # Episode 0 has calls 1 and 3 in its steps, episode 1 has 6, episode 2 none.
    episodes = [
        episode("0", [Step(metrics={"calls": 1}), Step(metrics={"calls": 3})]),
        episode("1", [Step(), Step(metrics={"calls": 6})]),
        episode("2", [Step()]),
    ]
    per_episode = measure(replace(SPEC, metrics=(Metric("calls", "calls"),)), episodes).metrics["calls"]
    per_step = measure(replace(SPEC, metrics=(Metric("calls", "calls", per="step"),)), episodes).metrics["calls"]
    # Of the episodes' 2 and 6: mean 4, sample variance (4 + 4) / 1; of the steps' 1, 3, 6: mean 10/3, variance 19/3.
    assert per_episode == Mean(4, pytest.approx(1.959964 * sqrt(8 / 2)))
    assert per_step == Mean(pytest.approx(10 / 3), pytest.approx(1.959964 * sqrt(19 / 3 / 3)))


def test_an_environments_score_is_a_metric_of_the_episode() -> None:
    def score(of: Episode) -> dict[str, float]:
        return {"won": float(of.reward > 0)}

    spec = replace(SPEC, metrics=(Metric("won", "wins"), Metric("nobody", "has it")), score=score)
    found = measure(spec, [episode(str(i), [Step(reward=r)]) for i, r in enumerate((1.0, 0.0, 0.0, 1.0))])
    assert found.metrics["won"].mean == 0.5 and "nobody" not in found.metrics


def test_an_episode_that_failed_counts_only_as_an_error() -> None:
    spec = replace(SPEC, metrics=(Metric("calls", "calls"),))
    played = [
        episode("0", [Step(reward=1.0, metrics={"calls": 2})]),
        episode("1", [Step(valid=False, metrics={"calls": 4})], "invalid"),
        episode("2", [Step()], "truncated"),
    ]
    failed = episode("3", [Step(reward=100.0, metrics={"calls": 100})], "error", "the server went away")
    alone, together = measure(spec, played), measure(spec, [*played, failed])
    assert together.reward == alone.reward and alone.reward.mean == pytest.approx(1 / 3)
    assert together.metrics["calls"] == alone.metrics["calls"] and alone.metrics["calls"].mean == 3
    for name in ("invalid", "truncated"):
        assert together.metrics[name] == alone.metrics[name] and alone.metrics[name].mean == pytest.approx(1 / 3)
    assert (alone.metrics["error"].mean, together.metrics["error"].mean) == (0, 0.25)
    with pytest.raises(RuntimeError, match=r"1 of 2 episodes ended without an error, .*: the server went away$"):
        measure(spec, [played[0], failed])


def test_each_part_is_measured_alone() -> None:
    spec = replace(SPEC, parts=lambda task: ["all", f"last digit {task.id[-1]}"], metrics=(Metric("calls", "calls"),))
    rewards = {"10": 1.0, "20": 0.0, "11": 1.0, "21": 1.0, "12": 0.5}
    played = [episode(name, [Step(reward=reward, metrics={"calls": 2})]) for name, reward in rewards.items()]
    failed = episode("22", [], "error", "away")
    found = measure(spec, [*played, failed])
    assert found.reward.mean == pytest.approx(3.5 / 5)
    # One episode of digit 2 has no interval, and the other one failed.
    assert {part: of.reward.mean for part, of in found.parts.items()} == {
        "all": found.reward.mean,
        "last digit 0": 0.5,
        "last digit 1": 1.0,
    }
    assert found.parts["all"].metrics == found.metrics and found.metrics["error"].mean == 1 / 6
    assert found.parts["last digit 1"].metrics["calls"] == Mean(2, 0)
    assert found.parts["last digit 0"].parts == {} == measure(SPEC, played).parts


def test_pass_at_k_by_hand() -> None:
    def samples(name: str, solved: int, of: int) -> list[Episode]:
        return [episode(name, [Step(reward=1.0 if i < solved else 0.9)]) for i in range(of)]

    # Of 4 samples: 1 solved gives 1 - C(3, 2) / C(4, 2) = 1/2 for two; 3 solved is sure; none is never.
    episodes = samples("a", 1, 4) + samples("b", 3, 4) + samples("c", 0, 4)
    assert pass_at(episodes, (1, 2, 4)) == pytest.approx({"1": (1 / 4 + 3 / 4) / 3, "2": 1.5 / 3, "4": 2 / 3})
    # A failed sample is none: task d has two, and says nothing of four.
    more = [*episodes, *samples("d", 2, 2), episode("d", [Step(reward=1.0)], "error")]
    assert pass_at(more, (1, 4, 8)) == pytest.approx({"1": (1 / 4 + 3 / 4 + 1) / 4, "4": 2 / 3})


def test_rewards_of_several_steps_solve_a_task_together() -> None:
    assert pass_at([episode("a", [Step(reward=0.1)] * 7 + [Step(reward=0.3)])], (1,)) == {"1": 1.0}
