"""Flyte shell of the advantages."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, STARTED, read_metrics, stage_context, stage_folder, write_metrics


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def compute_advantages(run: Run, config: GrpoConfig, batch: FlyteDirectory, iteration: int) -> FlyteDirectory:
    """Add the group-relative advantages."""
    from tasks.advantage.advantages import add_advantages
    from tasks.lineage import records as lineage
    from tasks.records import read_batch, write_batch
    from tasks.tracking.traces import log_episodes

    with stage_context(run, "compute_advantages"):
        source = Path(batch.download())
        complete, metrics = add_advantages(read_batch(source), config.algorithm.advantage)
        folder = write_batch(complete, stage_folder(run, "trajectories", iteration))
        measured = read_metrics(source)
        lineage.carry(source, folder)
        log_episodes(
            run,
            config,
            complete,
            iteration=iteration,
            started=measured[STARTED],
            seconds=measured["time/rollout_s"],
        )
        write_metrics(run, folder, metrics, step=iteration, carried=measured, sources=[source])
    return FlyteDirectory(str(folder))
