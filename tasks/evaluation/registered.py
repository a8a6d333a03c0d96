"""An evaluated policy becomes a version in the registry, with what was measured as its tags."""

from pathlib import Path

from tasks.config import GrpoConfig, Run
from tasks.evaluation.evaluate import Evaluation
from tasks.policy.checkpoint import read_manifest
from tasks.tracking import registry

MEASURED = ("expected_reward", "expected_reward_ci95", "regret", "regret_ci95", "invalid_rate", "games")


def candidate(run: Run, config: GrpoConfig, folder: Path, uri: str, found: Evaluation) -> registry.Candidate:
    """The policy in `folder`, which stays at `uri`, as the registry takes it."""
    info = read_manifest(folder)
    return registry.Candidate(
        model=registry.model_name(config.tracking.model, run.environment),
        uri=uri,
        digest=info.digest,
        run_id=run.mlflow_run_id,
        tags={
            **{name: f"{getattr(found, name):.6g}" for name in MEASURED},
            "evaluation_seed": str(config.evaluation.seed),
            "environment": run.environment,
            "policy_version": str(info.version),
            "run": run.name,
        },
    )
