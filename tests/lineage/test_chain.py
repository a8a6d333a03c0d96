"""Chains over small run folders made by hand: what is there, what is removed, what is missing."""

import json
import shutil
from dataclasses import replace
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
    place,
    read,
    resolved,
    write,
)
from tasks.lineage.show import chain_lines, trajectory_lines
from tasks.policy.checkpoint import REMOVED
from tasks.records import Sample, to_table, write_batch

PLAY = [{"role": "user", "content": "Cards 10 6, hard 16. Dealer 10."}, {"role": "assistant", "content": "HIT"}]
ON = [{"role": "user", "content": "Cards 10 6 2, hard 18. Dealer 10."}, {"role": "assistant", "content": "STAND"}]
# Group 0 is decided, group 1 is not.
REWARDS = {(0, 0): 1.0, (0, 1): -1.0, (1, 0): -1.0, (1, 1): -1.0}


def files(where: str) -> fsspec.AbstractFileSystem:
    return fsspec.url_to_fs(where)[0]


def sample(iteration: int, group: int, member: int, number: int = 0, said: list[dict[str, str]] = PLAY) -> Sample:
    return Sample(
        trajectory_id=f"{iteration:05d}-{group:05d}-{member}",
        sample=number,
        group_id=f"{iteration:05d}-{group:05d}",
        policy_version=iteration,
        seed=100 * iteration + group,
        token_ids=[1, 2],
        loss_mask=[False, True],
        logprobs=[0.0, -0.5],
        reward=REWARDS[group, member],
        turns=1,
        invalid=False,
        finish_reason="finished",
        messages=said,
    )


def name(version: int) -> PolicyName:
    return PolicyName(version, f"digest-{version}", f"policies/{version:05d}")


def a_run(run: Path, versions: int = 3) -> Path:
    """Policies 0 to `versions` - 1; each learned from group 0 of the batch before it, and version 2 also of batch 0."""
    for version in range(versions):
        policy = run / "policies" / f"{version:05d}"
        policy.mkdir(parents=True)
        reach = [version - 1, 0] if version == 2 else [version - 1]
        uses = [
            BatchUse(f"trajectories/{i:05d}", batch_digest(run / f"trajectories/{i:05d}"), i, name(i), 4, 2, age, used)
            for age, i in enumerate(reach if version else [])
            for used in [[f"{i:05d}-00000"]]
        ]
        origin = "" if version else "made on the spot: tiny, seed 0"
        parent = name(version - 1) if version else None
        write(policy, PolicyLineage(version, f"digest-{version}", parent, origin, uses))
        rows = [sample(version, group, member) for group, member in REWARDS]
        if version == 1:  # the first game goes on in a second sample, as where a template leaves thoughts out
            rows.insert(1, sample(1, 0, 0, 1, [*PLAY, *ON]))
        batch = write_batch(add_advantages(to_table(rows))[0], run / "trajectories" / f"{version:05d}")
        write(batch, BatchLineage(version, name(version)))
    return run


def test_a_chain_leads_back_to_where_the_training_began(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    chain = follow(f"{run}/policies/00002/", files)
    assert [(link.version, link.digest, link.state) for link in chain] == [
        (2, "digest-2", KEPT),
        (1, "digest-1", KEPT),
        (0, "digest-0", KEPT),
    ]
    assert [link.place for link in chain] == [f"{run}/policies/{v:05d}" for v in (2, 1, 0)]
    assert [(b.place, b.use.age, b.state) for b in chain[0].batches] == [
        (f"{run}/trajectories/00001", 0, KEPT),
        (f"{run}/trajectories/00000", 1, KEPT),
    ]
    assert chain[2].batches == [] and chain[2].origin == "made on the spot: tiny, seed 0"


def test_a_moved_run_has_its_chain_with_it(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "monday").rename(tmp_path / "elsewhere")
    chain = follow(str(tmp_path / "elsewhere" / "policies" / "00002"), files)
    assert [link.place for link in chain] == [str(tmp_path / "elsewhere" / "policies" / f"{v:05d}") for v in (2, 1, 0)]
    assert {batch.state for link in chain for batch in link.batches} == {KEPT}


def test_what_is_no_longer_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        f"    from 1 of 2 groups (4 games) that policy 1 played, age 0  {chain[0].batches[0].use.digest[:12]}"
        "  runs/monday/trajectories/00001  (changed since)",
        f"    from 1 of 2 groups (4 games) that policy 0 played, age 1  {chain[0].batches[1].use.digest[:12]}"
        "  runs/monday/trajectories/00000  (missing)",
        "policy 1  digest-1  runs/monday/policies/00001  (weights removed by its run)",
        f"    from 1 of 2 groups (4 games) that policy 0 played, age 0  {chain[0].batches[1].use.digest[:12]}"
        "  runs/monday/trajectories/00000  (missing)",
        "policy 0  digest-0  runs/monday/policies/00000  (missing)",
    ]


