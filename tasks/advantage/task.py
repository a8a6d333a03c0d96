"""Flyte shell of the advantages."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, read_metrics, stage_folder, timed, write_metrics


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def compute_advantages(run: Run, config: GrpoConfig, batch: FlyteDirectory, iteration: int) -> FlyteDirectory:
    """Add the group-relative advantages."""
    from tasks.advantage.advantages import add_advantages
    from tasks.records import read_batch, write_batch

    with failing_loudly(run), timed(run, "compute_advantages", iteration):
        source = Path(batch.download())
        complete, metrics = add_advantages(read_batch(source), config.algorithm.advantage)
        folder = write_batch(complete, stage_folder(run, "trajectories", iteration))
        write_metrics(run, folder, metrics, step=iteration, carried=read_metrics(source))
    return FlyteDirectory(str(folder))
