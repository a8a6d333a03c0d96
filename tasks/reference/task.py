"""Flyte task of the reference scoring."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, read_metrics, stage, stage_folder


@task(cache=True, cache_version=CACHE_VERSION, **pod("training"))
def score_reference(
    run: Run, config: GrpoConfig, batch: FlyteDirectory, reference: FlyteDirectory, iteration: int
) -> FlyteDirectory:
    """Add the log-probabilities of the frozen policy 0."""
    from tasks.lineage import records as lineage
    from tasks.records import read_batch, write_batch
    from tasks.reference.score import score_batch

    with stage(run, "score_reference", step=iteration) as s:
        source = Path(batch.download())
        rows, s.metrics = score_batch(read_batch(source), Path(reference.download()), config.training, config.rollout)
        s.result = write_batch(rows, stage_folder(run, "scored", iteration))
        s.carried, s.sources = read_metrics(source), [source]
        lineage.carry(source, s.result)
    return FlyteDirectory(str(s.result))
