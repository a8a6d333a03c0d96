"""Flyte shell of the buffer."""

from dataclasses import dataclass, field
from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.json_records import Record
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, stage_context, stage_seconds


@dataclass(frozen=True)
class TrainingBatch(Record):
    """The groups that one training stage learns from, and how often groups were learned from so far.

    Produced by `select_training_batch`, consumed by `train` and the next `select_training_batch`. Example:
    `Window(group_ids=["00007-00003"], uses={"00006-00011": 2, "00007-00003": 1}, metrics={"buffer/groups": 1.0})`.
    """

    group_ids: list[str] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # of the selection; `train` logs them with its own


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def select_training_batch(
    run: Run, config: GrpoConfig, batches: list[FlyteDirectory], before: TrainingBatch, policy_version: int
) -> TrainingBatch:
    """Choose whole, recent, informative groups from the last batches."""
    from tasks.buffer.selection import COLUMNS, select_groups
    from tasks.records import read_batch

    with stage_context(run, "select_training_batch"):
        tables = [read_batch(Path(batch.download()), COLUMNS) for batch in batches]
        selection = select_groups(
            tables,
            config.buffer,
            wanted=config.buffer.groups or config.rollout.groups * config.buffer.reuse,
            uses=before.uses,
            policy_version=policy_version,
            seed=run.seed,
        )
        metrics = {**selection.metrics, **stage_seconds()}
    return TrainingBatch(group_ids=selection.group_ids, uses=selection.uses, metrics=metrics)
