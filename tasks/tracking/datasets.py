"""Batches as datasets of the training's MLflow run: where they lie, what they are, who sampled and who learned."""

import json
from collections.abc import Mapping
from pathlib import Path

from tasks.config import Run
from tasks.lineage.records import BatchUse
from tasks.records import read_schema
from tasks.tracking import outbox

DIGITS = 36  # of a digest that MLflow holds; the profile has all


def log_datasets(run: Run, uses: Mapping[str, BatchUse], folders: Mapping[str, Path], trained_version: int) -> None:
    """Link batches, by their URI, to the run: each once, however often it is trained on or a stage is repeated."""
    entries = []
    for uri, use in uses.items():
        scheme, found, _ = uri.partition("://")
        columns = [{"name": field.name, "type": str(field.type)} for field in read_schema(folders[uri])]
        profile = {
            "episodes": use.episodes,
            "groups": use.groups,
            "groups_used": len(use.used),
            "age": use.age,
            "policy_version": use.sampled_by.version,
            "policy_digest": use.sampled_by.digest,
            "sha256": use.digest,
        }
        dataset = {
            "name": f"{run.name}/trajectories/{use.iteration:05d}",
            "digest": use.digest[:DIGITS],
            "source_type": scheme if found else "local",
            "source": json.dumps({"uri": uri}),
            "schema": json.dumps({"mlflow_colspec": columns}),
            "profile": json.dumps(profile),
        }
        tags = {
            "mlflow.data.context": "training",
            "iteration": str(use.iteration),
            "sampled_by_policy": str(use.sampled_by.version),
            "trained_policy": str(trained_version),
        }
        entries.append(outbox.entry(run, dataset=dataset, tags=tags))
    outbox.deliver(run, entries)
