"""Flyte shells of the rollout: one task, or as many as there are workers and one that joins what they played."""

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flytekit import task
from flytekit.core.array_node_map_task import ArrayNodeMapTask
from flytekit.types.directory import FlyteDirectory

from tasks.config import RolloutConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, METRICS, STARTED, read_metrics, shard_context, stage, stage_folder

Call = Callable[[Any], Callable[..., Any]]  # from a task to what is called in its place

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.rollout.worker import RolloutWorker


def sampled(
    run: Run, config: RolloutConfig, policy: FlyteDirectory, iteration: int, call: Call = lambda task: task
) -> Any:
    """The nodes that sample one batch of trajectories from `policy`, by one worker or by several and a join; for one
    worker what `call` makes of its task."""
    given = {"run": run, "config": config, "policy": policy, "iteration": iteration}
    if config.workers == 1:
        return call(rollout)(**given)
    shards = shards_of(config.workers, config.shards_needed)(shard=list(range(config.workers)), **given)
    return join_rollout(shards=shards, **given)


@functools.cache  # one for all iterations, so that a compiled graph holds its template once
def shards_of(workers: int, needed: int) -> ArrayNodeMapTask:
    """The map over shards that ends well when `needed` of them do; it gives None for the others."""
    # Half a shard below the share, which Flyte keeps in 32 bits and rounds up to whole shards. Below 1 always: then
    # what the map gives is one type, whether it may lose shards or not.
    ratio = (needed - 0.5) / workers
    bound = {"run", "config", "policy", "iteration"}
    return ArrayNodeMapTask(rollout_shard, min_success_ratio=ratio, bound_inputs=bound)


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def rollout(run: Run, config: RolloutConfig, policy: FlyteDirectory, iteration: int) -> FlyteDirectory:
    """Sample one batch of trajectories from `policy`."""
    from tasks.rollout.shards import sample_batch
    from tasks.tracking import console

    with stage(run, "rollout", step=iteration) as s:
        s.carried = {STARTED: time.time()}
        with console.bar(f"rollout {iteration}", "groups") as progress:
            worker = _worker(run, config, policy, iteration, progress)
            batch, s.metrics = sample_batch(worker)
        s.metrics |= worker.curriculum.metrics
        s.result = _write(run, batch, policy, iteration)
    return FlyteDirectory(str(s.result))


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def rollout_shard(
    shard: int, run: Run, config: RolloutConfig, policy: FlyteDirectory, iteration: int
) -> FlyteDirectory:
    """Sample the episodes of one worker of `config.workers`; the join logs for all of them."""
    from tasks.folders import write_file
    from tasks.records import write_batch
    from tasks.rollout.shards import sample_shard

    allowed_failures = config.workers - config.shards_needed
    with shard_context(run, f"rollout {iteration}", shard, of=config.workers, allowed_failures=allowed_failures):
        started, worker = time.time(), _worker(run, config, policy, iteration)
        folder = write_batch(sample_shard(worker, shard), stage_folder(run, "shards", iteration) / f"{shard:05d}")
        times = {STARTED: started, "time/rollout_s": worker.play_s, "time/rollout_setup_s": worker.setup_s}
        write_file(folder / METRICS, json.dumps(times) + "\n")
    return FlyteDirectory(str(folder))


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def join_rollout(
    shards: list[FlyteDirectory | None], run: Run, config: RolloutConfig, policy: FlyteDirectory, iteration: int
) -> FlyteDirectory:
    """Make of what the workers sampled the batch that one worker would have sampled; None stands for a lost worker."""
    from tasks.records import read_batch
    from tasks.rollout.shards import join_shards

    with stage(run, "rollout", step=iteration) as s:
        folders = [Path(shard.download()) if shard else None for shard in shards]
        measured = [read_metrics(folder) for folder in folders if folder]
        s.carried = {STARTED: min(times[STARTED] for times in measured)}
        worker = _worker(run, config, policy, iteration)
        batch, s.metrics = join_shards(worker, [read_batch(f) if f else None for f in folders], measured)
        s.metrics |= worker.curriculum.metrics
        s.result = _write(run, batch, policy, iteration)
    return FlyteDirectory(str(s.result))


def _worker(run: Run, config: RolloutConfig, policy: FlyteDirectory, *rest: Any) -> "RolloutWorker":
    from tasks.rollout.worker import RolloutWorker

    return RolloutWorker(Path(policy.download()), config, run.environment, run.environment_url, run.seed, *rest)


def _write(run: Run, batch: "pa.Table", policy: FlyteDirectory, iteration: int) -> Path:
    """The folder of a whole batch, which names the policy that sampled it."""
    from tasks.folders import run_folder
    from tasks.lineage import records as lineage
    from tasks.policy.checkpoint import read_manifest
    from tasks.records import write_batch

    folder = write_batch(batch, stage_folder(run, "rollouts", iteration))
    by = lineage.named(read_manifest(Path(policy.download())), lineage.source_of(policy), run_folder(run.name))
    lineage.write(folder, lineage.BatchLineage(iteration=iteration, sampled_by=by))
    return folder
