"""The log-probabilities of the frozen policy 0, by the forward pass that also trains."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.config import RolloutConfig, TrainingConfig
from tasks.records import REFERENCE, trajectory_numbers, with_column
from tasks.training.packing import flat_samples
from tasks.training.warm import open_scorer


def score_batch(
    batch: pa.Table, reference: Path, training: TrainingConfig, rollout: RolloutConfig
) -> tuple[pa.Table, dict[str, float]]:
    """The batch with its `reference_logprobs` column, and metrics.

    The values are at the sampling temperature, 0 where the policy did not sample. Groups with equal rewards have no
    gradient and are never trained on, so their trajectories are not scored and have null.
    """
    scorer = open_scorer(reference, training, temperature=rollout.temperature)
    started = time.perf_counter()
    scored = has_reward_variance(batch["reward"].to_numpy(), batch["group_id"].to_pylist())
    rows = batch.filter(pa.array(scored))
    data = flat_samples(rows)
    logprobs = np.split(scorer.score(data), data.offsets_R[1:-1]) if len(data) else []
    column: list[np.ndarray | None] = [None] * len(batch)
    for row, values in zip(np.flatnonzero(scored), logprobs, strict=True):
        column[row] = values
    seconds = time.perf_counter() - started
    metrics = {"reference/scored": float(len(trajectory_numbers(rows)[1])), "time/reference_s": seconds}
    return with_column(batch, REFERENCE, column), metrics
