"""Follows what was made from what, from one policy back to where its training began, and to single trajectories.

    policy 3  ◄── batch 2 ◄── policy 2        each policy with the batches that it learned from,
              ◄── batch 1 ◄── policy 1        and who sampled them
    policy 2  ◄── …
    policy 0  ◄── tiny, or somebody's checkpoint

Only small files are read, wherever they lie: a chain over object storage moves no weights.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from fsspec import AbstractFileSystem

from tasks.config import require
from tasks.json_records import Record
from tasks.lineage.records import LINEAGE, BatchUse, PolicyLineage, PolicyName, batch_digest, resolved
from tasks.policy.checkpoint import REMOVED

Files = Callable[[str], AbstractFileSystem]  # the file system in which a place lies

TRAJECTORY = r"(\d{5})-\d{5}-\d+"
KEPT, REMOVED_WEIGHTS, MISSING, CHANGED = "", "weights removed by its run", "missing", "changed since"


@dataclass(frozen=True)
class BatchLink(Record):
    """A batch in the chain. Example: `BatchLink(use=BatchUse(…), place="runs/monday/trajectories/00003", state="")`."""

    use: BatchUse
    place: str
    state: str  # KEPT, MISSING or CHANGED


@dataclass(frozen=True)
class PolicyLink(Record):
    """A policy in the chain. Example: `PolicyLink(version=4, digest="b2a1…", place="runs/monday/policies/00004",
    state="", origin="", batches=[BatchLink(…)])`."""

    version: int
    digest: str
    place: str
    state: str  # KEPT, REMOVED_WEIGHTS or MISSING
    origin: str = ""
    batches: list[BatchLink] = field(default_factory=list)


@dataclass(frozen=True)
class TrajectoryLink(Record):
    """One game, the policy that played it, and those that learned from it, as far as they lie in the chain.

    Example: `TrajectoryLink(trajectory_id="00003-00017-2", sampled_by=PolicyName(version=3, …), seed=8123,
    reward=-1.0, advantage=-0.5, finish_reason="finished", learned_by=[4], messages=[{"role": "system", …}, …])`.
    """

    trajectory_id: str
    sampled_by: PolicyName
    seed: int
    reward: float | None
    advantage: float
    finish_reason: str
    learned_by: list[int]  # policy versions
    messages: list[dict[str, str]]


def follow(policy: str, files: Files) -> list[PolicyLink]:
    """The chain from `policy`, a folder of a run or its URI, to where its training began, newest first.

    It goes on through policies that a run has removed, and from a policy 0 that is a copy of another run's policy. A
    version that cannot be found ends it, named as missing. Raises ValueError for a folder that is no policy of a run.
    """
    policy = policy.rstrip("/")
    first = _read(policy, files)
    if first is None:
        raise ValueError(f'policy is "{policy}"; allowed: a policy of a run, this folder has no {LINEAGE}.')
    chain, wanted, lineage = [], PolicyName(first.version, first.digest, policy), first
    while lineage is not None and lineage.digest == wanted.digest:
        chain.append(_policy_link(wanted.uri, lineage, files))
        if lineage.parent is None:
            return chain
        wanted = PolicyName(lineage.parent.version, lineage.parent.digest, resolved(lineage.parent.uri, wanted.uri))
        lineage = _read(wanted.uri, files)
    state = MISSING if lineage is None else CHANGED
    return [*chain, PolicyLink(wanted.version, wanted.digest, wanted.uri, state)]


def _policy_link(place: str, lineage: PolicyLineage, files: Files) -> PolicyLink:
    batches = []
    for use in lineage.batches:
        where = resolved(use.uri, place)
        batches.append(BatchLink(use=use, place=where, state=_batch_state(where, use, files)))
    removed = files(place).exists(f"{place}/{REMOVED}")
    return PolicyLink(
        version=lineage.version,
        digest=lineage.digest,
        place=place,
        state=REMOVED_WEIGHTS if removed else KEPT,
        origin=lineage.origin,
        batches=batches,
    )


def _batch_state(place: str, use: BatchUse, files: Files) -> str:
    """Whether the batch is still what the policy learned from; one in object storage is not read for that."""
    if not files(place).exists(f"{place}/{LINEAGE}"):
        return MISSING
    return CHANGED if "://" not in place and batch_digest(Path(place)) != use.digest else KEPT


def find_trajectory(trajectory_id: str, chain: list[PolicyLink], files: Files) -> TrajectoryLink:
    """What is known of one trajectory of a batch in the chain; ValueError, in one sentence, where there is none."""
    match = re.fullmatch(TRAJECTORY, trajectory_id)
    allowed = 'an id such as "00003-00017-2": iteration, group, and number in the group'
    require(match is not None, "trajectory", trajectory_id, allowed)
    assert match is not None
    links = [batch for policy in chain for batch in policy.batches if batch.use.iteration == int(match[1])]
    iterations = sorted({batch.use.iteration for policy in chain for batch in policy.batches})
    reached = f"{iterations[0]} to {iterations[-1]}" if iterations else "none: it was not trained here"
    require(bool(links), "trajectory", trajectory_id, f"one of the iterations that this policy comes from, {reached}")
    batch = links[0]
    require(batch.state != MISSING, "trajectory", trajectory_id, f"one whose batch is there, {batch.place} is missing")
    columns = ["trajectory_id", "sample", "group_id", "seed", "reward", "advantage", "finish_reason", "messages"]
    rows = _rows(batch.place, files, columns, trajectory_id)
    require(bool(rows), "trajectory", trajectory_id, f"one of the {batch.use.games} games in {batch.place}")
    row = max(rows, key=lambda row: row["sample"])  # the last sample holds the whole conversation
    sampler = batch.use.sampled_by
    return TrajectoryLink(
        trajectory_id=trajectory_id,
        sampled_by=PolicyName(sampler.version, sampler.digest, resolved(sampler.uri, batch.place)),
        seed=row["seed"],
        reward=row["reward"],
        advantage=row["advantage"],
        finish_reason=row["finish_reason"],
        learned_by=sorted(
            policy.version
            for policy in chain
            for used in policy.batches
            if used.place == batch.place and row["group_id"] in used.use.used
        ),
        messages=row["messages"],
    )


def _read(place: str, files: Files) -> PolicyLineage | None:
    path = f"{place}/{LINEAGE}"
    there = files(place)
    return PolicyLineage.from_json(there.cat_file(path)) if there.exists(path) else None


def _rows(place: str, files: Files, columns: list[str], trajectory_id: str) -> list[dict[str, Any]]:
    """The samples of one trajectory."""
    there = files(place)
    batch = ds.dataset(str(there._strip_protocol(place)), format="ipc", filesystem=there, exclude_invalid_files=False)
    return batch.to_table(columns=columns, filter=ds.field("trajectory_id") == trajectory_id).to_pylist()
