"""Flyte shell of the first stage."""

from flytekit import task

from tasks.config import GrpoConfig, Run


@task
def prepare(
    run_name: str,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    seed: int,
    lag: int,
    config: GrpoConfig,
) -> Run:
    """Check every input, then open the run or find it again."""
    from tasks.folders import use_scratch_folder
    from tasks.run.prepare import check_inputs, open_run
    from tasks.tracking import console

    inputs = {
        "run_name": run_name,
        "policy": policy,
        "environment": environment,
        "environment_url": environment_url,
        "iterations": iterations,
        "seed": seed,
        "lag": lag,
    }
    check_inputs(**inputs, config=config)  # type: ignore[arg-type]
    use_scratch_folder()
    run = open_run(inputs, config)
    console.stage(f"run {run.name}")
    return run
