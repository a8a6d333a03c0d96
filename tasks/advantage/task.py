"""Flyte task of the advantages."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, STARTED, read_metrics, stage, stage_folder


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def compute_advantages(run: Run, config: GrpoConfig, batch: FlyteDirectory, iteration: int) -> FlyteDirectory:
    """Add the group-relative advantages."""
    from tasks.advantage.advantages import add_advantages
    from tasks.lineage import records as lineage
    from tasks.records import read_batch, write_batch
    from tasks.tracking.traces import log_episodes

    with stage(run, "compute_advantages", step=iteration) as s:
        source = Path(batch.download())
        rows, s.metrics = add_advantages(read_batch(source), config.algorithm.advantage)
        s.result = write_batch(rows, stage_folder(run, "trajectories", iteration))
        s.carried, s.sources = read_metrics(source), [source]
        lineage.carry(source, s.result)
        started, seconds = s.carried[STARTED], s.carried["time/rollout_s"]
        log_episodes(run, config, rows, iteration=iteration, started=started, seconds=seconds)
    return FlyteDirectory(str(s.result))
