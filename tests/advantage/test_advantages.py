"""Advantages by hand: one reward a trajectory, centred in its group."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.advantage.advantages import add_advantages, decided, group_advantages


@pytest.mark.parametrize("reward", [1.0, 0.35, -1 / 3, 0.1, 1e6 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_equal_rewards_have_advantages_of_exactly_zero(reward: float, size: int) -> None:
    assert group_advantages(np.array([reward] * size), ["a"] * size).tolist() == [0.0] * size
    assert not decided(np.array([reward] * size), ["a"] * size).any()


def test_a_group_by_hand() -> None:
    # mean (1 + 1 + 0 - 1) / 4 = 0.25, and no division by the deviation
    assert group_advantages(np.array([1.0, 1, 0, -1]), ["a"] * 4).tolist() == [0.75, 0.75, -0.25, -1.25]


def test_turns_do_not_weigh() -> None:
    # One row a trajectory: three turns that lost, and one turn that won. The mean is 0, not (-3 + 1) / 4.
    batch = pa.table(
        {"group_id": ["g", "g"], "turns": [3, 1], "reward": pa.array([-1.0, 1.0], pa.float32())},
    )
    table, metrics = add_advantages(batch)
    assert table["advantage"].to_pylist() == [-1.0, 1.0]
    assert table["advantage"].type == pa.float32()
    assert metrics == {"advantage/kept_share": 1.0, "advantage/abs_mean": 1.0}


def test_groups_may_lie_mixed_up() -> None:
    rewards, groups = np.array([1.0, 0, -1, 1, 5, 5]), ["b", "a", "b", "a", "c", "c"]
    assert group_advantages(rewards, groups).tolist() == [1, -0.5, -1, 0.5, 0, 0]
    assert decided(rewards, groups).tolist() == [True, True, True, True, False, False]


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^group size is 1; allowed: 2 or more, a group of one has no baseline\.$"):
        group_advantages(np.array([1.0, 0.0, 1.0]), ["a", "a", "b"])


def test_a_batch_in_which_nothing_is_decided() -> None:
    batch = pa.table({"group_id": ["a", "a"], "reward": pa.array([0.35, 0.35], pa.float32())})
    table, metrics = add_advantages(batch)
    assert table["advantage"].to_pylist() == [0, 0]
    assert metrics == {"advantage/kept_share": 0.0, "advantage/abs_mean": 0.0}


@given(
    groups=st.lists(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_advantages_add_up_to_zero_and_keep_the_order_of_the_rewards(groups: list[list[float]], order) -> None:
    rows = [(f"{g}", reward) for g, rewards in enumerate(groups) for reward in rewards]
    order.shuffle(rows)
    ids, rewards = [g for g, _ in rows], np.array([r for _, r in rows])
    advantages = group_advantages(rewards, ids)
    for g, members in enumerate(groups):
        mine = np.array(ids) == f"{g}"
        assert abs(advantages[mine].sum()) < 1e-4
        differences = np.subtract.outer(advantages[mine], advantages[mine])
        assert np.allclose(differences, np.subtract.outer(rewards[mine], rewards[mine]), rtol=0, atol=1e-5)
        assert decided(rewards, ids)[mine].all() == (min(members) < max(members))
