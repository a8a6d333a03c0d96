"""The selection from the last batches: whole groups with a gradient, the freshest first, none too old or used up."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tasks.buffer.selection import COLUMNS, gather, select_groups
from tasks.buffer.training_batch import TrainingBatch
from tasks.config import BufferConfig
from tasks.records import read_batch, write_batch


def batch(version: int, groups: dict[str, list[float]]) -> pa.Table:
    """The columns that the buffer reads, from the advantages of each group's members."""
    rows = [
        {"group_id": group, "policy_version": version, "advantage": advantage, "trajectory_id": f"{group}-{i}"}
        for group, advantages in groups.items()
        for i, advantage in enumerate(advantages)
    ]
    schema = pa.schema(
        [("group_id", "string"), ("policy_version", "int32"), ("advantage", "float32"), ("trajectory_id", "string")]
    )
    return pa.Table.from_pylist(rows, schema)


LEARN, FLAT = [1.0, -1.0], [0.0, 0.0]
HISTORY = [batch(v, {f"{v}-0": LEARN, f"{v}-1": FLAT, f"{v}-2": LEARN}) for v in range(5)]


def select(
    batches: list[pa.Table] = HISTORY,
    policy_version: int = 4,
    *,
    wanted: int = 99,
    uses: dict[str, int] | None = None,
    seed: int = 0,
    **config: int,
) -> TrainingBatch:
    """A selection in which nothing is too old or used up, except by `config` and `uses`."""
    settings = BufferConfig(**{"max_age": 99, **config})
    return select_groups(batches, settings, wanted=wanted, uses=uses or {}, policy_version=policy_version, seed=seed)


def test_every_group_with_a_gradient_is_chosen_without_limits() -> None:
    assert set(select().group_ids) == {f"{v}-{g}" for v in range(5) for g in (0, 2)}
    assert set(select(HISTORY[3:]).group_ids) == {"3-0", "3-2", "4-0", "4-2"}  # of the batches given, no others
    assert set(select(HISTORY[:1], policy_version=0).group_ids) == {"0-0", "0-2"}


def test_groups_that_are_left_out_are_counted() -> None:
    uses = {"3-0": 1, "3-2": 2, "4-0": 2}
    selection = select(HISTORY[1:], wanted=1, uses=uses, max_age=1, reuse=2)
    assert selection.group_ids == ["4-2"]
    assert selection.metrics == {
        "buffer/groups_in_reach": 12,
        "buffer/groups_too_old": 6,  # versions 1 and 2
        "buffer/groups_without_gradient": 2,
        "buffer/groups_used_up": 2,  # 3-2 and 4-0
        "buffer/groups_waiting": 1,  # 3-0
        "buffer/groups": 1,
        "buffer/trajectories": 2,
        "buffer/staleness_mean": 0,
        "buffer/staleness_max": 0,
    }


def test_staleness_is_counted_in_policy_versions() -> None:
    mixed = [batch(1, {"a": [1.0, -1.0, 0.0, 0.0]}), batch(4, {"b": LEARN, "c": LEARN})]
    metrics = select(mixed, policy_version=5).metrics
    assert metrics["buffer/staleness_mean"] == (4 * 4 + 2 * 1 + 2 * 1) / 8  # over trajectories
    assert metrics["buffer/staleness_max"] == 4


def test_a_trajectory_in_several_samples_counts_once_and_is_gathered_whole() -> None:
    split = pa.concat_tables([batch(1, {"a": LEARN}), batch(1, {"a": LEARN}).slice(1)])  # a-1 is in two samples
    selection = select([split, batch(4, {"b": LEARN})], policy_version=5)
    assert selection.metrics["buffer/trajectories"] == 4
    assert selection.metrics["buffer/staleness_mean"] == (2 * 4 + 2 * 1) / 4
    assert gather([split], ["a"])["trajectory_id"].to_pylist() == ["a-0", "a-1", "a-1"]


def test_an_age_of_exactly_max_age_is_allowed() -> None:
    assert set(select(policy_version=9, max_age=5).group_ids) == {"4-0", "4-2"}
    assert select(policy_version=10, max_age=5).group_ids == []
    assert set(select(max_age=0).group_ids) == {"4-0", "4-2"}
    # It is the policy version that counts, not how many batches ago: with lag 1 the first two are both of version 0.
    lagged = [batch(0, {"a": LEARN}), batch(0, {"b": LEARN}), batch(1, {"c": LEARN})]
    assert set(select(lagged, policy_version=2, max_age=2).group_ids) == {"a", "b", "c"}
    assert set(select(lagged, policy_version=2, max_age=1).group_ids) == {"c"}


