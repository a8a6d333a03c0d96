"""The description of a run in MLflow: its numbers, and a command that trains the same policy again."""

import shlex
from dataclasses import replace

from evaluation.counting import SPEC as COUNTING
from tasks.config import GrpoConfig, Run
from tasks.environments.interface import Metric
from tasks.evaluation.records import Evaluation, Mean, Results
from tasks.evaluation.tracked import Origin, command, description
from tasks.policy.checkpoint import Manifest

RUN = Run(
    name="monday",
    token="6f9c",
    seed=3,
    environment="counting",
    environment_url="",
    mlflow_run_id="4be1",
    tracking_uri="sqlite:///mlflow.db",
    policy="tiny",
)
SPEC = replace(COUNTING, metrics=(Metric("wins", "wins", ".1%"), Metric("regret", "regret", headline=True)))
AFTER = Evaluation(
    reward=Mean(-0.048, 0.0213),
    metrics={"wins": Mean(0.432, 0.011), "regret": Mean(0.0114, 0.009)},
    policy_version=2,
    environment="counting",
    tasks=4096,
    seed=0,
    sampled_reward=Mean(-0.12, 0.05),
    baselines={"always_right": Results(reward=Mean(-0.0361, 0.02)), "random": Results(reward=Mean(-0.39, 0.02))},
)
EVALUATIONS = [replace(AFTER, policy_version=0, reward=Mean(-0.806, 0.02)), AFTER]
POLICY = Manifest(2, "5f0c" * 16, "b2a1" * 16)
GIVEN = GrpoConfig.from_dict(
    {
        "rollout": {"thinking": True, "max_tokens": 16},
        "algorithm": {"name": "dapo"},
        "training": {"learning_rate": 1e-05, "lora": {"rank": 16}},
    }
)
SET = RUN.replace(given=GIVEN)
PARAMETERS = {  # as MLflow keeps them
    **{"run_name": "monday", "policy": "models:/m@champion", "environment": "counting", "environment_url": ""},
    **{"iterations": "2", "seed": "3", "lag": "1", "algorithm.name": "dapo", "training.lora.rank": "16"},
}


def test_the_result_stands_beside_the_first_baseline_and_the_policy_before() -> None:
    text = description(RUN, SPEC, EVALUATIONS, 173_000, POLICY, "s3://bucket/policies/00002", None)
    assert "**Expected reward -0.048 ±0.021** an episode of counting" in text
    assert "4,096 test tasks the baseline always right gets -0.036, the policy before training gets -0.806." in text
    assert " Regret 0.011 ±0.009.\n" in text
    assert "2 policy versions, 173,000 episodes, from `tiny`" in text
    assert "`s3://bucket/policies/00002`" in text
    assert "pyflyte" not in text  # MLflow did not say with what settings


def test_an_environment_without_metrics_and_baselines_says_less() -> None:
    bare = [replace(evaluation, baselines={}) for evaluation in EVALUATIONS]
    text = description(RUN, COUNTING, bare, 100, POLICY, "p", None)
    assert "on the same 4,096 test tasks the policy before training gets -0.806.\n" in text


def test_the_commit_is_named_where_it_is_known() -> None:
    tags = {"git.commit": "c0ffee" * 6 + "abcd", "git.dirty": "true"}
    text = description(SET, SPEC, EVALUATIONS, 100, POLICY, "policies/00002", Origin(PARAMETERS, tags, 0.0))
    assert "100 episodes, trained with dapo with adapters of rank 16 from `tiny`." in text
    assert "at commit `c0ffeec0ffee`, which had changes" in text
    assert f": `{command(SET, Origin(PARAMETERS, {}, 0.0))}`\n" in text
    unchanged = Origin(PARAMETERS, {**tags, "git.dirty": "false"}, 0.0)
    clean = description(SET, SPEC, EVALUATIONS, 100, POLICY, "p", unchanged)
    assert "c0ffeec0ffee`:" in clean
    assert "commit" not in description(SET, SPEC, EVALUATIONS, 100, POLICY, "p", Origin(PARAMETERS, {}, 0.0))


def test_the_command_gives_the_same_settings_again() -> None:
    words = shlex.split(command(SET, Origin(PARAMETERS, {}, 0.0)))
    assert words[:4] == ["pyflyte", "run", "workflows/grpo.py", "grpo"]
    given = dict(zip(words[4::2], words[5::2], strict=True))
    config = given.pop("--config")
    assert given == {
        "--policy": "tiny",  # what the alias named then
        "--iterations": "2",
        "--seed": "3",
        "--lag": "1",
        "--environment": "counting",
    }
    assert GrpoConfig.from_json(config) == GIVEN
    assert '"learning_rate": 1e-05' in config and "epochs" not in config


def test_defaults_are_not_said() -> None:
    assert "--config" not in command(RUN, Origin(PARAMETERS, {}, 0.0))
