"""Flyte shell of the reference scoring."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, read_metrics, stage_context, stage_folder, write_metrics


@task(cache=True, cache_version=CACHE_VERSION, **pod("training"))
def score_reference(
    run: Run, config: GrpoConfig, batch: FlyteDirectory, reference: FlyteDirectory, iteration: int
) -> FlyteDirectory:
    """Add the log-probabilities of the frozen policy 0."""
    from tasks.lineage import records as lineage
    from tasks.peak_memory import peak_memory
    from tasks.records import read_batch, write_batch
    from tasks.reference.score import score_batch

    with stage_context(run, "score_reference"):
        source = Path(batch.download())
        scored, metrics = score_batch(read_batch(source), Path(reference.download()), config.training, config.rollout)
        folder = write_batch(scored, stage_folder(run, "scored", iteration))
        metrics |= peak_memory("reference")
        lineage.carry(source, folder)
        write_metrics(run, folder, metrics, step=iteration, carried=read_metrics(source), sources=[source])
    return FlyteDirectory(str(folder))
