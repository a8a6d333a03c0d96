"""Where policy 0 of a run comes from."""

from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder
from tasks.lineage.records import PolicyLineage, named, write
from tasks.policy import hub
from tasks.policy.checkpoint import Manifest


def record_initial(run: Run, folder: Path, policy: str, source: Path, manifest: Manifest) -> None:
    """Write beside policy 0 of a run, in `folder`, that it is what a user named `policy`, copied from `source`.

    Where that is itself a policy of a training, it becomes the parent, so that the chain continues there.
    """
    if policy == "tiny":
        origin = f"made on the spot: tiny, seed {run.seed}"
    elif hub.is_hub_name(policy):
        origin = f"{policy} from the hub, commit {source.name}"
    else:
        origin = f"a copy of {policy}"
    parent, record = None, source / "policy.json"
    if policy != "tiny" and record.is_file():
        parent = named(Manifest.from_json(record.read_text()), str(source), run_folder(run.name))
    write(folder, PolicyLineage(version=0, digest=manifest.digest, parent=parent, origin=origin))
