"""The description of a run in MLflow: its numbers, and a command that trains the same again."""

import shlex
from dataclasses import replace

from tasks.config import AlgorithmConfig, GrpoConfig, LoraConfig, RolloutConfig, Run, TrainingConfig
from tasks.evaluation.description import command, description
from tasks.evaluation.evaluate import Evaluation
from tasks.evaluation.page import Origin
from tasks.policy.checkpoint import Manifest
from tasks.run.create import _flat

RUN = Run("monday", "6f9c", 3, "blackjack", "", "4be1", "sqlite:///mlflow.db", policy="tiny")
PLAYER = {"expected_reward": -0.0361, "win_rate": 0.436, "push_rate": 0.092, "loss_rate": 0.472}
AFTER = Evaluation(
    policy_version=2,
    games=4096,
    expected_reward=-0.048,
    expected_reward_ci95=0.0213,
    win_rate=0.432,
    win_rate_ci95=0.011,
    push_rate=0.088,
    push_rate_ci95=0.006,
    loss_rate=0.48,
    loss_rate_ci95=0.011,
    regret=0.0114,
    regret_ci95=0.009,
    invalid_rate=0.0,
    invalid_rate_ci95=0.0,
    agreement=0.924,
    agreement_ci95=0.005,
    sampled_expected_reward=-0.12,
    players={"optimum": PLAYER},
)
EVALUATIONS = [replace(AFTER, policy_version=0, expected_reward=-0.806), AFTER]
POLICY = Manifest(2, "5f0c" * 16, "b2a1" * 16)
INPUTS = {"run_name": "monday", "policy": "models:/m@champion", "environment": "blackjack", "environment_url": ""}
SET = GrpoConfig(
    rollout=RolloutConfig(thinking=True, max_tokens=16, max_turns=8),
    algorithm=AlgorithmConfig(name="dapo"),
    training=TrainingConfig(learning_rate=1e-05, lora=LoraConfig(rank=16)),
)


def kept(config: GrpoConfig) -> dict[str, str]:
    """Parameters as MLflow keeps them."""
    flat = _flat({**INPUTS, "iterations": 2, "seed": 3, "lag": 1, "config": config.to_dict()})
    return {name: str(value) for name, value in flat.items()}


def test_the_result_stands_beside_the_optimum_and_the_policy_before() -> None:
    text = description(RUN, EVALUATIONS, 173_000, POLICY, "s3://bucket/policies/00002", None)
    assert "**Expected reward -0.048 ±0.021** a game of blackjack" in text
    assert "4,096 held-out decks the optimum gets -0.036, the policy before training -0.806." in text
    assert "Regret 0.011 ±0.009." in text
    assert "2 policy versions, 173,000 games, from `tiny`" in text
    assert "`s3://bucket/policies/00002`" in text
    assert "pyflyte" not in text  # MLflow did not say with what settings


def test_the_commit_is_named_where_it_is_known() -> None:
    tags = {"git.commit": "c0ffee" * 6 + "abcd", "git.dirty": "true"}
    text = description(RUN, EVALUATIONS, 100, POLICY, "policies/00002", Origin(kept(SET), tags, 0.0))
    assert "100 games, trained with dapo with adapters of rank 16 from `tiny`." in text
    assert "at commit `c0ffeec0ffee`, which had changes" in text
    assert f": `{command(RUN, kept(SET))}`\n" in text
    clean = description(RUN, EVALUATIONS, 100, POLICY, "p", Origin(kept(SET), {**tags, "git.dirty": "false"}, 0.0))
    assert "c0ffeec0ffee`:" in clean
    assert "commit" not in description(RUN, EVALUATIONS, 100, POLICY, "p", Origin(kept(SET), {}, 0.0))


def test_the_command_gives_the_same_settings_again() -> None:
    words = shlex.split(command(RUN, kept(SET)))
    assert words[:4] == ["pyflyte", "run", "workflows/grpo.py", "grpo"]
    given = dict(zip(words[4::2], words[5::2], strict=True))
    config = given.pop("--config")
    assert given == {
        "--policy": "tiny",  # what the alias named then
        "--iterations": "2",
        "--seed": "3",
        "--lag": "1",
        "--environment": "blackjack",
    }
    assert GrpoConfig.from_json(config) == SET
    assert '"learning_rate": 1e-05' in config and "epochs" not in config


def test_defaults_are_not_said() -> None:
    assert "--config" not in command(RUN, kept(GrpoConfig()))
