"""The progress that long stages report while they really sample and train."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from objectives import objective
from rollouts import sample_batch
from tasks.config import RolloutConfig, TrainingConfig
from tasks.evaluation.evaluate import SAMPLED, TaskSet, evaluate_policy
from tasks.training.train import train_on
from tasks.training.trainer import Trainer

Reported = list[tuple[float, float, str]]
ROLLOUT = RolloutConfig(
    groups=6,
    max_groups=200,
    group_size=4,
    max_tokens=4,
    max_turns=16,
    max_episode_tokens=256,
    concurrent_episodes=16,
)


def test_a_rollout_reports_the_groups_that_it_kept(tiny_policy: Path) -> None:
    reported: Reported = []
    _, metrics = sample_batch(
        tiny_policy,
        ROLLOUT,
        environment="blackjack",
        url="",
        run_seed=0,
        iteration=0,
        progress=lambda *report: reported.append(report),
    )
    kept = [done for done, _, _ in reported]
    assert {total for _, total, _ in reported} == {6}
    assert kept == sorted(kept) and kept[-1] == metrics["rollout/groups_with_variance"] >= 6
    assert len(kept) > metrics["rollout/groups"] / 4  # more often than once for 16 episodes


def test_a_training_reports_its_optimizer_steps(newborn_policy: Path) -> None:
    reported: Reported = []
    draw, lengths = np.random.default_rng(0), range(4, 28)
    batch = pa.table(
        {
            "trajectory_id": [str(i) for i in range(24)],
            "group_id": [f"00000-{i // 2}" for i in range(24)],
            "token_ids": [draw.integers(3, 300, length) for length in lengths],
            "loss_mask": [[False] * 2 + [True] * (length - 2) for length in lengths],
            "logprobs": [[-1.0] * length for length in lengths],
            "advantage": [0.5, -0.5] * 12,
        }
    )
    _, steps = train_on(
        batch,
        Trainer(newborn_policy, TrainingConfig(epochs=2, minibatch_size=8), temperature=1.0, schedule_steps=1),
        objective(kl_coefficient=0.0),
        policy_version=0,
        seed=0,
        progress=lambda *report: reported.append(report),
    )
    assert len(steps) == 6
    assert reported == [(i + 1, 6, f"loss {step['loss']:+.4f}") for i, step in enumerate(steps)]


@pytest.mark.parametrize("tasks", [48, SAMPLED + 8])
def test_an_evaluation_reports_greedy_and_sampled_episodes(tiny_policy: Path, tasks: int) -> None:
    reported: Reported = []
    task_set = TaskSet("blackjack", tasks, seed=0)
    found = evaluate_policy(tiny_policy, ROLLOUT, task_set, progress=lambda *report: reported.append(report))
    total = tasks + min(tasks, SAMPLED)
    assert {whole for _, whole, _ in reported} == {total}
    assert [done for done, _, _ in reported] == sorted(done for done, _, _ in reported)
    assert reported[-1][:2] == (total, total)
    assert (tasks, total, f"reward {found.reward.mean:+.3f}") in reported
