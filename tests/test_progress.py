"""What long stages tell whoever watches, while they really play and train."""

from pathlib import Path

import pytest

from tasks.advantage.advantages import add_advantages
from tasks.config import AlgorithmConfig, RolloutConfig, TrainingConfig
from tasks.evaluation.evaluate import SAMPLED, evaluate_policy
from tasks.rollout.rollout import sample_batch
from tasks.training.train import train_on
from tasks.training.trainer import Trainer

Told = list[tuple[float, float, str]]


def test_rollout_and_training_tell_how_far_they_are(tiny_policy: Path) -> None:
    told: Told = []
    config = RolloutConfig(groups=6, max_groups=200, group_size=4, concurrent_episodes=16)
    batch, metrics = sample_batch(
        tiny_policy,
        config,
        environment="blackjack",
        url="",
        run_seed=0,
        iteration=0,
        progress=lambda done, total, note: told.append((done, total, note)),
    )
    kept = [done for done, _, _ in told]
    assert {total for _, total, _ in told} == {6}
    assert kept == sorted(kept) and kept[0] == 0 and kept[-1] == metrics["rollout/groups_with_variance"] >= 6
    assert len(kept) > metrics["rollout/groups"] / 4  # more often than once a wave of four groups
    assert told[-1][2].endswith(f" games/s  reward {metrics['rollout/expected_reward']:+.3f}")

    steps: Told = []
    _, rows = train_on(
        add_advantages(batch, "mean")[0],
        Trainer(tiny_policy, TrainingConfig(epochs=2, minibatch_size=8), temperature=1.0, schedule_steps=1),
        AlgorithmConfig(kl_coefficient=0),
        policy_version=0,
        seed=0,
        progress=lambda done, total, note: steps.append((done, total, note)),
    )
    assert steps == [(i + 1, len(rows), f"loss {row['loss']:+.4f}") for i, row in enumerate(rows)]
    assert len(rows) > 2


@pytest.mark.parametrize("games", [48, SAMPLED + 8])
def test_an_evaluation_tells_of_greedy_and_sampled_games(tiny_policy: Path, games: int) -> None:
    told: Told = []
    found = evaluate_policy(
        tiny_policy,
        RolloutConfig(),
        environment="blackjack",
        games=games,
        seed=0,
        progress=lambda done, total, note: told.append((done, total, note)),
    )
    assert {total for _, total, _ in told} == {games + min(games, SAMPLED)}
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][:2] == (games + min(games, SAMPLED),) * 2
    assert (games, told[0][1], f"reward {found.expected_reward:+.3f}") in told
