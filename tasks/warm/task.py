"""Flyte shell of a warm pod: several whole iterations in one process, whose engine and trainer stay open."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flytekit import FlyteContextManager, task
from flytekit.types.directory import FlyteDirectory

from tasks.buffer.training_batch import TrainingBatch
from tasks.config import GrpoConfig, Run
from tasks.folders import run_folder
from tasks.lineage.records import source_of
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, stage
from tasks.tracking import console
from tasks.warm.iteration import one_iteration
from tasks.warm.progress import Progress


class Iterations(NamedTuple):
    """What iterations made, each list in their order, and the last training batch."""

    policies: list[FlyteDirectory]
    states: list[FlyteDirectory]
    batches: list[FlyteDirectory]
    training_batch: TrainingBatch


@task(cache=True, cache_version=CACHE_VERSION, **pod("warm"))
def warm_iterations(
    run: Run,
    config: GrpoConfig,
    first: FlyteDirectory,
    begin: int,
    end: int,
    policy: FlyteDirectory,
    state: FlyteDirectory | None,
    batches: list[FlyteDirectory],
    training_batch: TrainingBatch,
) -> Iterations:
    """Iterations `begin` to `end` - 1 of lag 0, on one rank. What each made is in place before the next begins."""
    from tasks.policy.machine import fitted_beside_trainer

    access = FlyteContextManager.current_context().file_access
    with stage(run, "warm_iterations"):
        config = fitted_beside_trainer(Path(policy.download()), config)
    progress = Progress(access.get_filesystem_for_path(source_of(first)), source_of(first), run)
    made = Iterations([], [], [], training_batch)
    for v in range(begin, end):
        if done := progress.find(v):
            console.stage(f"iteration {v} is done, by a pod before this one")
            policy, now, batch = map(FlyteDirectory.from_source, (done.policy, done.state, done.batch))
            training_batch = done.training_batch
        else:
            found = one_iteration(
                run,
                config,
                config.training,
                v,
                first=first,
                sampler=policy,
                policy=policy,
                state=state,
                batches=batches,
                training_batch=training_batch,
                call=here,
            )
            policy, now, batch = found.trained.policy, found.trained.state, found.batches[-1]
            training_batch = found.training_batch
            progress.keep(v, source_of(policy), source_of(now), source_of(batch), training_batch)
        batches = [*batches, batch][-(config.buffer.max_age + 1) :]
        for old in (*made.policies, *made.states):  # in place, and no stage to come reads them
            if Path(old.path).is_relative_to(run_folder(run.name)):
                shutil.rmtree(old.path, ignore_errors=True)
        made = Iterations([*made.policies, policy], [*made.states, now], [*made.batches, batch], training_batch)
        state = now
    return made


KEPT = ("compute_advantages", "train")  # what later pods read; the batches before are columns of the trajectories


def here(task: Any) -> Callable[..., Any]:
    """The function of a stage, whose results are put in place at once."""
    name = task.task_function.__name__

    def called(**inputs: Any) -> Any:
        result: Any = task.task_function(**inputs)
        if name == "rollout":
            from tasks.rollout.engine import sleep

            sleep()  # the trainer needs the memory
        if name not in KEPT:
            return result
        return result._make(map(in_place, result)) if name == "train" else in_place(result)

    return called


def in_place(folder: FlyteDirectory) -> FlyteDirectory:
    """A folder of this machine, uploaded; what reads it here reads the local one."""
    path = str(folder.path)
    local = FlyteDirectory(path)
    local._remote_source = FlyteContextManager.current_context().file_access.put_raw_data(path)
    return local
