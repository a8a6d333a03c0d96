"""Flyte shell of the rollout."""

import time
from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import RolloutConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, STARTED, failing_loudly, stage_folder, timed, write_metrics


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def rollout(run: Run, config: RolloutConfig, policy: FlyteDirectory, iteration: int) -> FlyteDirectory:
    """Sample one batch of trajectories from `policy`."""
    from tasks.records import write_batch
    from tasks.rollout.rollout import sample_batch

    with failing_loudly(run), timed(run, "rollout", iteration):
        started = time.time()
        batch, metrics = sample_batch(
            Path(policy.download()),
            config,
            environment=run.environment,
            url=run.environment_url,
            run_seed=run.seed,
            iteration=iteration,
        )
        folder = write_batch(batch, stage_folder(run, "rollouts", iteration))
        write_metrics(run, folder, metrics, step=iteration, carried={STARTED: started})
    return FlyteDirectory(str(folder))
