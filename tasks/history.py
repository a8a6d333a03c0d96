"""What each iteration leaves for the report: one line of JSON, copied from policy to policy.

    policies/00007/_history.jsonl = policies/00006/_history.jsonl + the line of iteration 6

So the last policy has the history of the whole run, on a cluster as on one machine, and no stage has to find the
batches of all others. A line has about 700 bytes, and there are never more than about LINES of them: a longer run
keeps every second, fourth, eighth … iteration. Axes: R rows of a batch, E episodes.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.folders import write_file
from tasks.json_records import Record
from tasks.records import trajectory_numbers

HISTORY = "_history.jsonl"  # the underscore keeps it out of the policy's digest, and through retention
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LINES = 256
FEW = 12  # distinct values at most that are counted one by one
COLUMNS = ["trajectory_id", "loss_mask", "reward", "turns", "outcome"]


@dataclass(frozen=True)
class Distribution(Record):
    """How one number is distributed over the episodes of a batch.

    Example, the rewards of four episodes: `Distribution(mean=-0.5, quantiles=[-1, -1, -1, -0.5, 0.7], counts=[(-1, 3),
    (1, 1)])`.
    """

    mean: float
    quantiles: list[float]  # at QUANTILES
    counts: list[tuple[float, int]]  # of each value; empty where more than FEW are distinct


@dataclass(frozen=True)
class Iteration(Record):
    """One iteration: what was played with policy `iteration`, or with lag 1 with the one before, and how long it took.

    Example: `Iteration(iteration=7, episodes=4096, played=32768, raw_reward=-0.11, invalid_share=0.001,
    truncated_share=0.0, seconds={"rollout": 2.3, "train": 4.0}, rewards=Distribution(…), tokens=Distribution(…),
    turns=Distribution(…), outcomes={"solved": 1760, …}, steps=256)`.
    """

    iteration: int
    episodes: int
    played: int  # episodes of all iterations so far, this one's included
    raw_reward: float  # mean of the environment's own, unshaped
    invalid_share: float
    truncated_share: float
    seconds: dict[str, float]  # by stage
    rewards: Distribution  # as training saw them
    tokens: Distribution  # sampled tokens an episode
    turns: Distribution  # replies an episode
    outcomes: dict[str, int]  # episodes by outcome, the FEW most frequent
    steps: int = 0  # of the optimizer in all iterations so far, this one's included


def distribution(values_E: np.ndarray) -> Distribution:
    """How the finite ones of these values are distributed."""
    values_E = values_E[np.isfinite(values_E)]
    if not len(values_E):
        return Distribution(mean=0.0, quantiles=[0.0] * len(QUANTILES), counts=[])
    distinct, counts = np.unique(values_E, return_counts=True)
    pairs = [(_short(value), int(count)) for value, count in zip(distinct, counts, strict=True)]
    return Distribution(
        mean=_short(values_E.mean()),
        quantiles=[_short(value) for value in np.quantile(values_E, QUANTILES)],
        counts=pairs if len(pairs) <= FEW else [],
    )


def iteration_of(
    batch: pa.Table, metrics: Mapping[str, float], iteration: int, played: int = 0, steps: int = 0
) -> Iteration:
    """The record of an iteration that played `batch`, which has COLUMNS, after `played` episodes and `steps` steps."""
    trajectory_R, first_E = trajectory_numbers(batch)
    masks = batch["loss_mask"].combine_chunks()
    token_trajectories = np.repeat(trajectory_R, masks.value_lengths().to_numpy())
    sampled = masks.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    tokens_E = np.bincount(token_trajectories, weights=sampled, minlength=len(first_E))
    stages = {name.removeprefix("time/").removesuffix("_s"): v for name, v in metrics.items() if name[:5] == "time/"}
    return Iteration(
        iteration=iteration,
        episodes=len(first_E),
        played=played + len(first_E),
        raw_reward=_short(metrics["rollout/raw_reward"]),
        invalid_share=_short(metrics["rollout/invalid_share"]),
        truncated_share=_short(metrics["rollout/truncated_share"]),
        seconds={stage: _short(value) for stage, value in stages.items()},
        rewards=distribution(batch["reward"].to_numpy().astype(np.float64)[first_E]),
        tokens=distribution(tokens_E),
        turns=distribution(batch["turns"].to_numpy().astype(np.float64)[first_E]),
        outcomes=dict(Counter(batch["outcome"].take(first_E).to_pylist()).most_common(FEW)),
        steps=steps + int(metrics.get("train/steps", 0)),
    )


def carry_on(before: Path, after: Path, batch: pa.Table, metrics: Mapping[str, float], iteration: int) -> None:
    """Leave in the folder of the policy `after` the history of the policy `before`, and one iteration more."""
    known = read_history(before)  # policy 0 has none
    so_far = (known[-1].played, known[-1].steps) if known else (0, 0)
    new = iteration_of(batch, metrics, iteration, *so_far)
    stride = 2 ** max(0, math.ceil(math.log2((iteration + 1) / LINES)))
    kept = [old for old in known if old.iteration % stride == 0]
    write_file(after / HISTORY, "".join(f"{line.to_json()}\n" for line in [*kept, new]))


def episodes_before(history: Sequence[Iteration], version: int) -> int:
    """Episodes played before there was this policy version; between the iterations that were kept, interpolated."""
    made = [0, *(iteration.iteration + 1 for iteration in history)]
    return round(float(np.interp(version, made, [0, *(iteration.played for iteration in history)])))


def read_history(policy: Path) -> Sequence[Iteration]:
    """All iterations that led to `policy`, in order."""
    known = policy / HISTORY
    return [Iteration.from_json(line) for line in known.read_text().splitlines()] if known.is_file() else []


def check_trained(history: Sequence[Iteration]) -> None:
    """Raise RuntimeError, in one sentence, for iterations without a single optimizer step."""
    if history and not history[-1].steps:
        last = history[-1]
        shares = f"{last.invalid_share:.1%} of the episodes invalid, {last.truncated_share:.1%} truncated"
        raise RuntimeError(
            f"no optimizer step was taken in {last.iteration + 1} iterations, the policy has the weights that it began "
            f"with: no group had rewards that differ (in the last batch {shares}, reward {last.raw_reward:+g})."
        )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
