"""Flyte shell of the training stage."""

import time
from pathlib import Path
from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.buffer.task import Window
from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import (
    CACHE_VERSION,
    STARTED,
    failing_loudly,
    read_metrics,
    show_iteration,
    stage_folder,
    timed,
    write_metrics,
)


class Trained(NamedTuple):
    """The next policy version, and what its training needs to go on."""

    policy: FlyteDirectory
    state: FlyteDirectory


@task(cache=True, cache_version=CACHE_VERSION, **pod("training"))
def train(
    run: Run,
    config: GrpoConfig,
    iterations: int,
    window: Window,
    batches: list[FlyteDirectory],
    policy: FlyteDirectory,
    sampler: FlyteDirectory,
    state: FlyteDirectory | None,
    iteration: int,
) -> Trained:
    """Train policy `iteration` on the window; returns policy `iteration + 1`.

    `sampler` is the policy that sampled the last of the batches: the same as `policy`, or with lag 1 its parent.
    """
    from tasks.buffer.window import take
    from tasks.records import read_batch
    from tasks.training.train import next_policy

    with failing_loudly(run), timed(run, "train", iteration):
        folders = [Path(batch.download()) for batch in batches]
        target, new_state = stage_folder(run, "policies", iteration + 1), stage_folder(run, "states", iteration + 1)
        metrics = next_policy(
            take([read_batch(folder) for folder in folders], window.group_ids),
            Path(policy.download()),
            Path(sampler.download()),
            Path(state.download()) if state else None,
            config,
            run_token=run.token,
            seed=run.seed,
            iterations=iterations,
            target=target,
            target_state=new_state,
        )
        sampled = read_metrics(folders[-1])
        started = sampled.pop(STARTED)
        worked = sampled["time/rollout_s"] + sampled.get("time/reference_s", 0.0) + metrics["time/train_s"]
        metrics["time/iteration_s"] = time.time() - started
        metrics["time/overhead_s"] = metrics["time/iteration_s"] - worked
        write_metrics(run, target, metrics, step=iteration)
        show_iteration(run, iterations, iteration + 1, {**sampled, **metrics}, started)
    return Trained(policy=FlyteDirectory(str(target)), state=FlyteDirectory(str(new_state)))
