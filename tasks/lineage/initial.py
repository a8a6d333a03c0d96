"""Where policy 0 of a run comes from."""

from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder
from tasks.lineage.records import PolicyLineage, PolicyName, place, write
from tasks.policy import hub
from tasks.policy.checkpoint import Manifest


def record_initial(run: Run, folder: Path, policy: str, source: Path, info: Manifest) -> None:
    """Say beside policy 0 of a run, in `folder`, that it is what a user named `policy`, copied from `source`.

    Where that is itself a policy of some training, it becomes the parent, so that the chain goes on there.
    """
    if policy == "tiny":
        origin = f"made on the spot: tiny, seed {run.seed}"
    elif hub.is_hub_name(policy):
        origin = f"{policy} from the hub, commit {source.name}"
    else:
        origin = f"a copy of {policy}"
    parent, record = None, source / "policy.json"
    if policy != "tiny" and record.is_file():
        known = Manifest.from_json(record.read_text())
        parent = PolicyName(version=known.version, digest=known.digest, uri=place(str(source), run_folder(run.name)))
    write(folder, PolicyLineage(version=0, digest=info.digest, parent=parent, origin=origin))
