"""Flyte shell that shows what a policy was made from."""

import json
from pathlib import Path

from flytekit import FlyteContextManager, task
from flytekit.types.file import FlyteFile

from tasks.resources import pod


@task(**pod("cpu"))
def show_lineage(policy: str, trajectory: str) -> FlyteFile:
    """Print what `policy` was made from, or where one of the trajectories comes from; returns it as JSON."""
    from tasks.folders import RUNS, write_file
    from tasks.lineage.chain import find_trajectory, follow
    from tasks.lineage.show import chain_lines, trajectory_lines
    from tasks.policy.named import find, is_remote
    from tasks.tracking import console

    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    uri = find(policy, files).uri
    chain = follow(uri if is_remote(uri) else str(Path(uri).absolute()), files)
    found = find_trajectory(trajectory, chain, files) if trajectory else None
    console.lines(trajectory_lines(found) if found else chain_lines(chain))
    record = {"policies": [link.to_dict() for link in chain], "trajectory": found}
    target = (RUNS / "lineage").absolute() / f"{'-'.join([chain[0].digest[:12], *filter(None, [trajectory])])}.json"
    write_file(target, json.dumps(record, indent=1) + "\n")
    return FlyteFile(str(target))
