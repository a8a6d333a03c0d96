"""An evaluated policy becomes a version in the registry, with what was measured as its tags."""

from collections.abc import Callable
from pathlib import Path

from tasks.config import GrpoConfig, Run
from tasks.evaluation.evaluate import Evaluation
from tasks.policy.checkpoint import read_info
from tasks.tracking import registry

MEASURED = ("expected_reward", "expected_reward_ci95", "regret", "regret_ci95", "invalid_rate", "games")


def register_evaluated(
    run: Run, config: GrpoConfig, folder: Path, place: str, found: Evaluation, there: Callable[[str], bool]
) -> registry.Version:
    """The version of the policy in `folder`, which stays at `place`; `there` says whether something is at a place."""
    info = read_info(folder)
    return registry.register(
        run.tracking_uri,
        registry.model_name(config.tracking.model, run.environment),
        place=place,
        digest=info.digest,
        run_id=run.mlflow_run_id,
        tags={
            **{name: f"{getattr(found, name):.6g}" for name in MEASURED},
            "evaluation_seed": config.evaluation.seed,
            "environment": run.environment,
            "policy_version": info.version,
            "run": run.name,
        },
        there=there,
    )
