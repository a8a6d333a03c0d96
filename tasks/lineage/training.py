"""What a training stage leaves of its lineage: beside the policy that it made, and in MLflow."""

from collections.abc import Collection, Mapping
from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder
from tasks.lineage.records import (
    BatchLineage,
    BatchUse,
    PolicyLineage,
    PolicyName,
    batch_digest,
    place,
    read,
    write,
)
from tasks.policy.checkpoint import read_manifest
from tasks.records import read_batch, trajectory_numbers
from tasks.tracking.datasets import log_datasets


def record_training(
    run: Run, policy: Path, parent: str, batches: Mapping[str, Path], group_ids: Collection[str]
) -> None:
    """Say beside the new `policy` what it was trained from, and link the batches to the MLflow run.

    `parent` is the URI of the policy before it. `batches` are those in reach of the window, oldest first, by their URI;
    of them it learned from the groups `group_ids`. The newest is named in any case, older ones where they were used.
    """
    info, home = read_manifest(policy), run_folder(run.name)
    chosen = set(group_ids)
    found = {uri: batch_use(folder, place(uri, home), chosen, info.version - 1) for uri, folder in batches.items()}
    newest = max((use.iteration for use in found.values()), default=0)
    uses = {uri: use for uri, use in found.items() if use.used or use.iteration == newest}
    lineage = PolicyLineage(
        version=info.version,
        digest=info.digest,
        parent=PolicyName(version=info.version - 1, digest=info.parent, uri=place(parent, home)),
        batches=list(uses.values()),
    )
    write(policy, lineage)
    log_datasets(run, uses, {uri: batches[uri] for uri in uses}, info.version)


def batch_use(folder: Path, uri: str, group_ids: Collection[str], policy_version: int) -> BatchUse:
    """What a training of `policy_version` takes from the batch in `folder`, named `uri`: those of `group_ids`."""
    lineage, rows = read(folder, BatchLineage), read_batch(folder, ["trajectory_id", "group_id"])
    groups = set(rows["group_id"].to_pylist())
    return BatchUse(
        uri=uri,
        digest=batch_digest(folder),
        iteration=lineage.iteration,
        sampled_by=lineage.sampled_by,
        games=len(trajectory_numbers(rows)[1]),
        groups=len(groups),
        age=policy_version - lineage.sampled_by.version,
        used=sorted(groups & set(group_ids)),
    )
