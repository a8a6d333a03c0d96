"""What a user's `policy` names: `tiny`, a checkpoint's directory or URI, a name on the hub, a version in the registry.

find ─► Source: where it lies ─► look: what can be checked before any work ─► a task fetches the weights
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from tasks.folders import remove_at_exit
from tasks.json_records import Record
from tasks.policy.checkpoint import Manifest, read_manifest
from tasks.policy.hub import SMALL, WEIGHTS

REGISTRY = "models:/"
Files = Callable[[str], AbstractFileSystem]  # the file system that holds a URI


@dataclass(frozen=True)
class Source(Record):
    """Where a policy comes from.

    Example: `Source(given="models:/grpo-blackjack@champion", place="/…/runs/monday/policies/00032",
    version="models:/grpo-blackjack/7", digest="5f0c…")`.
    """

    given: str  # by the user
    place: str  # "tiny", a name on the hub, a directory, or the URI of one
    version: str = ""  # in the registry, where it was named by it
    digest: str = ""  # that the registry knows it by


def files_of(uri: str) -> AbstractFileSystem:
    """The file system of a URI, with the credentials that its own library finds."""
    return url_to_fs(uri)[0]


def is_remote(place: str) -> bool:
    """Whether a policy's place is in object storage, and no path or name."""
    return "://" in place


def find(policy: str, files: Files = files_of) -> Source:
    """Where the policy lies that a user names, without anything being fetched.

    Raises ValueError, in one sentence, for a version that the registry does not have, or whose directory was removed
    or changed since. Other names are looked at when the policy is checked.
    """
    if not policy.startswith(REGISTRY):
        return Source(policy, policy)
    from tasks.tracking import registry
    from tasks.tracking.mlflow_run import tracking_uri

    version = registry.find(tracking_uri(), policy)
    shown = policy if policy == version.name else f"{policy} ({version.name})"
    if not is_there(version.place, files):
        raise ValueError(
            f'policy is "{shown}", whose directory {version.place} is not there any more; allowed: a version whose '
            "directory was kept."
        )
    info = stored_manifest(version.place, files)
    if version.digest not in ("", info.digest):
        raise ValueError(
            f'policy is "{shown}", whose directory {version.place} holds another policy by now; allowed: a version '
            "whose directory was kept."
        )
    return Source(policy, version.place, version.name, info.digest)


def is_there(place: str, files: Files = files_of) -> bool:
    """Whether a whole policy lies at a place: `policy.json` is written last, and removed first."""
    found = place.rstrip("/") + "/policy.json"
    return files(place).exists(found) if is_remote(place) else Path(found).is_file()


def stored_manifest(place: str, files: Files) -> Manifest:
    """The `policy.json` at a place; that of a directory is held against its weights, as `read_manifest` does."""
    if not is_remote(place):
        return read_manifest(Path(place))
    return Manifest.from_dict(json.loads(files(place).cat_file(place.rstrip("/") + "/policy.json")))


def look(uri: str, files: Files) -> tuple[Path, list[str]]:
    """A folder with all of a remote checkpoint but its weights, and the names of those: what the hub's `look` gives.

    Raises ValueError when nothing is there.
    """
    held = files(uri)
    if not held.isdir(uri):
        raise ValueError(f'policy is "{uri}", and nothing is there; allowed: the URI of a directory with a checkpoint.')
    paths = [path.rstrip("/") for path in held.ls(uri, detail=False)]
    folder = Path(tempfile.mkdtemp())
    remove_at_exit(folder)
    for path in paths:
        if any(Path(path).match(pattern) for pattern in SMALL):
            held.get_file(path, str(folder / Path(path).name))
    return folder, [Path(path).name for path in paths if Path(path).match(WEIGHTS)]
