"""Paired differences worked out by hand, and two real policies on the same decks."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from small import SMALL
from tasks.config import GrpoConfig, RolloutConfig, TrainingConfig
from tasks.evaluation.compare import Comparison, check_decks, compare_into, paired, read_comparison
from tasks.evaluation.evaluate import evaluate_policy
from tasks.seeds import fresh_seed

FOUND = Comparison(
    "aa", "bb", games=10000, seed=7, difference=0.0311, difference_ci95=0.0076, better=912, worse=601, same=8487
)


def test_the_difference_is_taken_deck_by_deck() -> None:
    found = paired(np.array([1.0, 1.0, -1.0, 0.0]), np.array([1.0, -1.0, 1.0, -1.0]))
    # Differences 0, 2, -2, 1: mean 1/4, squared deviations 1/16, 49/16, 81/16, 9/16, so the variance is 35/4 / 3.
    assert found["difference"] == 0.25
    assert found["difference_ci95"] == pytest.approx(1.959964 * sqrt(35 / 12 / 4))
    assert (found["better"], found["worse"], found["same"]) == (2, 1, 1)


def test_what_all_decks_share_is_gone() -> None:
    decks = np.array([1.0, -1.0] * 500)
    assert paired(decks, decks) == {"difference": 0, "difference_ci95": 0, "better": 0, "worse": 0, "same": 1000}
    other = decks.copy()
    other[0] = -1.0  # lost where it could be won: 2 in 1000 decks, and no more spread than that
    assert paired(decks, other)["difference_ci95"] == pytest.approx(1.959964 * 0.002, rel=1e-3)


@pytest.mark.parametrize(
    ("difference", "half_width", "better"),
    [(0.03, 0.02, True), (0.02, 0.02, False), (0, 0, False), (-0.03, 0.02, False)],
)
def test_surely_better_is_an_interval_above_zero(difference: float, half_width: float, better: bool) -> None:
    assert replace(FOUND, difference=difference, difference_ci95=half_width).surely_better is better


def test_a_policy_no_better_is_surely_better_once_in_forty_comparisons() -> None:
    # Two policies that differ on one deck in ten, in either direction alike: 4,000 comparisons of 1,000 decks.
    dice = np.random.default_rng(0)
    gains = dice.choice([-1.0, 0.0, 1.0], size=(4000, 1000), p=[0.05, 0.9, 0.05])
    found = [paired(row, np.zeros(1000)) for row in gains]
    sure = sum(f["difference"] > f["difference_ci95"] for f in found)
    assert abs(sure / 4000 - 0.025) < 4 * sqrt(0.025 * 0.975 / 4000)


def test_it_reads_as_a_sentence() -> None:
    assert FOUND.in_words == "+0.0311 ±0.0076 a game on 10,000 decks (better on 912, worse on 601, the same on 8,487)"


def test_two_policies_on_the_decks_of_an_evaluation(newborn_policy: Path, tmp_path: Path) -> None:
    from tasks.training.cold_start import make_tiny

    rollout = RolloutConfig()
    stands = tmp_path / "stands"  # with this seed the reply that is likelier by a hair is STAND
    make_tiny(stands, GrpoConfig.from_dict(SMALL).tiny, TrainingConfig(), "blackjack", seed=1796004000)
    where = {"environment": "blackjack", "games": 200, "seed": 3}
    found = compare_into(tmp_path / "it", stands, newborn_policy, rollout, **where)
    rewards = [evaluate_policy(folder, rollout, **where).expected_reward for folder in (stands, newborn_policy)]
    assert found.difference == pytest.approx(rewards[0] - rewards[1])
    assert [found.players[who]["expected_reward"] for who in ("policy", "other")] == pytest.approx(rewards)
    # The other one cannot be read, and forfeits every game: it is never better.
    assert rewards[1] == -1 and found.worse == 0 and found.better + found.same == 200 and found.surely_better
    assert found.policy != found.other
    assert read_comparison(tmp_path / "it") == found
    mirrored = compare_into(tmp_path / "mirrored", newborn_policy, stands, rollout, **where)
    assert (mirrored.difference, mirrored.worse) == (-found.difference, found.better)


@pytest.mark.parametrize(("games", "seed"), [(1, 0), (10, -1), (10, 2**61)])
def test_decks_that_cannot_be_are_refused(games: int, seed: int) -> None:
    check_decks(2, fresh_seed("monday", 0))
    with pytest.raises(ValueError, match=r"^(games|seed) is .*; allowed: "):
        check_decks(games, seed)
