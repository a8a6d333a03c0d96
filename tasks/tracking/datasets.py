"""Batches as datasets of the training's MLflow run: where they lie, what they are, who sampled and who learned."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import Run
from tasks.lineage.records import BatchUse
from tasks.records import read_schema
from tasks.tracking.mlflow_store import client
from tasks.tracking.patience import try_to_send

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

DIGITS = 36  # of a digest that MLflow holds; the profile has all


def log_datasets(run: Run, uses: Mapping[str, BatchUse], folders: Mapping[str, Path], trained_version: int) -> None:
    """Link batches, by their URI, to the run: each once, however often it is trained on or a stage is repeated.

    A tracking server that is away costs a few seconds and the links, never the stage; the next stage makes those that
    are missing for the batches that it still uses.
    """
    inputs = [_dataset(run, uri, use, folders[uri], trained_version) for uri, use in uses.items()]
    which = ", ".join(str(use.iteration) for use in uses.values())

    def send() -> None:
        # MLflow knows a dataset by name and digest, and keeps what was first said of it.
        client(run.tracking_uri).log_inputs(run.mlflow_run_id, datasets=inputs)

    try_to_send(f"the batches of iteration {which} as datasets", run.tracking_uri, send)


def _dataset(run: Run, uri: str, use: BatchUse, folder: Path, trained_version: int) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    scheme, found, _ = uri.partition("://")
    columns = [{"name": field.name, "type": str(field.type)} for field in read_schema(folder)]
    profile = {
        "games": use.games,
        "groups": use.groups,
        "groups_used": len(use.used),
        "age": use.age,
        "policy_version": use.sampled_by.version,
        "policy_digest": use.sampled_by.digest,
        "sha256": use.digest,
    }
    tags = {
        MLFLOW_DATASET_CONTEXT: "training",
        "iteration": str(use.iteration),
        "sampled_by_policy": str(use.sampled_by.version),
        "trained_policy": str(trained_version),
    }
    dataset = Dataset(
        name=f"{run.name}/trajectories/{use.iteration:05d}",
        digest=use.digest[:DIGITS],
        source_type=scheme if found else "local",
        source=json.dumps({"uri": uri}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag(key, value) for key, value in tags.items()])
