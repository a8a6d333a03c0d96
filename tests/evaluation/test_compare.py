"""Paired differences worked out by hand, and two real policies on the same tasks."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from small import SMALL
from tasks.config import RolloutConfig, TinyPolicyConfig, TrainingConfig
from tasks.evaluation.compare import Comparison, check_tasks, compare_into, paired
from tasks.evaluation.evaluate import TaskSet, evaluate_policy
from tasks.seeds import fresh_seed

FOUND = Comparison(
    "aa", "bb", tasks=10000, seed=7, difference=0.0311, difference_ci95=0.0076, better=912, worse=601, same=8487
)


def test_the_difference_is_taken_task_by_task() -> None:
    policy = {"a": 1.0, "b": 1.0, "c": -1.0, "d": 0.0, "only the policy's": 5.0}
    other = {"d": -1.0, "c": 1.0, "b": -1.0, "only the other's": -5.0, "a": 1.0}  # played in another order
    found = paired(policy, other)
    # Differences 0, 2, -2, 1: mean 1/4, squared deviations 1/16, 49/16, 81/16, 9/16, so the variance is 35/4 / 3.
    assert found["difference"] == 0.25
    assert found["difference_ci95"] == pytest.approx(1.959964 * sqrt(35 / 12 / 4))
    assert (found["tasks"], found["better"], found["worse"], found["same"]) == (4, 2, 1, 1)


def test_what_all_tasks_share_is_gone() -> None:
    rewards = {str(i): [1.0, -1.0][i % 2] for i in range(1000)}
    nothing = {"tasks": 1000, "difference": 0, "difference_ci95": 0, "better": 0, "worse": 0, "same": 1000}
    assert paired(rewards, rewards) == nothing
    other = {**rewards, "0": -1.0}  # lost where it could be won: 2 in 1000 tasks, and no more variance than that
    assert paired(rewards, other)["difference_ci95"] == pytest.approx(1.959964 * 0.002, rel=1e-3)


def test_two_policies_without_a_task_in_common_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="both policies played 1 of the tasks to their end; 2 are needed"):
        paired({"a": 1.0, "b": 1.0}, {"b": 1.0, "c": 1.0})


@pytest.mark.parametrize(
    ("difference", "half_width", "better"),
    [(0.03, 0.02, True), (0.02, 0.02, False), (0, 0, False), (-0.03, 0.02, False)],
)
def test_surely_better_is_an_interval_above_zero(difference: float, half_width: float, better: bool) -> None:
    assert replace(FOUND, difference=difference, difference_ci95=half_width).surely_better is better


def test_a_policy_no_better_is_surely_better_once_in_forty_comparisons() -> None:
    # Two policies that differ on one task in ten, in either direction alike: 4,000 comparisons of 1,000 tasks.
    rng = np.random.default_rng(0)
    gains = rng.choice([-1.0, 0.0, 1.0], size=(4000, 1000), p=[0.05, 0.9, 0.05])
    nothing = dict.fromkeys(range(1000), 0.0)
    found = [paired(dict(enumerate(row)), nothing) for row in gains.tolist()]  # type: ignore[arg-type]
    sure = sum(f["difference"] > f["difference_ci95"] for f in found)
    assert abs(sure / 4000 - 0.025) < 4 * sqrt(0.025 * 0.975 / 4000)


def test_it_reads_as_a_sentence() -> None:
    sentence = "+0.0311 ±0.0076 an episode on 10,000 tasks (better on 912, worse on 601, the same on 8,487)"
    assert FOUND.in_words == sentence


def test_two_policies_on_the_tasks_of_an_evaluation(newborn_policy: Path, tmp_path: Path) -> None:
    from tasks.training.cold_start import make_tiny

    rollout = RolloutConfig(max_tokens=4)
    stands = tmp_path / "stands"  # with this seed STAND is slightly likelier than HIT
    make_tiny(stands, TinyPolicyConfig.from_dict(SMALL["tiny"]), TrainingConfig(), "blackjack", seed=0)
    task_set = TaskSet("blackjack", tasks=200, seed=3)
    found = compare_into(tmp_path / "it", stands, newborn_policy, rollout, task_set)
    evaluations = [evaluate_policy(folder, rollout, task_set) for folder in (stands, newborn_policy)]
    assert found.difference == pytest.approx(evaluations[0].reward.mean - evaluations[1].reward.mean)
    assert [found.results[name].reward for name in ("policy", "other")] == [e.reward for e in evaluations]
    assert found.baselines == evaluations[0].baselines
    # The other one cannot be read, and loses every game: it is never better.
    assert evaluations[1].reward.mean == -1 and found.worse == 0
    assert found.better + found.same == 200 and found.surely_better
    assert found.policy != found.other
    assert Comparison.from_json((tmp_path / "it" / "comparison.json").read_text()) == found
    mirrored = compare_into(tmp_path / "mirrored", newborn_policy, stands, rollout, task_set)
    assert (mirrored.difference, mirrored.worse) == (-found.difference, found.better)


@pytest.mark.parametrize(("tasks", "seed"), [(1, 0), (10, -1), (10, 2**61)])
def test_tasks_that_cannot_be_are_refused(tasks: int, seed: int) -> None:
    check_tasks(2, fresh_seed("monday", 0))
    check_tasks(0)  # the environment's own number
    with pytest.raises(ValueError, match=r"^(tasks|seed) is .*; allowed: "):
        check_tasks(tasks, seed)
