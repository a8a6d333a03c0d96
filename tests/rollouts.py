"""A whole rollout by one worker, as its stage does it."""

from pathlib import Path

import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.progress import ProgressCallback, no_progress
from tasks.rollout.batch import batch_metrics
from tasks.rollout.worker import RolloutWorker


def sample_batch(
    policy: Path,
    config: RolloutConfig,
    *,
    environment: str,
    url: str,
    run_seed: int,
    iteration: int,
    progress: ProgressCallback = no_progress,
) -> tuple[pa.Table, dict[str, float]]:
    """The batch and its metrics."""
    worker = RolloutWorker(policy, config, environment, url, run_seed, iteration, progress)
    batch, _ = worker.play(range(config.max_groups))
    return batch, batch_metrics(batch, worker.play_s, worker.setup_s)
