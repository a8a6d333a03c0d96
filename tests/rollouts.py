"""A whole rollout by one worker, as its stage does it."""

from pathlib import Path

import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.rollout.batch import batch_metrics
from tasks.rollout.worker import RolloutWorker


def sample_batch(
    policy: Path, config: RolloutConfig, *, environment: str, url: str, run_seed: int, iteration: int
) -> tuple[pa.Table, dict[str, float]]:
    """The batch and its metrics."""
    worker = RolloutWorker(policy, config, environment, url, run_seed, iteration)
    batch, _ = worker.play(range(config.max_groups))
    return batch, batch_metrics(batch, worker.play_s, worker.setup_s)
