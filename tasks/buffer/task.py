"""Flyte shell of the buffer."""

from dataclasses import dataclass
from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import BufferConfig, Record, Run
from tasks.stages import CACHE_VERSION, failing_loudly


@dataclass(frozen=True)
class Window(Record):
    """The groups that one training stage learns from. Example: Window(group_ids=["00007-00003"])."""

    group_ids: list[str]


@task(cache=True, cache_version=CACHE_VERSION)
def select_window(run: Run, config: BufferConfig, batches: list[FlyteDirectory], policy_version: int) -> Window:
    """Choose whole, recent, informative groups from the last batches."""
    from tasks.buffer.window import select_groups
    from tasks.records import read_batch
    from tasks.tracking import mlflow_run

    with failing_loudly(run):
        tables = [read_batch(Path(batch.download())) for batch in batches]
        selection = select_groups(tables, config, policy_version=policy_version, seed=run.seed)
        mlflow_run.log_metrics(run, selection.metrics, policy_version)
    return Window(group_ids=selection.group_ids)
