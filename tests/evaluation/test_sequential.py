"""Evidence worked out by hand, and its guarantee: nights between equal policies, looked at after every task."""

import numpy as np
import pytest

from tasks.environments.catalog import get_environment
from tasks.evaluation.sequential import ENOUGH, Evidence, reward_range

LIMIT = 4096  # tasks of a night at most


def nights(better: float, worse: float, count: int = 1000) -> np.ndarray:
    """Paired differences of rewards -1 and 1, [night, task]: how often the one policy wins where the other loses."""
    rng = np.random.default_rng(0)
    drawn = rng.choice([2, 0, -2], size=(count, LIMIT), p=[better, 1 - better - worse, worse])
    return drawn.astype(np.float64)


def promoted(differences: np.ndarray) -> float:
    """The share of the nights that have enough evidence at any time."""
    return float(np.mean([Evidence(2.0).add(night).max() >= ENOUGH for night in differences]))


def test_the_first_bets_by_hand() -> None:
    # No stake at first. Then mean 1/2, variance (1/4 + 1)/2 - 1/4 = 3/8, stake 0.5/(3/8 + 1/4) = 0.8, at most 0.5.
    # After +1 and -1: mean 0, no stake.
    assert Evidence(2.0).add([2.0, -2.0, 2.0]) == pytest.approx([1, 0.5, 0.5])
    # Differences 1/4 of the range: mean 1/8, variance (1/4 + 1/16)/2 - 1/64, and both squares together 5/32: 0.8.
    # Stakes: 0, min(0.5, 0.125/0.15625), then mean 2/12, second moment (1/4 + 2/16)/3 = 1/8: 0.5 again.
    assert Evidence(2.0).add([0.5, 0.5, 0.5]) == pytest.approx([1, 1.125, 1.125**2])
    assert len(Evidence(2.0).add([])) == 0


def test_evidence_is_carried_on_from_look_to_look() -> None:
    (night,) = nights(0.06, 0.05, count=1)
    once, looks = Evidence(2.0), Evidence(2.0)
    whole = once.add(night)
    parts = [looks.add(night[start : start + 1024]) for start in range(0, LIMIT, 1024)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert looks.most == once.most == whole.max() > 1
    looks.add([-2.0] * 100)
    assert looks.most == once.most  # what was found is not lost again


def test_a_thousand_nights_of_equal_policies_promote_at_most_one_in_forty() -> None:
    for rate in (0.05, 0.005, 0.3):  # how often they differ, either way alike
        assert promoted(nights(rate, rate)) <= 0.025
    assert promoted(nights(0.05, 0.06)) <= 0.005  # a worse one still less often


def test_a_better_policy_is_found_and_mostly_before_the_limit() -> None:
    found = nights(0.08, 0.05, count=200)
    assert promoted(found) > 0.95
    first = [int(np.argmax(Evidence(2.0).add(night) >= ENOUGH)) for night in found]
    assert np.median(first) < LIMIT / 2


def test_evidence_wants_the_range_of_rewards_and_endless_tasks() -> None:
    with pytest.raises(ValueError, match=r"two rewards on one task differ by 3; allowed: 2, the environment's range"):
        Evidence(2.0).add([0.0, -3.0])
    assert reward_range(get_environment("blackjack"), "blackjack") == (-1, 1)
    from dataclasses import replace

    for changes, why in (
        ({"reward_range": None}, "does not say the range"),
        ({"test_tasks": 164}, "only so many test"),
    ):
        with pytest.raises(ValueError, match=rf'evaluation.comparison is "sequential"; allowed: fixed, .* {why}'):
            reward_range(replace(get_environment("blackjack"), **changes), "blackjack")
