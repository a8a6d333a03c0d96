"""What a training leaves of its lineage: beside each policy that it makes, and as datasets of the MLflow run."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder
from tasks.json_files import read_record
from tasks.lineage import records
from tasks.lineage.records import BatchLineage, BatchUse, PolicyLineage, PolicyName, batch_digest, stored_uri
from tasks.policy import hub
from tasks.policy.checkpoint import Manifest, read_manifest
from tasks.records import read_batch, read_schema, trajectory_numbers
from tasks.tracking import outbox

DIGITS = 36  # of a digest that MLflow holds; the profile has all


def record_initial(run: Run, folder: Path, policy: str, source: Path, manifest: Manifest) -> None:
    """Write beside policy 0 of a run, in `folder`, that it is what a user named `policy`, copied from `source`.

    Where that is itself a policy of a training, it becomes the parent, so that the chain continues there.
    """
    parent, origin, record = None, f"made on the spot: tiny, seed {run.seed}", source / "policy.json"
    if policy != "tiny":
        from_hub = hub.is_hub_name(policy)
        origin = f"{policy} from the hub, commit {source.name}" if from_hub else f"a copy of {policy}"
        if record.is_file():
            parent = records.named(read_record(record, Manifest), str(source), run_folder(run.name))
    records.write(folder, PolicyLineage(version=0, digest=manifest.digest, parent=parent, origin=origin))


def record_training(
    run: Run, policy: Path, parent: str, batches: Mapping[str, Path], group_ids: Collection[str]
) -> None:
    """Write beside the new `policy` what it was trained from, and link the batches to the MLflow run.

    `parent` is the URI of the policy before it. `batches` are those within reach, oldest first, by their URI; the
    policy learned from their groups `group_ids`. The newest is named in any case, older ones where they were used.
    """
    manifest, home, chosen = read_manifest(policy), run_folder(run.name), set(group_ids)
    uses = {}
    for uri, folder in batches.items():
        lineage, rows = records.read(folder, BatchLineage), read_batch(folder, ["trajectory_id", "group_id"])
        groups = set(rows["group_id"].to_pylist())
        uses[uri] = BatchUse(
            uri=stored_uri(uri, home),
            digest=batch_digest(folder),
            **vars(lineage),
            episodes=len(trajectory_numbers(rows)[1]),
            groups=len(groups),
            age=manifest.version - 1 - lineage.sampled_by.version,
            used=sorted(groups & chosen),
        )
    newest = max((use.iteration for use in uses.values()), default=0)
    uses = {uri: use for uri, use in uses.items() if use.used or use.iteration == newest}
    name = PolicyName(version=manifest.version - 1, digest=manifest.parent, uri=stored_uri(parent, home))
    made = PolicyLineage(version=manifest.version, digest=manifest.digest, parent=name, batches=list(uses.values()))
    records.write(policy, made)
    log_datasets(run, uses, batches, manifest.version)


def log_datasets(run: Run, uses: Mapping[str, BatchUse], folders: Mapping[str, Path], trained_version: int) -> None:
    """Link batches, by their URI, to the run: each once, however often it is trained on or a stage is repeated."""
    for uri, use in uses.items():
        columns = [{"name": field.name, "type": str(field.type)} for field in read_schema(folders[uri])]
        dataset = {
            "name": f"{run.name}/trajectories/{use.iteration:05d}",
            "digest": use.digest[:DIGITS],
            "source_type": uri.partition("://")[0] if "://" in uri else "local",
            "source": json.dumps({"uri": uri}),
            "schema": json.dumps({"mlflow_colspec": columns}),
            "profile": json.dumps({**use.to_dict(), "used": len(use.used)}),
        }
        tags = {
            "mlflow.data.context": "training",
            "iteration": str(use.iteration),
            "sampled_by_policy": str(use.sampled_by.version),
            "trained_policy": str(trained_version),
        }
        outbox.send(run, dataset=dataset, tags=tags)
