"""Group-relative advantages: how much better a trajectory did than the others on the same seed.

Axes: R trajectories, G members of a group.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.records import ADVANTAGE, with_column


def group_advantages(rewards_R: np.ndarray, group_ids_R: Sequence[str]) -> np.ndarray:
    """reward - mean of its group, float32 [R]: one reward a trajectory, however many turns it took.

    GRPO (arXiv:2402.03300) without the division by the group's deviation, which would weigh decks by how seldom they
    are decided (Dr. GRPO, arXiv:2503.20783). A group of equal rewards has advantages of exactly 0. Raises ValueError
    for a group of one, which has no baseline.
    """
    rewards = np.asarray(rewards_R, dtype=np.float64)
    _, group_R, sizes = np.unique(np.asarray(group_ids_R), return_inverse=True, return_counts=True)
    if len(sizes) and sizes.min() < 2:
        raise ValueError("group size is 1; allowed: 2 or more, a group of one has no baseline.")
    advantages_R = rewards - (np.bincount(group_R, weights=rewards) / sizes)[group_R]
    advantages_R[~decided(rewards, group_ids_R)] = 0.0  # a mean of equal numbers may miss them by a rounding
    return advantages_R.astype(np.float32)


def decided(rewards_R: np.ndarray, group_ids_R: Sequence[str]) -> np.ndarray:
    """Which trajectories are of a group whose rewards differ, bool [R]: only these carry a gradient."""
    rewards = np.asarray(rewards_R, dtype=np.float64)
    _, group_R = np.unique(np.asarray(group_ids_R), return_inverse=True)
    low, high = np.full(group_R.max(initial=-1) + 1, np.inf), np.full(group_R.max(initial=-1) + 1, -np.inf)
    np.minimum.at(low, group_R, rewards)
    np.maximum.at(high, group_R, rewards)
    return (low < high)[group_R]


def add_advantages(batch: pa.Table) -> tuple[pa.Table, dict[str, float]]:
    """The batch with its `advantage` column, and metrics."""
    rewards, groups = batch["reward"].to_numpy(), batch["group_id"].to_pylist()
    advantages = group_advantages(rewards, groups)
    kept = decided(rewards, groups)
    return with_column(batch, ADVANTAGE, advantages.tolist()), {
        "advantage/kept_share": float(kept.mean()),
        "advantage/abs_mean": float(np.abs(advantages[kept]).mean()) if kept.any() else 0.0,
    }
