"""A comparison that may be looked at after every task: evidence that one policy gets more than another.

A bet is placed on each paired difference x of rewards, in [-1, 1] once divided by the width of their range:

    wealth_t = product over i <= t of (1 + stake_i x_i)        stake_i from the differences before i, in [0, 1/2]

If the policy is no better, E[x] <= 0, the wealth is a non-negative supermartingale that begins at 1. It reaches
1 / ALPHA with a probability of at most ALPHA, whenever one looks and however long (Ville's inequality). The stake is
about that of fastest growth, by Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
JRSS B 86 (2024), section B.3; any other that knows only the past keeps the guarantee.
"""

from collections.abc import Sequence

import numpy as np

from tasks.environments.interface import EnvironmentSpec
from tasks.settings import refusal, require

ALPHA = 0.025  # as of one side of a 95 % interval
ENOUGH = 1 / ALPHA  # evidence at which a policy is surely better
LARGEST_STAKE = 0.5


def evidence(differences: Sequence[float], width: float) -> np.ndarray:
    """The wealth after each difference, [T]; each is at most `width` to either side, else ValueError.

    >>> evidence([1.0, 1.0], width=1.0).round(3).tolist()
    [1.0, 1.5]
    """
    x_T = np.asarray(differences, dtype=np.float64) / width
    if len(x_T) and np.abs(x_T).max() > 1 + 1e-9:
        most = float(np.abs(x_T).max() * width)
        raise ValueError(f"two rewards on one task differ by {most:g}; allowed: {width:g}, the environment's range.")
    seen_T = np.arange(len(x_T))  # before each
    sums_T, squares_T = (np.concatenate([[0.0], np.cumsum(of)[:-1]])[: len(x_T)] for of in (x_T, x_T**2))
    mean_T = sums_T / (seen_T + 1)
    variance_T = (0.25 + squares_T) / (seen_T + 1) - mean_T**2
    stake_T = np.clip(mean_T / (variance_T + mean_T**2), 0.0, LARGEST_STAKE)
    return np.exp(np.cumsum(np.log1p(stake_T * x_T)))


def reward_range(spec: EnvironmentSpec, environment: str) -> tuple[float, float]:
    """What an episode's reward lies between. Raises ValueError where a sequential comparison has no guarantee."""
    allowed = "fixed, as the environment {} does not say the range of its rewards (reward_range)"
    if spec.reward_range is None:
        raise ValueError(refusal("evaluation.comparison", "sequential", allowed.format(environment)))
    allowed = "fixed, as the environment {} has only so many test tasks"
    require(spec.test_tasks is None, "evaluation.comparison", "sequential", allowed.format(environment))
    return spec.reward_range
