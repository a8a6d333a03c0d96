"""Flyte shell of the stage that brings policy 0 of a run."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, stage_folder, timed


@task(cache=True, cache_version=CACHE_VERSION, **pod("policy"))
def first_policy(run: Run, policy: str, config: GrpoConfig) -> FlyteDirectory:
    """Policy 0: `tiny`, made on the spot, or a copy of a user's checkpoint, from a directory or from the hub."""
    from tasks.policy import hub
    from tasks.policy.checkpoint import adopt
    from tasks.tracking import console

    with failing_loudly(run), timed(run, "first_policy", 0):
        if policy == "tiny":
            from tasks.training.cold_start import tiny_policy  # seconds, which a checkpoint need not wait for

            console.stage("policy tiny: cold start")
            thinking = config.rollout.thinking
            source = tiny_policy(config.tiny, config.training, run.environment, run.seed, thinking=thinking)
        elif hub.is_hub_name(policy):
            console.stage(f"policy {policy}: from the hub")
            source = hub.fetch(policy)
        else:
            source = Path(policy)
        folder = stage_folder(run, "policies", 0)
        adopt(source, folder)
    return FlyteDirectory(str(folder))