def test_without_a_gradient_the_training_batch_is_empty() -> None:
    selection = select([batch(0, {"a": FLAT})], policy_version=0)
    assert selection.group_ids == [] and selection.uses == {}
    assert selection.metrics["buffer/groups"] == selection.metrics["buffer/staleness_mean"] == 0
    assert len(gather([batch(0, {"a": FLAT})], selection.group_ids)) == 0


def test_the_freshest_come_first() -> None:
    assert [group[0] for group in select().group_ids] == list("4433221100")
    assert [group[0] for group in select(wanted=3).group_ids] == list("443")
    assert select(wanted=3).group_ids == select().group_ids[:3]
    assert select(HISTORY[::-1]).group_ids == select().group_ids  # in any order of the batches


def test_ties_are_broken_by_the_seed_and_not_by_the_order_of_rows() -> None:
    names = [f"g{i}" for i in range(20)]
    forwards, backwards = batch(0, dict.fromkeys(names, LEARN)), batch(0, dict.fromkeys(names[::-1], LEARN))

    def first(table: pa.Table, seed: int, version: int = 0) -> list[str]:
        return select([table], policy_version=version, seed=seed, wanted=5).group_ids

    assert first(forwards, 0) == first(forwards, 0) == first(backwards, 0)
    assert first(forwards, 0) != first(forwards, 1)
    assert first(forwards, 0, version=0) != first(forwards, 0, version=1)  # another draw in each iteration
    assert sorted(first(forwards, 0)) != sorted(names)[:5]


def test_a_group_is_in_at_most_reuse_training_batches() -> None:
    for reuse in (1, 2, 3):
        seen, uses = Counter[str](), {}
        for version in range(4, 9):  # five stages over the same batches
            selection = select(policy_version=version, uses=uses, reuse=reuse)
            seen.update(selection.group_ids)
            uses = selection.uses
        assert seen == {f"{v}-{g}": reuse for v in range(5) for g in (0, 2)}
        assert uses == seen
        assert selection.metrics["buffer/groups_used_up"] == 10 and selection.group_ids == []


def test_a_batch_short_of_fresh_groups_is_filled_with_waiting_ones() -> None:
    rich = batch(0, {f"0-{g}": LEARN for g in range(6)})
    poor = [batch(v, {f"{v}-0": LEARN, f"{v}-1": FLAT}) for v in (1, 2)]
    first = select([rich], policy_version=0, wanted=3)
    second = select([rich, poor[0]], policy_version=1, wanted=3, uses=first.uses)
    third = select([rich, *poor], policy_version=2, wanted=3, uses=second.uses)
    assert [len(s.group_ids) for s in (first, second, third)] == [3, 3, 2]
    assert second.group_ids[0] == "1-0" and third.group_ids[0] == "2-0"
    older = [*first.group_ids, *second.group_ids[1:], *third.group_ids[1:]]
    assert sorted(older) == [f"0-{g}" for g in range(6)]  # each group of the first batch once, after waiting
    assert [s.metrics["buffer/groups_waiting"] for s in (first, second, third)] == [3, 1, 0]


def test_counts_of_groups_out_of_reach_are_forgotten() -> None:
    first = select(HISTORY[:1], policy_version=0, max_age=1)
    second = select(HISTORY[:2], policy_version=1, uses=first.uses, max_age=1)
    third = select(HISTORY[1:3], policy_version=2, uses=second.uses, max_age=1)
    assert first.uses == {"0-0": 1, "0-2": 1}
    assert second.uses == {"0-0": 1, "0-2": 1, "1-0": 1, "1-2": 1}
    assert third.uses == {"1-0": 1, "1-2": 1, "2-0": 1, "2-2": 1}


