"""The window over batches: whole groups, informative ones, none too old."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tasks.buffer.window import select_groups, take
from tasks.config import BufferConfig


def batch(version: int, groups: dict[str, list[float]]) -> pa.Table:
    """The columns that the buffer reads; a group's name is given its members' advantages."""
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


def chosen(policy_version: int = 4, seed: int = 0, batches: list[pa.Table] | None = None, **config: int) -> list[str]:
    settings = BufferConfig(**{"batches": 99, "max_age": 99, **config})
    batches = HISTORY if batches is None else batches
    return select_groups(batches, settings, policy_version=policy_version, seed=seed).group_ids


def test_the_last_batches_only() -> None:
    assert set(chosen(batches=HISTORY[:])) == {f"{v}-{g}" for v in range(5) for g in (0, 2)}
    assert set(select_groups(HISTORY, BufferConfig(batches=2), policy_version=4, seed=0).group_ids) == {
        *("3-0", "3-2", "4-0", "4-2")
    }
    assert set(select_groups(HISTORY[:1], BufferConfig(batches=2), policy_version=0, seed=0).group_ids) == {
        *("0-0", "0-2")
    }


def test_groups_that_are_too_old_or_teach_nothing_are_left_out_and_counted() -> None:
    selection = select_groups(HISTORY, BufferConfig(batches=4, max_age=1), policy_version=4, seed=0)
    assert set(selection.group_ids) == {"3-0", "3-2", "4-0", "4-2"}
    assert selection.metrics == {
        "buffer/groups_in_window": 12,
        "buffer/groups_too_old": 6,  # versions 1 and 2
        "buffer/groups_without_gradient": 2,
        "buffer/groups": 4,
        "buffer/trajectories": 8,
        "buffer/staleness_mean": 0.5,
        "buffer/staleness_max": 1,
    }


def test_an_age_of_exactly_max_age_is_allowed() -> None:
    assert chosen(policy_version=9, max_age=5) != []  # sampled by version 4
    assert chosen(policy_version=10, max_age=5) == []
    assert set(chosen(max_age=0)) == {"4-0", "4-2"}


def test_nothing_to_learn_from_is_an_empty_window() -> None:
    selection = select_groups([batch(0, {"a": FLAT})], BufferConfig(), policy_version=0, seed=0)
    assert selection.group_ids == []
    assert selection.metrics["buffer/groups"] == selection.metrics["buffer/staleness_mean"] == 0


def test_the_freshest_come_first() -> None:
    assert [group[0] for group in chosen()] == list("4433221100")
    assert [group[0] for group in chosen(max_groups=3)] == list("443")
    assert chosen(max_groups=3) == chosen()[:3]


def test_ties_are_broken_by_the_seed_and_not_by_the_order_of_rows() -> None:
    names = [f"g{i}" for i in range(20)]
    forwards, backwards = batch(0, dict.fromkeys(names, LEARN)), batch(0, dict.fromkeys(names[::-1], LEARN))

    def first(table: pa.Table, seed: int, version: int = 0) -> list[str]:
        return chosen(policy_version=version, seed=seed, batches=[table], max_groups=5)

    assert first(forwards, 0) == first(forwards, 0) == first(backwards, 0)
    assert first(forwards, 0) != first(forwards, 1)
    assert first(forwards, 0, version=0) != first(forwards, 0, version=1)  # another draw in each iteration
    assert sorted(first(forwards, 0)) != sorted(names)[:5]


def test_take_gives_whole_groups_in_the_order_chosen() -> None:
    mixed = batch(1, {"a": LEARN, "b": LEARN, "c": LEARN}).take([4, 0, 2, 5, 1, 3])
    rows = take([HISTORY[0], mixed], ["c", "0-2", "a"])
    assert rows["trajectory_id"].to_pylist() == ["c-0", "c-1", "0-2-0", "0-2-1", "a-0", "a-1"]
    assert rows.schema == mixed.schema
    assert len(take([mixed], [])) == 0


@given(
    versions=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    values=st.lists(st.sampled_from([0.0, 0.5, -0.5]), min_size=18, max_size=18),
    window=st.integers(1, 6),
    max_age=st.integers(0, 6),
    max_groups=st.integers(0, 8),
)
def test_what_is_taken_is_whole_fresh_and_informative(
    versions: list[int], values: list[float], window: int, max_age: int, max_groups: int
) -> None:
    batches = [
        batch(version, {f"{i}-{g}": [values[3 * i + g], -values[3 * i + g], 0.0] for g in range(3)})
        for i, version in enumerate(sorted(versions))
    ]
    config = BufferConfig(batches=window, max_age=max_age, max_groups=max_groups)
    selection = select_groups(batches, config, policy_version=6, seed=1)
    rows = take(batches, selection.group_ids).to_pandas()
    assert (6 - rows["policy_version"] <= max_age).all()
    assert (rows.groupby("group_id").size() == 3).all()
    assert (rows.groupby("group_id")["advantage"].apply(lambda a: a.abs().max()) > 0).all()
    assert not max_groups or len(selection.group_ids) <= max_groups
    assert {int(group.split("-")[0]) for group in selection.group_ids} <= set(range(len(versions))[-window:])
    assert list(rows["policy_version"]) == sorted(rows["policy_version"], reverse=True)
    assert len(rows) == selection.metrics["buffer/trajectories"]
