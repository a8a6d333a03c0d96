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


class Evidence:
    """The wealth of the bets so far. Differences may come in parts: the numbers are those of all of them at once.

    >>> Evidence(width=1.0).add([1.0, 1.0]).round(3).tolist()
    [1.0, 1.5]
    """

    def __init__(self, width: float):
        self.width = width  # of the range of rewards
        self.most = 1.0  # the most wealth that there was after any difference
        self._seen, self._sum, self._squares, self._log = 0, 0.0, 0.0, 0.0

    def add(self, differences: Sequence[float]) -> np.ndarray:
        """The wealth after each of these differences, [T]; each is at most `width` to either side, else ValueError."""
        x_T = np.asarray(differences, dtype=np.float64) / self.width
        if not len(x_T):
            return x_T
        if np.abs(x_T).max() > 1 + 1e-9:
            most = float(np.abs(x_T).max() * self.width)
            allowed = f"{self.width:g}, the environment's range"
            raise ValueError(f"two rewards on one task differ by {most:g}; allowed: {allowed}.")
        seen_T = self._seen + np.arange(len(x_T))  # before each
        sums, squares = (np.cumsum([start, *of]) for start, of in ((self._sum, x_T), (self._squares, x_T**2)))
        mean_T = sums[:-1] / (seen_T + 1)
        variance_T = (0.25 + squares[:-1]) / (seen_T + 1) - mean_T**2
        stake_T = np.clip(mean_T / (variance_T + mean_T**2), 0.0, LARGEST_STAKE)
        logs = np.cumsum([self._log, *np.log1p(stake_T * x_T)])
        self._seen, self._sum, self._squares, self._log = self._seen + len(x_T), sums[-1], squares[-1], logs[-1]
        wealth_T = np.exp(logs[1:])
        self.most = max(self.most, float(wealth_T.max()))
        return wealth_T


def reward_range(spec: EnvironmentSpec, environment: str) -> tuple[float, float]:
    """What an episode's reward lies between. Raises ValueError where a sequential comparison has no guarantee."""
    allowed = "fixed, as the environment {} does not say the range of its rewards (reward_range)"
    if spec.reward_range is None:
        raise ValueError(refusal("evaluation.comparison", "sequential", allowed.format(environment)))
    allowed = "fixed, as the environment {} has only so many test tasks"
    require(spec.test_tasks is None, "evaluation.comparison", "sequential", allowed.format(environment))
    return spec.reward_range
