"""Follows what was made from what: from one policy back to where its training began, and to single trajectories.

    policy 3  ◄── batch 2 ◄── policy 2        each policy with the batches that it learned from,
              ◄── batch 1 ◄── policy 1        and who sampled them
    policy 2  ◄── …
    policy 0  ◄── tiny, or a user's checkpoint

Only small files are read, wherever they lie: a chain over object storage moves no weights.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tasks.lineage.records import LINEAGE, PolicyLineage, PolicyName, batch_digest, resolve_uri
from tasks.policy.checkpoint import REMOVED
from tasks.policy.named import Files
from tasks.settings import require

TRAJECTORY = r"(\d{5})-\d{5}-\d+"
KEPT, REMOVED_WEIGHTS, MISSING, CHANGED = "", "weights removed by its run", "missing", "changed since"
COLUMNS = ["trajectory_id", "task_id", "seed", "reward", "advantage", "finish_reason", "messages"]


def follow(policy: str, files: Files) -> list[PolicyLineage]:
    """The chain from `policy`, a folder of a run or its URI, to where its training began, newest first; all URIs whole.

    It goes on through policies that a run has removed, and from a policy 0 that is a copy of another run's policy. A
    version that cannot be found ends it, named as missing. Raises ValueError for a folder that is no policy of a run.
    """
    uri = policy.rstrip("/")
    lineage = _read(uri, files)
    if lineage is None:
        raise ValueError(f'policy is "{uri}"; allowed: a policy of a run, this folder has no {LINEAGE}.')
    chain, wanted = [], PolicyName(version=lineage.version, digest=lineage.digest, uri=uri)
    while lineage is not None and lineage.digest == wanted.digest:
        chain.append(_link(wanted, lineage, files))
        if lineage.parent is None:
            return chain
        wanted = lineage.parent.replace(uri=resolve_uri(lineage.parent.uri, wanted.uri))
        lineage = _read(wanted.uri, files)
    return [*chain, PolicyLineage(**vars(wanted), state=MISSING if lineage is None else CHANGED)]


def _read(uri: str, files: Files) -> PolicyLineage | None:
    path, held = f"{uri}/{LINEAGE}", files(uri)
    return PolicyLineage.from_json(held.cat_file(path)) if held.exists(path) else None


def _link(policy: PolicyName, lineage: PolicyLineage, files: Files) -> PolicyLineage:
    batches = []
    for use in lineage.batches:
        uri = resolve_uri(use.uri, policy.uri)
        batches.append(use.replace(uri=uri, state=_batch_state(uri, use.digest, files)))
    state = REMOVED_WEIGHTS if files(policy.uri).exists(f"{policy.uri}/{REMOVED}") else KEPT
    return lineage.replace(batches=batches, uri=policy.uri, state=state)


def _batch_state(uri: str, digest: str, files: Files) -> str:
    """Whether the batch is still what the policy learned from; one in object storage is not read for that."""
    if not files(uri).exists(f"{uri}/{LINEAGE}"):
        return MISSING
    return CHANGED if "://" not in uri and batch_digest(Path(uri)) != digest else KEPT


def find_trajectory(trajectory_id: str, chain: Sequence[PolicyLineage], files: Files) -> dict[str, Any]:
    """One trajectory of a batch in the chain: COLUMNS of its row, `sampled_by`, a PolicyName as JSON, and `learned_by`,
    the versions of the chain that learned from it. ValueError, in one sentence, where there is none.
    """

    def check(condition: object, allowed: str) -> None:
        require(bool(condition), "trajectory", trajectory_id, allowed)

    allowed = 'an id such as "00003-00017-2": iteration, group, and number in the group'
    check(re.fullmatch(TRAJECTORY, trajectory_id), allowed)
    uses = [(policy.version, batch) for policy in chain for batch in policy.batches]
    iterations = sorted({batch.iteration for _, batch in uses})
    reached = f"{iterations[0]} to {iterations[-1]}" if iterations else "none: it was not trained here"
    found = [batch for _, batch in uses if batch.iteration == int(trajectory_id[:5])]
    check(found, f"one of the iterations that this policy comes from, {reached}")
    batch = found[0]  # the nearest, where several runs in the chain have such an iteration
    check(batch.state != MISSING, f"one whose batch is there, {batch.uri} is missing")
    held = files(batch.uri)
    rows = ds.dataset(str(held._strip_protocol(batch.uri)), format="ipc", filesystem=held, exclude_invalid_files=False)
    wanted = ds.field("trajectory_id") == trajectory_id
    samples = rows.to_table(columns=["sample", "group_id", *COLUMNS], filter=wanted).to_pylist()
    check(samples, f"one of the {batch.episodes} episodes in {batch.uri}")
    row = max(samples, key=lambda row: row["sample"])  # the last sample holds the whole conversation
    learned = {version for version, used in uses if used.uri == batch.uri and row["group_id"] in used.used}
    sampler = batch.sampled_by.replace(uri=resolve_uri(batch.sampled_by.uri, batch.uri))
    return {name: row[name] for name in COLUMNS} | {"sampled_by": sampler.to_dict(), "learned_by": sorted(learned)}
