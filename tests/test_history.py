"""What an iteration leaves for the report, counted by hand, and how it is copied on from policy to policy."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tasks.history import (
    LINES,
    Iteration,
    carry_on,
    check_trained,
    distribution,
    episodes_before,
    iteration_of,
    read_history,
)
from tasks.records import Sample, to_table

METRICS = {
    "rollout/raw_reward": -1 / 3,
    "rollout/invalid_share": 1 / 3,
    "rollout/truncated_share": 0.25,
    "time/rollout_s": 2.0,
    "time/overhead_s": 0.25,
    "train/kl": 0.1,
    "train/steps": 4.0,
}


def sample(trajectory: int, number: int, mask: list[bool], reward: float | None, turns: int, outcome: str) -> Sample:
    return Sample(
        trajectory_id=f"00003-00000-{trajectory}",
        sample=number,
        group_id="00003-00000",
        task_id="1",
        seed=1,
        policy_version=3,
        token_ids=[7] * len(mask),
        loss_mask=mask,
        logprobs=[0.0] * len(mask),
        reward=reward,
        raw_reward=reward,
        turns=turns,
        invalid=False,
        finish_reason="finished",
        outcome=outcome,
        error="",
        metrics=[],
        messages=[],
    )


BATCH = to_table(
    [
        sample(0, 0, [False, True, True], 1.0, 1, "won"),
        sample(1, 0, [False, True], -1.0, 2, "lost"),  # an episode in two samples counts once, with the tokens of both
        sample(1, 1, [False, False, True, True, True], -1.0, 2, "lost"),
        sample(2, 0, [False, False], None, 16, "lost"),  # dropped: no reward, and nothing that teaches
    ]
)


def test_an_episode_counts_once_with_all_its_tokens() -> None:
    found = iteration_of(BATCH, METRICS, 3)
    assert (found.iteration, found.episodes, found.raw_reward) == (3, 3, -0.33333)
    assert (found.invalid_share, found.truncated_share) == (0.33333, 0.25)
    assert found.outcomes == {"lost": 2, "won": 1}
    assert found.seconds == {"rollout": 2.0, "overhead": 0.25}
    assert found.rewards.counts == [(-1.0, 1), (1.0, 1)] and found.rewards.mean == 0
    assert found.tokens.counts == [(0.0, 1), (2.0, 1), (4.0, 1)]
    assert found.turns.counts == [(1.0, 1), (2.0, 1), (16.0, 1)]


def test_many_values_have_quantiles_and_no_counts() -> None:
    found = distribution(np.arange(101.0))
    assert found.counts == [] and found.mean == 50 and found.quantiles == [5, 25, 50, 75, 95]
    nothing = distribution(np.array([np.nan]))
    assert nothing.counts == [] and nothing.mean == 0


def test_a_policy_has_the_history_of_those_before(tmp_path: Path) -> None:
    policies = [tmp_path / str(version) for version in range(3)]
    for policy in policies:
        policy.mkdir()
    assert read_history(policies[0]) == []
    for version in (0, 1):
        carry_on(policies[version], policies[version + 1], BATCH, METRICS, version)
        carry_on(policies[version], policies[version + 1], BATCH, METRICS, version)  # a stage that is repeated
    history = read_history(policies[2])
    assert [(one.iteration, one.played, one.steps) for one in history] == [(0, 3, 4), (1, 6, 8)]
    assert history[0] == read_history(policies[1])[0] == iteration_of(BATCH, METRICS, 0)
    assert [episodes_before(history, version) for version in range(3)] == [0, 3, 6]


def test_a_long_run_keeps_every_second_iteration_and_counts_all_of_its_episodes(tmp_path: Path) -> None:
    for version in range(2 * LINES + 1):
        carry_on(tmp_path, tmp_path, BATCH, METRICS, version)
        history = read_history(tmp_path)
        assert len(history) <= LINES + 1 and history[-1].iteration == version
        assert history[-1].played == episodes_before(history, version + 1) == 3 * (version + 1)
        if version == LINES + 3:
            assert [iteration.iteration for iteration in history] == [*range(0, LINES + 3, 2), version]
    assert {after.iteration - before.iteration for before, after in pairwise(history)} == {4}
    assert episodes_before(history, 101) == 3 * 101


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown key"):
        Iteration.from_dict({"no such": 1})


def test_a_run_without_an_optimizer_step_ends_with_an_error() -> None:
    def iteration(number: int, steps: int) -> Iteration:
        some = distribution(np.array([-1.0]))
        return Iteration(number, 8, 8 * number, -1.0, 0.75, 0.25, {}, some, some, some, {"lost": 8}, steps)

    for fine in ([], [iteration(0, 0), iteration(1, 3)], [iteration(0, 3), iteration(1, 3)]):
        check_trained(fine)
    with pytest.raises(RuntimeError) as caught:
        check_trained([iteration(0, 0), iteration(1, 0)])
    assert str(caught.value) == (
        "no optimizer step was taken in 2 iterations, the policy has the weights that it began with: no group had "
        "rewards that differ (in the last batch 75.0% of the episodes invalid, 25.0% truncated, reward -1)."
    )
