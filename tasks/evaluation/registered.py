"""An evaluated policy becomes a version in the registry, with what was measured as its tags."""

from pathlib import Path

from tasks.config import GrpoConfig, Run
from tasks.evaluation.records import Evaluation
from tasks.policy.checkpoint import read_manifest
from tasks.tracking import registry


def candidate(run: Run, config: GrpoConfig, folder: Path, uri: str, found: Evaluation) -> registry.Candidate:
    """The policy in `folder`, which stays at `uri`, as the registry takes it."""
    manifest = read_manifest(folder)
    measured = {
        "reward": found.reward.mean,
        "reward_ci95": found.reward.ci95,
        **{name: metric.mean for name, metric in found.metrics.items()},
    }
    tags = {
        **{name: f"{value:.6g}" for name, value in measured.items()},
        "tasks": str(found.tasks),
        "evaluation_seed": str(config.evaluation.seed),
        "environment": run.environment,
        "policy_version": str(manifest.version),
        "run": run.name,
    }
    model = registry.model_name(config.tracking.model, run.environment)
    return registry.Candidate(model, uri, manifest.digest, run.mlflow_run_id, tags)
