"""Flyte shell of the training stage."""

from pathlib import Path
from typing import NamedTuple

from flytekit import FlyteContextManager, task
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
    from tasks.history import carry_on
    from tasks.records import read_batch
    from tasks.tracking import console
    from tasks.training.train import next_policy

    execution = FlyteContextManager.current_context().execution_state
    here = execution is not None and execution.is_local_execution()
    with failing_loudly(run):
        folders = [Path(batch.download()) for batch in batches]
        target, new_state = stage_folder(run, "policies", iteration + 1), stage_folder(run, "states", iteration + 1)
        tables, before = [read_batch(folder) for folder in folders], Path(policy.download())
        with console.bar(f"training policy {iteration + 1}", "steps") as watch:
            metrics = next_policy(
                take(tables, window.group_ids),
                before,
                Path(sampler.download()),
                Path(state.download()) if state else None,
                config,
                run_token=run.token,
                seed=run.seed,
                iterations=iterations,
                target=target,
                target_state=new_state,
                watch=watch,
            )
        sampled = read_metrics(folders[-1])
        started = sampled.pop(STARTED)
        worked = sampled["time/rollout_s"] + sampled.get("time/reference_s", 0.0) + metrics["time/train_s"]
        metrics["time/iteration_s"] = console.seconds_here(started, worked, here=here)
        metrics["time/overhead_s"] = metrics["time/iteration_s"] - worked
        write_metrics(run, target, metrics, step=iteration)
        carry_on(before, target, tables[-1], {**sampled, **metrics}, iteration)
        show_iteration(run, iterations, iteration + 1, {**sampled, **metrics}, metrics["time/iteration_s"])
    return Trained(policy=FlyteDirectory(str(target)), state=FlyteDirectory(str(new_state)))
