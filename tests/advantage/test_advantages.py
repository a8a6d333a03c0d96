"""Advantages worked out by hand: one reward for each trajectory, compared with its group."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.advantage.advantages import add_advantages, group_advantages, has_reward_variance
from tasks.config import AlgorithmConfig

ADVANTAGES = get_args(AlgorithmConfig.model_fields["advantage"].annotation)


@pytest.mark.parametrize("reward", [1.0, 0.35, -1 / 3, 0.1, 1e6 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_equal_rewards_have_advantages_of_exactly_zero(reward: float, size: int) -> None:
    assert group_advantages(np.array([reward] * size), ["a"] * size).tolist() == [0.0] * size
    assert not has_reward_variance(np.array([reward] * size), ["a"] * size).any()


@pytest.mark.parametrize("kind", ADVANTAGES)
@pytest.mark.parametrize("last", [0.35, 0.1 + 0.25, float(np.float32(0.35)), np.nextafter(0.35, 1)])
def test_a_rounding_error_is_no_difference(kind: str, last: float) -> None:
    # Seven rewards of 0.35 and one that was summed in another order: no division by a deviation of nearly 0.
    rewards = np.array([0.35] * 7 + [last])
    assert group_advantages(rewards, ["a"] * 8, kind).tolist() == [0.0] * 8
    assert group_advantages(rewards.astype(np.float32), ["a"] * 8, kind).tolist() == [0.0] * 8


def test_small_rewards_may_differ() -> None:
    assert group_advantages(np.array([1e-9, 3e-9]), ["a"] * 2, "mean_std").tolist() == [-1, 1]
    assert has_reward_variance(np.array([0.0, 1e-9, 5.0, 5.0]), ["a", "a", "b", "b"]).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_a_group_by_hand() -> None:
    # mean (1 + 1 + 0 - 1) / 4 = 0.25, and no division by the deviation
    assert group_advantages(np.array([1.0, 1, 0, -1]), ["a"] * 4).tolist() == [0.75, 0.75, -0.25, -1.25]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        # mean 0.25; deviations 0.75, 0.75, -0.25, -1.25, their mean square (9 + 9 + 1 + 25) / 16 / 4 = 0.6875
        ("mean_std", np.array([0.75, 0.75, -0.25, -1.25]) / np.sqrt(0.6875)),
        # against the mean of the other three: 1 - 0, 1 - 0, 0 - 1/3, -1 - 2/3
        ("leave_one_out", [1, 1, -1 / 3, -5 / 3]),
    ],
)
def test_the_other_kinds_by_hand(kind: str, wanted: Sequence[float]) -> None:
    assert group_advantages(np.array([1.0, 1, 0, -1]), ["a"] * 4, kind) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_a_dropped_trajectory_counts_nowhere(kind: str) -> None:
    nan = float("nan")
    rewards = np.array([1.0, nan, -1.0, nan, 0.5])
    groups = ["a", "a", "a", "b", "b"]
    advantages = group_advantages(rewards, groups, kind)
    assert advantages.tolist()[:3] == [advantages[0], 0.0, -advantages[0]]
    assert advantages[0] == {"leave_one_out": 2.0}.get(kind, 1.0)  # as in a group of two, not one with a reward of 0
    assert advantages.tolist()[3:] == [0, 0]  # the rest of the other group is a group of one
    assert has_reward_variance(rewards, groups).tolist() == [True, True, True, False, False]


def test_turns_have_no_weight() -> None:
    # One row a trajectory: three turns that lost, and one turn that won. The mean is 0, not (-3 + 1) / 4.
    batch = pa.table(
        {
            "trajectory_id": ["a", "b"],
            "group_id": ["g", "g"],
            "turns": [3, 1],
            "reward": pa.array([-1.0, 1.0], pa.float32()),
        },
    )
    table, metrics = add_advantages(batch)
    assert table["advantage"].to_pylist() == [-1.0, 1.0]
    assert table["advantage"].type == pa.float32()
    assert metrics == {"advantage/dropped_share": 0.0, "advantage/abs_mean": 1.0}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        # Rewards 1, 0, -1, -1 of four trajectories, the first in three samples: their mean is -0.25, with the first
        # counted three times it would be 1 / 6. Deviations 1.25, 0.25, -0.75, -0.75; mean square 2.75 / 4 = 0.6875.
        ("mean", np.array([1.25, 0.25, -0.75, -0.75])),
        ("mean_std", np.array([1.25, 0.25, -0.75, -0.75]) / np.sqrt(0.6875)),
        ("leave_one_out", np.array([1.25, 0.25, -0.75, -0.75]) * 4 / 3),
    ],
)
def test_a_trajectory_in_three_samples_counts_once(kind: str, wanted: np.ndarray) -> None:
    batch = pa.table(
        {
            "trajectory_id": ["g-0", "g-0", "g-0", "g-1", "g-2", "g-3", "h-0", "h-1"],
            "group_id": ["g"] * 6 + ["h"] * 2,
            "reward": pa.array([1, 1, 1, 0, -1, -1, 0, 0], pa.float32()),
        }
    )
    table, metrics = add_advantages(batch, kind)
    assert table["advantage"].to_pylist() == pytest.approx([wanted[0], *wanted[[0, 0]], *wanted[1:], 0, 0])
    assert metrics["advantage/dropped_share"] == pytest.approx(2 / 6)  # of trajectories, not of rows
    assert metrics["advantage/abs_mean"] == pytest.approx(np.abs(wanted).mean())


def test_a_lone_trajectory_in_two_samples_is_still_a_group_of_one() -> None:
    batch = pa.table({"trajectory_id": ["a", "a"], "group_id": ["g", "g"], "reward": pa.array([1, 1], pa.float32())})
    with pytest.raises(ValueError, match=r"^group size is 1; allowed: 2 or more"):
        add_advantages(batch)


def test_rows_of_groups_may_be_mixed() -> None:
    rewards, groups = np.array([1.0, 0, -1, 1, 5, 5]), ["b", "a", "b", "a", "c", "c"]
    assert group_advantages(rewards, groups).tolist() == [1, -0.5, -1, 0.5, 0, 0]
    assert has_reward_variance(rewards, groups).tolist() == [True, True, True, True, False, False]


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^group size is 1; allowed: 2 or more, a group of one has no baseline\.$"):
        group_advantages(np.array([1.0, 0.0, 1.0]), ["a", "a", "b"])


def test_a_batch_without_reward_variance() -> None:
    batch = pa.table(
        {"trajectory_id": ["a-0", "a-1"], "group_id": ["a", "a"], "reward": pa.array([0.35, 0.35], pa.float32())}
    )
    table, metrics = add_advantages(batch)
    assert table["advantage"].to_pylist() == [0, 0]
    assert metrics == {"advantage/dropped_share": 1.0, "advantage/abs_mean": 0.0}


@pytest.mark.parametrize("kind", ADVANTAGES)
@given(
    groups=st.lists(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_advantages_add_up_to_zero_and_keep_the_order_of_the_rewards(
    kind: str, groups: list[list[float]], order
) -> None:
    rows = [(f"{g}", reward) for g, rewards in enumerate(groups) for reward in rewards]
    order.shuffle(rows)
    ids, rewards = [g for g, _ in rows], np.array([r for _, r in rows])
    advantages = group_advantages(rewards, ids, kind)
    for g, members in enumerate(groups):
        mine = np.array(ids) == f"{g}"
        assert abs(advantages[mine].sum()) < 1e-4
        differs = max(members) - min(members) > 1e-6 * max(map(abs, members))
        assert has_reward_variance(rewards, ids)[mine].all() == differs
        if not differs:
            assert not advantages[mine].any()
            continue
        of = rewards[mine]
        scale = {"mean_std": of.std(), "leave_one_out": (len(of) - 1) / len(of)}.get(kind, 1.0)
        differences = np.subtract.outer(advantages[mine], advantages[mine])
        assert np.allclose(differences, np.subtract.outer(of, of) / scale, rtol=1e-4, atol=1e-5)
