"""What a user's `policy` names: `tiny`, a checkpoint's directory or URI, a name on the hub, a version in the registry.

find ─► Source: where it lies ─► look: what can be checked before any work ─► a task fetches the weights
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from tasks.folders import remove_at_exit
from tasks.json_records import Record
from tasks.policy import refuse
from tasks.policy.checkpoint import Manifest, read_manifest
from tasks.policy.hub import SMALL, WEIGHTS

REGISTRY = "models:/"
Files = Callable[[str], AbstractFileSystem]  # the file system that holds a URI


@dataclass(frozen=True)
class Source(Record):
    """Where a policy comes from.

    Example: `Source(given="models:/grpo-arithmetic@champion", uri="/…/runs/monday/policies/00032",
    version="models:/grpo-arithmetic/7", digest="5f0c…")`.
    """

    given: str  # by the user
    uri: str  # "tiny", a name on the hub, a directory, or the URI of one
    version: str = ""  # in the registry, where it was named by it
    digest: str = ""  # as the registry has it


def files_of(uri: str) -> AbstractFileSystem:
    """The file system of a URI, with the credentials that its own library finds."""
    return url_to_fs(uri)[0]


def is_remote(uri: str) -> bool:
    """Whether a policy lies in object storage: a URI, and not a path or name."""
    return "://" in uri


def find(policy: str, files: Files = files_of) -> Source:
    """Where the policy lies that a user names; nothing is fetched.

    Raises ValueError, in one sentence, for a version that the registry does not have, or whose directory was removed
    or changed since. Other names are checked later, by `check_task`.
    """
    if not policy.startswith(REGISTRY):
        return Source(given=policy, uri=policy)
    from tasks.tracking import mlflow_store, registry

    version = registry.find(mlflow_store.tracking_uri(), policy)
    uri, allowed = version.uri, "a version whose directory was kept"
    name = policy if policy == version.name else f"{policy} ({version.name})"
    if not is_there(uri, files):
        refuse(name, f", whose directory {uri} is not there any more", allowed)
    remote = is_remote(uri)
    manifest = Manifest.from_json(files(uri).cat_file(_manifest_of(uri))) if remote else read_manifest(Path(uri))
    if version.digest not in ("", manifest.digest):
        refuse(name, f", whose directory {uri} holds another policy by now", allowed)
    return Source(given=policy, uri=uri, version=version.name, digest=manifest.digest)


def is_there(uri: str, files: Files = files_of) -> bool:
    """Whether a complete policy lies at a URI: its `policy.json` is written last, and removed first."""
    path = _manifest_of(uri)
    return files(uri).exists(path) if is_remote(uri) else Path(path).is_file()


def _manifest_of(uri: str) -> str:
    return uri.rstrip("/") + "/policy.json"


def look(uri: str, files: Files) -> tuple[Path, list[str]]:
    """A folder with all of a remote checkpoint but its weights, and their file names: the same as the hub's `fetch`.

    Raises ValueError when nothing is there.
    """
    try:
        held = files(uri)
        there = held.isdir(uri)
    except Exception as error:  # of whichever library speaks to that storage
        said = " ".join(str(error).split())[:200] or type(error).__name__
        refuse(uri, f", which cannot be opened ({said})", "the URI of a directory with a checkpoint")
    if not there:
        refuse(uri, ", and nothing is there", "the URI of a directory with a checkpoint")
    paths = [path.rstrip("/") for path in held.ls(uri, detail=False)]
    folder = Path(tempfile.mkdtemp())
    remove_at_exit(folder)
    for path in paths:
        if any(Path(path).match(pattern) for pattern in SMALL):
            held.get_file(path, str(folder / Path(path).name))
    return folder, [Path(path).name for path in paths if Path(path).match(WEIGHTS)]
