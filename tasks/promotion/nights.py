"""The disk of a machine that retrains every night: of nights long ago only records stay.

runs/retraining-20260101-020000/   run.json, promotion.json, summary.json, report.html, pictures/, evaluations/
                                   and a policy while it is champion, or another alias names it
"""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from tasks.folders import RUNS, versions
from tasks.json_files import read_object
from tasks.run.retention import empty

BATCHES = ("shards", "rollouts", "scored", "trajectories")


def retire(model: str, keep: int, named: Collection[str]) -> list[str]:
    """Retire all but the `keep` newest nights of a model; those of `named`, paths of policies, stay as they are.

    Returns the names of the runs that were retired now. `keep` 0 retires none.
    """
    nights = sorted(_nights(model), key=lambda night: night[0])
    retired = []
    for _, folder in nights[: -keep or None] if keep else ():
        left = [path for path in _policies(folder) if str(path) not in named and (path / "policy.json").is_file()]
        batches = [folder / kind for kind in BATCHES if (folder / kind).is_dir()]
        if not (left or batches or any(_full(path) for path in versions(folder / "states"))):
            continue
        for path in (*left, *versions(folder / "states")):
            empty(LocalFileSystem(), str(path))
        for path in batches:
            shutil.rmtree(path)
        retired.append(folder.name)
    return retired


def _nights(model: str) -> Iterator[tuple[int, Path]]:
    """When the finished retrainings of a model began, seconds since 1970, and their folders."""
    for decision in RUNS.absolute().glob("*/promotion.json"):
        record = decision.with_name("run.json")
        if record.is_file() and read_object(decision).get("model") == model:
            yield read_object(record)["inputs"]["seed"], decision.parent


def _policies(folder: Path) -> list[Path]:
    return versions(folder / "policies")


def _full(folder: Path) -> bool:
    return any(not path.name.startswith("_") for path in folder.iterdir())
