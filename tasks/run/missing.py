"""Results of finished stages whose folders were removed by hand: forgotten by Flyte's local cache, and made anew.

    rollouts/00007 ─► scored/00007 ─► trajectories/00007 ─► policies/00008

Of an iteration that has its policy nothing is made again, except the trajectories, which later training batches need.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.folders import run_folder

CHAIN = ("shards", "rollouts", "scored")  # folders that only their own iteration reads


def forget_missing(run_name: str) -> int:
    """Forget the cached results of a run whose folders are gone and needed; returns how many stages that are."""
    from flytekit.core.local_cache import LocalTaskCache

    if not LocalTaskCache._initialized:
        LocalTaskCache.initialize()
    folder, cache, count = run_folder(run_name), LocalTaskCache._cache, 0
    for key in list(cache):
        gone = [path for path in _folders(cache.get(key)) if path.is_relative_to(folder) and not path.exists()]
        if any(_is_needed(folder, path) for path in gone):
            cache.delete(key)
            count += 1
    return count


def _is_needed(folder: Path, path: Path) -> bool:
    stage, number, *_ = (*path.relative_to(folder).parts, "", "")
    if stage in CHAIN and number.isdigit():
        return not (folder / "policies" / f"{int(number) + 1:05d}").exists()
    return True


def _folders(kept: Any) -> Iterator[Path]:
    """The local paths in a cached result, which flytekit keeps as bytes of its LiteralMap."""
    from flyteidl.core.literals_pb2 import LiteralMap

    if isinstance(kept, bytes):
        for literal in LiteralMap.FromString(kept).literals.values():
            yield from _paths(literal)


def _paths(literal: Any) -> Iterator[Path]:
    uri = literal.scalar.blob.uri
    if uri and "://" not in uri:
        yield Path(uri)
    for inner in literal.collection.literals:
        yield from _paths(inner)
