"""Chains over small run folders made by hand: what is there, what is removed, what is missing."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest

from tasks.advantage.advantages import add_advantages
from tasks.lineage.chain import CHANGED, KEPT, MISSING, REMOVED_WEIGHTS, find_trajectory, follow
from tasks.lineage.records import (
    LINEAGE,
    BatchLineage,
    BatchUse,
    PolicyLineage,
    PolicyName,
    batch_digest,
    read,
    resolve_uri,
    stored_uri,
    write,
)
from tasks.lineage.show import chain_lines, trajectory_lines
from tasks.policy.checkpoint import REMOVED
from tasks.records import Sample, to_table, write_batch


def exchange(prompt: str, reply: str) -> list[dict[str, object]]:
    """Two messages, as a row has them."""
    unused = {"tool_calls": None, "tool_call_id": None, "reward": None, "note": None}
    return [{"role": "user", "content": prompt, **unused}, {"role": "assistant", "content": reply, **unused}]


PLAY, ON = exchange("17 + 25 = ?", "PY 17 + 25"), exchange("42", "ANSWER 42")
# The rewards of group 0 differ, those of group 1 do not.
REWARDS = {(0, 0): 1.0, (0, 1): -1.0, (1, 0): -1.0, (1, 1): -1.0}


def files(where: str) -> fsspec.AbstractFileSystem:
    return fsspec.url_to_fs(where)[0]


def sample(iteration: int, group: int, member: int, number: int = 0, said: list[dict[str, object]] = PLAY) -> Sample:
    return Sample(
        trajectory_id=f"{iteration:05d}-{group:05d}-{member}",
        sample=number,
        group_id=f"{iteration:05d}-{group:05d}",
        task_id=f"sum-{group}",
        policy_version=iteration,
        seed=100 * iteration + group,
        token_ids=[1, 2],
        loss_mask=[False, True],
        logprobs=[0.0, -0.5],
        reward=REWARDS[group, member],
        raw_reward=REWARDS[group, member],
        turns=1,
        invalid=False,
        finish_reason="finished",
        outcome="solved",
        error="",
        metrics=[],
        messages=said,
    )


def name(version: int, uri: str = "") -> PolicyName:
    return PolicyName(version=version, digest=f"digest-{version}", uri=uri or f"policies/{version:05d}")


def made(
    version: int, digest: str, parent: PolicyName | None, origin: str = "", batches: list[BatchUse] | None = None
) -> PolicyLineage:
    return PolicyLineage(version=version, digest=digest, parent=parent, origin=origin, batches=batches or [])


def a_run(run: Path, versions: int = 3) -> Path:
    """Policies 0 to `versions` - 1; each learned from group 0 of the batch before it, and version 2 also of batch 0."""
    for version in range(versions):
        policy = run / "policies" / f"{version:05d}"
        policy.mkdir(parents=True)
        reach = [version - 1, 0] if version == 2 else [version - 1]
        uses = [
            BatchUse(
                uri=f"trajectories/{i:05d}",
                digest=batch_digest(run / f"trajectories/{i:05d}"),
                iteration=i,
                sampled_by=name(i),
                episodes=4,
                groups=2,
                age=age,
                used=[f"{i:05d}-00000"],
            )
            for age, i in enumerate(reach if version else [])
        ]
        origin = "" if version else "made on the spot: tiny, seed 0"
        parent = name(version - 1) if version else None
        write(policy, made(version, f"digest-{version}", parent, origin, uses))
        rows = [sample(version, group, member) for group, member in REWARDS]
        if version == 1:  # the first trajectory continues in a second sample, as where a template leaves thoughts out
            rows.insert(1, sample(1, 0, 0, 1, [*PLAY, *ON]))
        batch = write_batch(add_advantages(to_table(rows))[0], run / "trajectories" / f"{version:05d}")
        write(batch, BatchLineage(iteration=version, sampled_by=name(version)))
    return run


def test_a_chain_leads_back_to_where_the_training_began(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    chain = follow(f"{run}/policies/00002/", files)
    assert [(link.version, link.digest, link.state) for link in chain] == [
        (2, "digest-2", KEPT),
        (1, "digest-1", KEPT),
        (0, "digest-0", KEPT),
    ]
    assert [link.uri for link in chain] == [f"{run}/policies/{v:05d}" for v in (2, 1, 0)]
    assert [(b.uri, b.age, b.state) for b in chain[0].batches] == [
        (f"{run}/trajectories/00001", 0, KEPT),
        (f"{run}/trajectories/00000", 1, KEPT),
    ]
    assert chain[2].batches == [] and chain[2].origin == "made on the spot: tiny, seed 0"


def test_the_chain_of_a_run_that_was_moved(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "monday").rename(tmp_path / "elsewhere")
    chain = follow(str(tmp_path / "elsewhere" / "policies" / "00002"), files)
    assert [link.uri for link in chain] == [str(tmp_path / "elsewhere" / "policies" / f"{v:05d}") for v in (2, 1, 0)]
    assert {batch.state for link in chain for batch in link.batches} == {KEPT}


def test_what_is_missing_or_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = a_run(tmp_path / "runs" / "monday")
    (run / "policies" / "00001" / REMOVED).write_text("Removed.")
    shutil.rmtree(run / "policies" / "00000")
    shutil.rmtree(run / "trajectories" / "00000")
    (part,) = (run / "trajectories" / "00001").rglob("*.arrow")
    part.write_bytes(part.read_bytes() + b"more")
    chain = follow(f"{run}/policies/00002", files)
    assert [link.state for link in chain] == [KEPT, REMOVED_WEIGHTS, MISSING]
    assert [batch.state for batch in chain[0].batches] == [CHANGED, MISSING]
    lines = [line.plain for line in chain_lines(chain)]
    assert lines == [
        "policy 2  digest-2  runs/monday/policies/00002",
        f"    from 1 of 2 groups (4 episodes) that policy 1 sampled, age 0  {chain[0].batches[0].digest[:12]}"
        "  runs/monday/trajectories/00001  (changed since)",
        f"    from 1 of 2 groups (4 episodes) that policy 0 sampled, age 1  {chain[0].batches[1].digest[:12]}"
        "  runs/monday/trajectories/00000  (missing)",
        "policy 1  digest-1  runs/monday/policies/00001  (weights removed by its run)",
        f"    from 1 of 2 groups (4 episodes) that policy 0 sampled, age 0  {chain[0].batches[1].digest[:12]}"
        "  runs/monday/trajectories/00000  (missing)",
        "policy 0  digest-0  runs/monday/policies/00000  (missing)",
    ]


def test_another_policy_where_the_parent_was_is_not_taken_for_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    write(run / "policies" / "00001", made(1, "of another training", name(0)))
    chain = follow(f"{run}/policies/00002", files)
    assert [(link.version, link.digest, link.state) for link in chain] == [
        (2, "digest-2", KEPT),
        (1, "digest-1", CHANGED),
    ]


def test_a_chain_continues_in_the_run_whose_policy_a_run_began_with(tmp_path: Path) -> None:
    monday, tuesday = a_run(tmp_path / "runs" / "monday"), a_run(tmp_path / "runs" / "tuesday")
    source = name(2, stored_uri(f"{monday}/policies/00002", tuesday))
    assert source.uri == "../monday/policies/00002"
    write(tuesday / "policies" / "00000", made(0, "digest-0", source, "a copy of runs/monday/policies/00002"))
    chain = follow(f"{tuesday}/policies/00001", files)
    assert [Path(link.uri).relative_to(tmp_path / "runs").as_posix() for link in chain] == [
        "tuesday/policies/00001",
        "tuesday/policies/00000",
        "monday/policies/00002",
        "monday/policies/00001",
        "monday/policies/00000",
    ]
    # Both runs have a trajectory of this name; the nearer one is meant.
    found = find_trajectory("00000-00000-1", chain, files)
    assert found["sampled_by"]["uri"] == f"{tuesday}/policies/00000"
    assert found["learned_by"] == [1]


def test_a_trajectory_tells_who_sampled_it_and_who_learned_from_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    chain = follow(f"{run}/policies/00002", files)
    found = find_trajectory("00000-00000-0", chain, files)
    assert (found["sampled_by"]["version"], found["task_id"], found["seed"]) == (0, "sum-0", 0)
    assert (found["reward"], found["advantage"]) == (1.0, 1.0)
    assert found["learned_by"] == [1, 2]
    assert find_trajectory("00001-00000-1", chain, files)["learned_by"] == [2]
    unused = find_trajectory("00001-00001-1", chain, files)
    assert (unused["seed"], unused["reward"], unused["advantage"], unused["learned_by"]) == (101, -1.0, 0.0, [])
    assert [line.plain for line in trajectory_lines(unused)][1:] == [
        f"    sampled by  policy 1, digest-1, {run}/policies/00001",
        "    task        sum-1, seed 101",
        "    reward      -1, finished",
        "    advantage   +0",
        "    learned by  none of these policies",
        "    user        17 + 25 = ?",
        "    assistant   PY 17 + 25",
    ]
    # The whole conversation is in the last sample of a trajectory.
    assert find_trajectory("00001-00000-0", chain, files)["messages"] == [*PLAY, *ON]


def test_what_a_policy_said_is_indented_and_cannot_control_the_terminal(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    found = find_trajectory("00000-00000-0", follow(f"{run}/policies/00001", files), files)
    said = [{"role": "assistant", "content": "<think>\neasy\x1b[2J\r</think>\nANSWER é"}]
    lines = trajectory_lines({**found, "messages": said})[-1].plain.split("\n")
    assert lines == ["    assistant   <think>", *(" " * 16 + text for text in (r"easy\x1b[2J\r</think>", "ANSWER é"))]


def test_tool_calls_are_shown(tmp_path: Path) -> None:
    found = find_trajectory("00000-00000-0", follow(f"{a_run(tmp_path / 'run')}/policies/00001", files), files)
    calls = [{"id": "1", "name": "python", "arguments": '{"code": "17 + 25"}'}]
    lines = trajectory_lines({**found, "messages": [{"role": "assistant", "content": "", "tool_calls": calls}]})
    assert lines[-1].plain == '    assistant   python {"code": "17 + 25"}'


@pytest.mark.parametrize(
    ("trajectory", "sentence"),
    [
        ("third", 'trajectory is "third"; allowed: an id such as "00003-00017-2": iteration, group, and number in'),
        (
            "00002-00000-0",
            'trajectory is "00002-00000-0"; allowed: one of the iterations that this policy comes from, 0',
        ),
        ("00001-00000-9", 'trajectory is "00001-00000-9"; allowed: one of the 4 episodes in '),
    ],
)
def test_a_trajectory_that_is_not_there_is_one_sentence(tmp_path: Path, trajectory: str, sentence: str) -> None:
    chain = follow(f"{a_run(tmp_path / 'run')}/policies/00002", files)
    with pytest.raises(ValueError) as caught:
        find_trajectory(trajectory, chain, files)
    assert str(caught.value).startswith(sentence) and str(caught.value).count(". ") == 0


def test_a_folder_without_a_lineage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'^policy is ".*"; allowed: a policy of a run, this folder has no _lineage'):
        follow(str(tmp_path), files)


def test_in_object_storage_only_small_files_and_the_batch_asked_for_are_read(tmp_path: Path) -> None:
    # As on a cluster: no output lies in a run's folder, each has a name of its own.
    run, store, home = a_run(tmp_path / "run"), fsspec.filesystem("memory"), "memory://bucket/lineage"
    for stage, number in (("policies", 0), ("policies", 1), ("trajectories", 0)):
        folder = run / stage / f"{number:05d}"
        text = json.loads((folder / LINEAGE).read_text())
        text = json.dumps(text).replace('"policies/', f'"{home}/policies-').replace('"traj', f'"{home}/traj')
        (folder / LINEAGE).write_text(text.replace("trajectories/", "trajectories-"))
        store.put(str(folder), f"/bucket/lineage/{stage}-{number:05d}", recursive=True)
    chain = follow(f"{home}/policies-00001", files)
    assert [(link.version, link.uri) for link in chain] == [
        (1, f"{home}/policies-00001"),
        (0, f"{home}/policies-00000"),
    ]
    assert [(batch.uri, batch.state) for batch in chain[0].batches] == [(f"{home}/trajectories-00000", KEPT)]
    found = find_trajectory("00000-00000-1", chain, files)
    assert (found["reward"], found["advantage"], found["learned_by"]) == (-1.0, -1.0, [1])
    assert found["sampled_by"]["uri"] == f"{home}/policies-00000"


def test_a_stored_uri_can_be_resolved() -> None:
    run = Path("/home/me/runs/monday")
    owner = f"{run}/policies/00004"
    for uri in (
        f"{run}/policies/00003",
        "/home/me/runs/sunday/policies/00001",
        "/models/qwen",
        "s3://bucket/a/b",
    ):
        assert resolve_uri(stored_uri(uri, run), owner) == uri
    assert stored_uri(f"{run}/policies/00003", run) == "policies/00003"
    assert stored_uri("/models/qwen", run) == "/models/qwen"


def test_the_digest_of_a_batch_is_of_its_rows_and_not_of_the_files_beside_them(tmp_path: Path) -> None:
    rows = [sample(0, group, member) for group, member in REWARDS]
    first, second = (write_batch(to_table(rows), tmp_path / folder) for folder in ("first", "second"))
    lineage = BatchLineage(iteration=0, sampled_by=name(0))
    write(first, lineage)
    assert read(first, BatchLineage) == lineage
    assert batch_digest(first) == batch_digest(second)
    other = write_batch(to_table(rows[:-1]), tmp_path / "other")
    assert batch_digest(other) != batch_digest(first)
