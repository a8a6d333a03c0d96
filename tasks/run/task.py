"""Flyte shells of the first stage, and of what a run removes on its way."""

from typing import NamedTuple

from flytekit import FlyteContextManager, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.error.error import FlyteError

from tasks.config import GrpoConfig, Run
from tasks.here import is_here
from tasks.infrastructure import recoverable
from tasks.resources import FILE, ROLES, pod
from tasks.settings import require
from tasks.stages import stage


class Created(NamedTuple):
    """A run, and its settings with every field set, for all later stages."""

    run: Run
    config: GrpoConfig


@task(**pod("cpu"))
def create_run(
    run_name: str,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    seed: int,
    lag: int,
    config: GrpoConfig,
) -> Created:
    """Check every input, then open the run or find it again."""
    inputs: dict = {"run_name": run_name, "policy": policy, "environment": environment}
    inputs |= {"environment_url": environment_url, "iterations": iterations, "seed": seed, "lag": lag}
    with recoverable():
        return _created(inputs, config, lag)


def _created(inputs: dict, config: GrpoConfig, lag: int) -> Created:
    from tasks.folders import use_scratch_folder
    from tasks.policy.machine import GIB, listed, memory_left
    from tasks.run import ending
    from tasks.run.create import another_of_that_name, check_inputs, check_memory, open_run, start_of
    from tasks.run.missing import forget_missing
    from tasks.tracking import console
    from tasks.tracking.provenance import flyte_execution

    policy, here = inputs["policy"], is_here()
    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    source = start_of(policy, inputs["run_name"], files)
    resolved, known = check_inputs({**inputs, "policy": source.uri}, config, here=here, files=files)
    needs = check_memory(known, policy, resolved, lag=lag, here=here)
    if not here:
        shared, gpus = resolved.rollout.tensor_parallel, max(1, ROLES["rollout"].gpu)
        require(shared <= gpus, "rollout.tensor_parallel", shared, f"at most {gpus}, the rollout's gpu in {FILE}")
    use_scratch_folder()
    run = open_run(inputs, config, resolved, needs, source, {} if here else flyte_execution())
    if here:
        ending.watch(run)
        if gone := forget_missing(run.name):
            console.stage(f"{gone} results of {run.name} are gone, and made again where they are needed")
    elif said := another_of_that_name(run):
        console.stage(said)
    left = f"; {memory_left()[0] / GIB:.1f} left here" if here else ""
    console.stage(f"run {run.name}, expected memory in GiB: {listed(needs)}{left}")
    return Created(run, resolved)


@task(**pod("cpu"))
def training_failed(
    run_name: str,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    seed: int,
    lag: int,
    config: GrpoConfig,
    err: FlyteError | None = None,
) -> None:
    """What a cluster runs when `grpo` has failed, with the same inputs: MLflow is told, if no stage could."""
    from tasks.run import ending

    ending.tell_failed(err.message if err else "")


@task(**pod("cpu"))
def apply_retention(run: Run, folders: list[FlyteDirectory], after: FlyteDirectory) -> None:
    """Empty `folders`, policies and trainer states that no stage reads any more once policy `after` exists."""
    from tasks.run.retention import empty

    access = FlyteContextManager.current_context().file_access
    with stage(run):
        for folder in folders:
            uri = str(folder.remote_source or folder.path)
            empty(access.get_filesystem_for_path(uri), uri.rstrip("/"))
