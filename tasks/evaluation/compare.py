"""Two policies on the same decks: which one earns more, by the difference of their rewards on each deck.

What a deck is worth has far more spread than what a move is worth. Both policies play each deck greedily, and that
spread is gone from the difference of their rewards: two good policies differ on one deck in ten. Axis: E games.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.config import RolloutConfig, require
from tasks.evaluation.evaluate import greedy_rewards, outcome, scripted_rewards, share
from tasks.folders import atomic_directory
from tasks.json_records import Record
from tasks.policy.checkpoint import read_manifest

FILE = "comparison.json"


@dataclass(frozen=True)
class Comparison(Record):
    """The paired difference of two policies' rewards, and how each did.

    Example: `Comparison(policy="5f0c…", other="b2a1…", games=10000, seed=7, difference=0.031, difference_ci95=0.012,
    better=912, worse=601, same=8487, players={"policy": {"expected_reward": -0.048, …}, "other": …, "optimum": …})`.
    """

    policy: str  # digests
    other: str
    games: int
    seed: int  # which held-out decks
    difference: float  # of expected rewards, the policy's less the other's
    difference_ci95: float  # half the width of its two-sided 95 % interval
    better: int  # decks on which the policy earned more than the other
    worse: int
    same: int
    players: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def surely_better(self) -> bool:
        """Whether the whole interval is above 0, which chance alone brings about once in forty comparisons."""
        return self.difference - self.difference_ci95 > 0

    @property
    def in_words(self) -> str:
        """`+0.0311 ±0.0076 a game on 10,000 decks (better on 912, worse on 601, the same on 8,487)`"""
        decks = f"better on {self.better:,}, worse on {self.worse:,}, the same on {self.same:,}"
        return f"{self.difference:+.4f} ±{self.difference_ci95:.4f} a game on {self.games:,} decks ({decks})"


def paired(policy_E: np.ndarray, other_E: np.ndarray) -> dict[str, float | int]:
    """Mean of the differences with its 95 % half-width, by the normal approximation, and how many go either way."""
    gained_E = policy_E - other_E
    difference, half_width = share(gained_E)
    better, worse = int((gained_E > 0).sum()), int((gained_E < 0).sum())
    return {
        "difference": difference,
        "difference_ci95": half_width,
        "better": better,
        "worse": worse,
        "same": len(gained_E) - better - worse,
    }


def check_decks(games: int, seed: int = 0) -> None:
    """Raise ValueError for decks that cannot be: a seed is that of an evaluation, or a larger `fresh_seed`."""
    require(games >= 2, "games", games, "2 or more")
    require(0 <= seed < 2**61, "seed", seed, "0 to 2305843009213693951")


def compare_into(
    folder: Path,
    policy: Path,
    other: Path,
    rollout: RolloutConfig,
    *,
    environment: str,
    url: str = "",
    games: int,
    seed: int,
) -> Comparison:
    """Play the same `games` held-out decks with both policies; write comparison.json into `folder`."""
    policy_E, other_E = (
        greedy_rewards(of, rollout, environment=environment, url=url, games=games, seed=seed) for of in (policy, other)
    )
    optimum_E = scripted_rewards(environment, "optimum", seed, games)
    comparison = Comparison(
        policy=read_manifest(policy).digest,
        other=read_manifest(other).digest,
        games=games,
        seed=seed,
        **paired(policy_E, other_E),  # type: ignore[arg-type]
        players={"policy": outcome(policy_E), "other": outcome(other_E), "optimum": outcome(optimum_E)},
    )
    with atomic_directory(folder) as new:
        (new / FILE).write_text(json.dumps(comparison.to_dict(), indent=1) + "\n")
    return comparison


def read_comparison(folder: Path) -> Comparison:
    """What `compare_into` wrote."""
    return Comparison.from_json((folder / FILE).read_text())
