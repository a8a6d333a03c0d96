"""Flyte task of the buffer."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.buffer.training_batch import TrainingBatch
from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, stage


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def select_training_batch(
    run: Run, config: GrpoConfig, batches: list[FlyteDirectory], before: TrainingBatch, policy_version: int
) -> TrainingBatch:
    """Select whole, recent groups with a gradient from the last batches."""
    from tasks.buffer.selection import COLUMNS, select_groups
    from tasks.records import read_batch

    with stage(run, "select_training_batch") as s:
        selected = select_groups(
            [read_batch(Path(batch.download()), COLUMNS) for batch in batches],
            config.buffer,
            wanted=config.buffer.groups or config.rollout.groups * config.buffer.reuse,
            uses=before.uses,
            policy_version=policy_version,
            seed=run.seed,
        )
        return selected.replace(metrics={**selected.metrics, **s.seconds()})