def test_another_policy_in_the_place_of_the_parent_is_not_taken_for_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    write(run / "policies" / "00001", PolicyLineage(1, "of another training", name(0)))
    chain = follow(f"{run}/policies/00002", files)
    assert [(link.version, link.digest, link.state) for link in chain] == [
        (2, "digest-2", KEPT),
        (1, "digest-1", CHANGED),
    ]


def test_a_run_that_began_with_a_policy_of_another_goes_on_there(tmp_path: Path) -> None:
    monday, tuesday = a_run(tmp_path / "runs" / "monday"), a_run(tmp_path / "runs" / "tuesday")
    source = PolicyName(2, "digest-2", place(f"{monday}/policies/00002", tuesday))
    assert source.uri == "../monday/policies/00002"
    write(tuesday / "policies" / "00000", PolicyLineage(0, "digest-0", source, "a copy of runs/monday/policies/00002"))
    chain = follow(f"{tuesday}/policies/00001", files)
    assert [Path(link.place).relative_to(tmp_path / "runs").as_posix() for link in chain] == [
        "tuesday/policies/00001",
        "tuesday/policies/00000",
        "monday/policies/00002",
        "monday/policies/00001",
        "monday/policies/00000",
    ]
    # Both runs have a trajectory of this name; the nearer one is meant.
    found = find_trajectory("00000-00000-1", chain, files)
    assert found.sampled_by.uri == f"{tuesday}/policies/00000"
    assert found.learned_by == [1]


def test_a_trajectory_tells_who_played_it_and_who_learned_from_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "monday")
    chain = follow(f"{run}/policies/00002", files)
    found = find_trajectory("00000-00000-0", chain, files)
    assert (found.sampled_by.version, found.seed, found.reward, found.advantage) == (0, 0, 1.0, 1.0)
    assert found.learned_by == [1, 2]
    assert find_trajectory("00001-00000-1", chain, files).learned_by == [2]
    undecided = find_trajectory("00001-00001-1", chain, files)
    assert (undecided.seed, undecided.reward, undecided.advantage, undecided.learned_by) == (101, -1.0, 0.0, [])
    assert [line.plain for line in trajectory_lines(undecided)][1:] == [
        f"    sampled by  policy 1, digest-1, {run}/policies/00001",
        "    deck seed   101",
        "    reward      -1, finished",
        "    advantage   +0",
        "    learned by  none of these policies",
        "    user        Cards 10 6, hard 16. Dealer 10.",
        "    assistant   HIT",
    ]
    # The whole conversation is in the last sample of a trajectory.
    assert find_trajectory("00001-00000-0", chain, files).messages == [*PLAY, *ON]


def test_what_a_policy_said_stays_in_its_place_and_commands_no_terminal(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    found = find_trajectory("00000-00000-0", follow(f"{run}/policies/00001", files), files)
    said = [{"role": "assistant", "content": "<think>\nhard 16\x1b[2J\r</think>\nHIT é"}]
    lines = trajectory_lines(replace(found, messages=said))[-1].plain.split("\n")
    assert lines == ["    assistant   <think>", *(" " * 16 + text for text in (r"hard 16\x1b[2J\r</think>", "HIT é"))]


@pytest.mark.parametrize(
    ("trajectory", "sentence"),
    [
        ("third", 'trajectory is "third"; allowed: an id such as "00003-00017-2": iteration, group, and number in'),
        (
            "00002-00000-0",
            'trajectory is "00002-00000-0"; allowed: one of the iterations that this policy comes from, 0',
        ),
        ("00001-00000-9", 'trajectory is "00001-00000-9"; allowed: one of the 4 games in '),
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
    assert [(link.version, link.place) for link in chain] == [
        (1, f"{home}/policies-00001"),
        (0, f"{home}/policies-00000"),
    ]
    assert [(batch.place, batch.state) for batch in chain[0].batches] == [(f"{home}/trajectories-00000", KEPT)]
    found = find_trajectory("00000-00000-1", chain, files)
    assert (found.reward, found.advantage, found.learned_by) == (-1.0, -1.0, [1])
    assert found.sampled_by.uri == f"{home}/policies-00000"


def test_places_are_written_so_that_they_can_be_found_again() -> None:
    run = Path("/home/me/runs/monday")
    owner = f"{run}/policies/00004"
    for uri in (
        f"{run}/policies/00003",
        "/home/me/runs/sunday/policies/00001",
        "/models/qwen",
        "s3://bucket/a/b",
    ):
        assert resolved(place(uri, run), owner) == uri
    assert place(f"{run}/policies/00003", run) == "policies/00003"
    assert place("/models/qwen", run) == "/models/qwen"


def test_a_batch_is_known_by_its_rows_and_not_by_what_lies_beside_them(tmp_path: Path) -> None:
    rows = [sample(0, group, member) for group, member in REWARDS]
    first, second = (write_batch(to_table(rows), tmp_path / folder) for folder in ("first", "second"))
    write(first, BatchLineage(0, name(0)))
    assert read(first, BatchLineage) == BatchLineage(0, name(0))
    assert batch_digest(first) == batch_digest(second)
    other = write_batch(to_table(rows[:-1]), tmp_path / "other")
    assert batch_digest(other) != batch_digest(first)
