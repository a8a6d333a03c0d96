"""Flyte shell of the buffer."""

from dataclasses import dataclass, field
from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Record, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, timed


@dataclass(frozen=True)
class Window(Record):
    """The groups that one training stage learns from, and how often groups were learned from so far.

    Produced by `select_window`, consumed by `train` and the next `select_window`. Example:
    `Window(group_ids=["00007-00003"], uses={"00006-00011": 2, "00007-00003": 1})`.
    """

    group_ids: list[str] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def select_window(
    run: Run, config: GrpoConfig, batches: list[FlyteDirectory], before: Window, policy_version: int
) -> Window:
    """Choose whole, recent, informative groups from the last batches."""
    from tasks.buffer.window import COLUMNS, select_groups
    from tasks.records import read_batch
    from tasks.tracking import mlflow_run

    with failing_loudly(run), timed(run, "select_window", policy_version):
        tables = [read_batch(Path(batch.download()), COLUMNS) for batch in batches]
        selection = select_groups(
            tables,
            config.buffer,
            wanted=config.buffer.groups or config.rollout.groups * config.buffer.reuse,
            uses=before.uses,
            policy_version=policy_version,
            seed=run.seed,
        )
        mlflow_run.log_metrics(run, selection.metrics, policy_version)
    return Window(group_ids=selection.group_ids, uses=selection.uses)