def test_what_is_too_old_is_left_out_and_stays_on_disk(tmp_path: Path) -> None:
    folders = [write_batch(table, tmp_path / f"{v:05d}") for v, table in enumerate(HISTORY)]

    def on_disk() -> dict[Path, tuple[bytes, int]]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before, uses = on_disk(), {}
    for version in range(5):
        read = [read_batch(folder, COLUMNS) for folder in folders[: version + 1]]
        selection = select(read, policy_version=version, uses=uses, max_age=1, reuse=2)
        uses = selection.uses
        in_reach = range(max(0, version - 1), version + 1)
        assert set(selection.group_ids) == {f"{v}-{g}" for v in in_reach for g in (0, 2)}
        assert selection.metrics["buffer/groups_too_old"] == 3 * (version + 1 - len(in_reach))
    assert on_disk() == before and len(before) == 5 * 2  # each batch has its rows and their checksums
    assert [read_batch(folder).equals(table) for folder, table in zip(folders, HISTORY, strict=True)] == [True] * 5


def test_gather_gives_whole_groups_in_the_order_chosen() -> None:
    mixed = batch(1, {"a": LEARN, "b": LEARN, "c": LEARN}).take([4, 0, 2, 5, 1, 3])
    rows = gather([HISTORY[0], mixed], ["c", "0-2", "a"])
    assert rows["trajectory_id"].to_pylist() == ["c-0", "c-1", "0-2-0", "0-2-1", "a-0", "a-1"]
    assert rows.schema == mixed.schema
    assert len(gather([mixed], [])) == 0


@given(
    # An iteration's batch: the advantage of each of its groups; 0 has no gradient.
    history=st.lists(st.lists(st.sampled_from([0.0, 0.5, -0.5]), min_size=1, max_size=5), min_size=1, max_size=8),
    lag=st.integers(0, 1),
    max_age=st.integers(1, 4),
    reuse=st.integers(1, 3),
    wanted=st.integers(1, 8),
    seed=st.integers(0, 3),
)
def test_the_rules_hold_in_a_whole_training(
    history: list[list[float]], lag: int, max_age: int, reuse: int, wanted: int, seed: int
) -> None:
    config = BufferConfig(max_age=max_age, reuse=reuse)
    batches: list[pa.Table] = []
    sampled_by: dict[str, int] = {}  # group: policy version
    used, uses = Counter[str](), {}
    for v, advantages in enumerate(history):
        version = max(0, v - lag)
        groups = {f"{v}-{g}": [a, -a, 0.0] for g, a in enumerate(advantages)}
        batches.append(batch(version, groups))
        sampled_by |= dict.fromkeys(groups, version)
        # What may be chosen: sampled lately, rewards that differ, not used up.
        eligible = {
            f"{b}-{g}"
            for b, row in enumerate(history[: v + 1])
            for g, a in enumerate(row)
            if a and v - sampled_by[f"{b}-{g}"] <= max_age and used[f"{b}-{g}"] < reuse
        }
        recent = batches[-(max_age + 1) :]  # as the workflow gives them: no batch in reach is missing
        selection = select_groups(recent, config, wanted=wanted, uses=uses, policy_version=v, seed=seed)
        chosen, uses = selection.group_ids, selection.uses
        used.update(chosen)

        assert set(chosen) <= eligible and len(chosen) == len(set(chosen)) == min(wanted, len(eligible))
        assert max(used.values(), default=0) <= reuse
        assert uses == {group: n for group, n in used.items() if v - sampled_by[group] <= max_age}
        versions = [sampled_by[group] for group in chosen]
        assert versions == sorted(versions, reverse=True)
        left = [sampled_by[group] for group in eligible.difference(chosen)]
        assert max(left, default=-1) <= min(versions, default=99)  # the freshest first

        rows = gather(recent, chosen).to_pandas()
        assert (v - rows["policy_version"] <= max_age).all()
        assert list(rows["group_id"]) == [group for group in chosen for _ in range(3)]  # whole
        assert (rows.groupby("group_id")["advantage"].apply(lambda a: a.abs().max()) > 0).all()
        ages = [v - version for version in versions]
        assert selection.metrics["buffer/trajectories"] == len(rows) == 3 * selection.metrics["buffer/groups"]
        assert selection.metrics["buffer/groups_waiting"] == len(left)
        assert selection.metrics["buffer/staleness_mean"] == (sum(ages) / len(ages) if ages else 0)
        assert selection.metrics["buffer/staleness_max"] == max(ages, default=0)
