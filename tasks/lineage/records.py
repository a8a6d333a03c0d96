"""What was made from what: a `_lineage.json` in every batch and in every policy of a run.

    policies/00003 ──samples──► trajectories/00003 ──┐
    policies/00002 ──samples──► trajectories/00002 ──┴─groups of both, and policies/00003 itself──► policies/00004

A batch names the policy that sampled it, a policy its parent and the batches that it was trained on. Their URIs are
relative to the run's folder where they lie in it or beside it, so that it can be moved. The underscore hides the file
from readers of Arrow datasets, and keeps it when a run removes the weights of a version.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mashumaro.config import BaseConfig

from tasks.folders import write_file
from tasks.json_files import read_record
from tasks.json_records import Record
from tasks.policy.checkpoint import Manifest, file_hash

LINEAGE = "_lineage.json"
Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class PolicyName(Record):
    """Which policy. Example: `PolicyName(version=3, digest="5f0c…", uri="policies/00003")`."""

    version: int
    digest: str  # as in its policy.json
    uri: str


@dataclass(frozen=True)
class BatchLineage(Record):
    """Where a batch comes from. Example: `BatchLineage(iteration=3, sampled_by=PolicyName(version=3, …))`."""

    iteration: int
    sampled_by: PolicyName  # with lag 1 a version earlier than the iteration


@dataclass(frozen=True)
class BatchUse(BatchLineage):
    """What a training took from a batch.

    Example: `BatchUse(iteration=3, sampled_by=PolicyName(…), uri="trajectories/00003", digest="77ab…", episodes=1536,
    groups=768, age=0, used=["00003-00001", "00003-00007", …])`.
    """

    uri: str
    digest: str  # `batch_digest` of its folder
    episodes: int
    groups: int
    age: int  # policy versions between the one that sampled it and the one that was trained
    used: list[str]  # the groups that the training learned from
    state: str = ""  # in a chain: whether it is still what the policy learned from

    class Config(BaseConfig):
        omit_default = True


@dataclass(frozen=True)
class PolicyLineage(Record):
    """Where a policy comes from: version 0 has an origin, the others have a parent and batches.

    Example: `PolicyLineage(version=4, digest="b2a1…", parent=PolicyName(version=3, …), batches=[BatchUse(…)])`.
    """

    version: int
    digest: str
    parent: PolicyName | None = None  # of version 0 the policy that it is a copy of, where that has a policy.json
    origin: str = ""  # of version 0, for people
    batches: list[BatchUse] = field(default_factory=list)
    uri: str = ""  # in a chain, as is `state`: whether it is there
    state: str = ""

    class Config(BaseConfig):
        omit_default = True


def source_of(directory: Any) -> str:
    """Where a FlyteDirectory lies: its URI in object storage, or its path on this machine."""
    return str(directory.remote_source or directory.path)


def stored_uri(uri: str, run: Path) -> str:
    """`uri` as it is written down: relative to the folder `run` where it lies in it or beside it.

    >>> stored_uri("/home/me/runs/monday/policies/00003", Path("/home/me/runs/monday"))
    'policies/00003'
    """
    if "://" in uri:
        return uri
    path = Path(uri).absolute()
    return os.path.relpath(path, run) if path.is_relative_to(run.parent) else str(path)


def resolve_uri(uri: str, owner: str) -> str:
    """The inverse of `stored_uri`, for a `uri` in the `_lineage.json` of the policy or batch at `owner`."""
    if "://" in uri or os.path.isabs(uri):
        return uri
    return os.path.normpath(os.path.join(os.path.dirname(os.path.dirname(owner.rstrip("/"))), uri))


def batch_digest(folder: Path) -> str:
    """SHA-256 over the Arrow files of a batch, by their names within it and their contents."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.arrow")):
        total.update(path.relative_to(folder).as_posix().encode())
        total.update(file_hash(path))
    return total.hexdigest()


def named(manifest: Manifest, uri: str, run: Path) -> PolicyName:
    """The name of the policy at `uri`, as the run whose folder is `run` writes it down."""
    return PolicyName(version=manifest.version, digest=manifest.digest, uri=stored_uri(uri, run))


def carry(source: Path, folder: Path) -> None:
    """A batch with more columns comes from where the one in `source` came from."""
    write_file(folder / LINEAGE, (source / LINEAGE).read_bytes())


def write(folder: Path, lineage: BatchLineage | PolicyLineage) -> None:
    """Leave the lineage of a policy or batch in its folder."""
    write_file(folder / LINEAGE, str(lineage.to_json()) + "\n")


def read(folder: Path, kind: type[Kind]) -> Kind:
    """What `write` left."""
    return read_record(folder / LINEAGE, kind)
