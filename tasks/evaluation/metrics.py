"""From episodes to numbers: means with their 95 % intervals, and pass@k.

An episode that ended in an error says nothing about the policy: it counts only in the share "error".
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import comb, sqrt

import numpy as np

from tasks.environments.interface import EnvironmentSpec, Episode, Metric
from tasks.evaluation.records import Mean, Results

Z95 = 1.959964  # the normal distribution's two-sided 95 % point
PASS_AT = (1, 4, 8)  # the k of pass@k
# Beside the metrics of each environment: shares of episodes by their finish reason.
BUILT_IN = (
    Metric("invalid", "invalid replies", ".1%"),
    Metric("truncated", "truncated", ".1%"),
    Metric("error", "errors", ".1%"),
)


def mean_of(values: Sequence[float] | np.ndarray) -> Mean:
    """Mean and half the width of its 95 % interval, by the normal approximation; of 2 values or more."""
    array = np.asarray(values, dtype=np.float64)
    return Mean(float(array.mean()), float(Z95 * array.std(ddof=1) / sqrt(len(array))))


def ended(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes that count. Raises RuntimeError when these are fewer than 2, which have no interval."""
    counted = _counted(episodes)
    if len(counted) < 2:
        reasons = [episode.error for episode in episodes if episode.error]
        first = f"; the first error: {reasons[0]}" if reasons else ""
        raise RuntimeError(f"{len(counted)} of {len(episodes)} episodes ended without an error, 2 are needed{first}")
    return counted


def measure(spec: EnvironmentSpec, episodes: Sequence[Episode], sampled: Sequence[Episode] = ()) -> Results:
    """Mean reward and metrics, of all and of each part. What fewer than two episodes or steps have is left out.

    Where rewards are from 0 to 1, pass@k is of the `sampled` episodes.
    """
    chances = by_part(spec, sampled)
    parts = {
        name: _means(spec, of, chances.get(name, ()))
        for name, of in by_part(spec, episodes).items()
        if len(_counted(of)) > 1
    }
    return _means(spec, episodes, sampled).replace(parts=parts)


def by_part(spec: EnvironmentSpec, episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """The episodes of each part of the environment, in the order of its name; one may be in several, or in none."""
    found: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        for part in spec.parts(episode.task):
            found[part].append(episode)
    return dict(sorted(found.items()))


def _counted(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if episode.finish_reason != "error"]


def _means(spec: EnvironmentSpec, episodes: Sequence[Episode], sampled: Sequence[Episode]) -> Results:
    counted = ended(episodes)
    scored = [(episode, spec.score(episode)) for episode in counted]
    values = {m.key: [value for found in scored for value in _values(m, *found)] for m in spec.metrics}
    for metric in BUILT_IN:
        among = episodes if metric.key == "error" else counted
        values[metric.key] = [float(episode.finish_reason == metric.key) for episode in among]
    return Results(
        reward=mean_of([episode.reward for episode in counted]),
        metrics={key: mean_of(found) for key, found in values.items() if len(found) > 1},
        pass_at=pass_at(sampled, PASS_AT) if spec.reward_range == (0, 1) else {},
    )


def _values(metric: Metric, episode: Episode, score: Mapping[str, float]) -> list[float]:
    """What one episode adds to the values of a metric: its score, else each of its steps, their mean or their total."""
    if metric.key in score:
        return [score[metric.key]]
    steps = [step.metrics[metric.key] for step in episode.steps if metric.key in step.metrics]
    return steps if metric.per == "step" or not steps else [sum(steps) / (1 if metric.total else len(steps))]


def pass_at(episodes: Sequence[Episode], ks: Sequence[int]) -> dict[str, float]:
    """For each k the chance that at least one of k samples of a task is solved, its reward 1; mean over the tasks.

    Of n samples of a task c are solved: 1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al.,
    arXiv:2107.03374. A task with fewer than k samples is left out of the mean for this k.
    """
    solved: dict[str, list[bool]] = defaultdict(list)
    for episode in _counted(episodes):
        solved[episode.task.id].append(episode.reward > 1 - 1e-6)
    counts = [(len(samples), sum(samples)) for samples in solved.values()]
    chances = {k: [1 - comb(n - c, k) / comb(n, k) for n, c in counts if n >= k] for k in ks}
    return {str(k): float(np.mean(found)) for k, found in chances.items() if found}
