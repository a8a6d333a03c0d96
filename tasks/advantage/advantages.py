"""Group-relative advantages: how much better a trajectory did than the others of its group, on the same task.

Axes: R trajectories. A reward of NaN is none: that trajectory was dropped, and does not count.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.records import ADVANTAGE, trajectory_numbers, with_column

ROUNDING = 1e-6  # rewards of a group closer than this, relative to the largest, are equal: the precision of float32


def group_advantages(rewards_R: np.ndarray, group_ids_R: Sequence[str], kind: str = "mean") -> np.ndarray:
    """Advantages, float32 [R]: one for each trajectory, however many turns it took.

        mean           reward - mean of its group
        mean_std       (reward - mean) / standard deviation of its group (divided by its size): GRPO, arXiv:2402.03300
        leave_one_out  reward - mean of the others = (reward - mean) G / (G - 1) in a group of G: RLOO, arXiv:2402.14740

    Dividing by the deviation gives groups with nearly equal rewards a larger weight (Dr. GRPO, arXiv:2503.20783). A
    group of equal rewards has advantages of exactly 0. Raises ValueError for a group of one, which has no baseline.
    """
    rewards_R = np.asarray(rewards_R, dtype=np.float64)
    _, group_R, sizes = np.unique(np.asarray(group_ids_R), return_inverse=True, return_counts=True)
    if len(sizes) and sizes.min() < 2:
        raise ValueError("group size is 1; allowed: 2 or more, a group of one has no baseline.")
    counted_R = has_reward_variance(rewards_R, group_ids_R) & np.isfinite(rewards_R)
    counts = np.bincount(group_R, weights=counted_R, minlength=len(sizes))

    def mean(values_R: np.ndarray) -> np.ndarray:
        sums = np.bincount(group_R, weights=np.where(counted_R, values_R, 0.0), minlength=len(sizes))
        return (sums / np.maximum(1, counts))[group_R]

    advantages_R = rewards_R - mean(rewards_R)
    if kind == "mean_std":
        advantages_R /= np.where(counted_R, np.sqrt(mean(advantages_R**2)), 1.0)
    elif kind == "leave_one_out":
        advantages_R *= (counts / np.maximum(1, counts - 1))[group_R]
    return np.where(counted_R, advantages_R, 0.0).astype(np.float32)


def has_reward_variance(rewards_R: np.ndarray, group_ids_R: Sequence[str]) -> np.ndarray:
    """Which trajectories are in a group whose rewards differ, bool [R]: only these have a gradient."""
    rewards_R, group_R = np.asarray(rewards_R, dtype=np.float64), np.unique(group_ids_R, return_inverse=True)[1]
    low_R, high_R, known_R = np.full(len(rewards_R), np.inf), np.full(len(rewards_R), -np.inf), np.isfinite(rewards_R)
    np.minimum.at(low_R, group_R[known_R], rewards_R[known_R])  # at the place of the group's number
    np.maximum.at(high_R, group_R[known_R], rewards_R[known_R])
    return differ(low_R, high_R)[group_R]


def differ(low: Any, high: Any) -> Any:
    """Whether the lowest and the highest reward of a group are different ones: bool of any shape, as both are."""
    return high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))


def add_advantages(batch: pa.Table, kind: str = "mean") -> tuple[pa.Table, dict[str, float]]:
    """The batch with its `advantage` column, and metrics. A trajectory counts once, however many samples it has."""
    trajectory, firsts = trajectory_numbers(batch)
    trajectories = batch.select(["reward", "group_id"]).take(firsts)
    rewards_R, group_ids_R = trajectories["reward"].to_numpy(), trajectories["group_id"].to_pylist()
    advantages_R = group_advantages(rewards_R, group_ids_R, kind)
    kept_R = has_reward_variance(rewards_R, group_ids_R)
    return with_column(batch, ADVANTAGE, advantages_R[trajectory].tolist()), {
        "advantage/dropped_share": float(1 - kept_R.mean()),
        "advantage/abs_mean": float(np.abs(advantages_R[kept_R]).mean()) if kept_R.any() else 0.0,
    }
