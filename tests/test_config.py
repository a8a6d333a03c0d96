"""Inputs of a workflow: defaults that fit together, and bad values refused in one sentence."""

import json
from dataclasses import FrozenInstanceError

import pytest

from tasks.config import (
    AlgorithmConfig,
    BufferConfig,
    EvaluationConfig,
    GrpoConfig,
    Record,
    RolloutConfig,
    Run,
    TinyPolicyConfig,
    TrainingConfig,
)

RECORDS = [
    GrpoConfig,
    RolloutConfig,
    AlgorithmConfig,
    BufferConfig,
    TrainingConfig,
    EvaluationConfig,
    TinyPolicyConfig,
]


@pytest.mark.parametrize("record", RECORDS)
def test_the_defaults_are_allowed_and_survive_json(record: type[Record]) -> None:
    assert record.from_json(record().to_json()) == record()
    assert record.from_json("{}") == record()


def test_a_run_survives_json() -> None:
    run = Run("monday", "6f9c", 0, "blackjack", "", "4be1", "sqlite:///runs/mlflow.db")
    assert Run.from_json(run.to_json()) == run


def test_one_changed_value_keeps_the_other_defaults() -> None:
    config = GrpoConfig.from_json('{"training": {"epochs": 2}, "rollout": {"temperature": 0.5}}')
    assert (config.training.epochs, config.rollout.temperature) == (2, 0.5)
    assert config.training.learning_rate == TrainingConfig().learning_rate
    assert config.algorithm == AlgorithmConfig()


def complaint(record: type[Record], values: dict[str, object]) -> str:
    with pytest.raises(ValueError) as caught:
        record.from_json(json.dumps(values))
    return str(caught.value)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    assert complaint(GrpoConfig, {"trainin": {}}) == (
        'config has an unknown key "trainin" (did you mean "training"?); '
        "allowed: rollout, algorithm, buffer, training, evaluation, tiny."
    )
    nested = complaint(GrpoConfig, {"training": {"learningrate": 1}})
    assert nested.startswith(
        'config has an unknown key "training.learningrate" (did you mean "learning_rate"?); allowed: ep'
    )
    assert complaint(BufferConfig, {"xyz": 1}) == (
        'config has an unknown key "xyz"; allowed: batches, max_age, max_groups.'
    )


@pytest.mark.parametrize(
    ("record", "key", "value", "name"),
    [
        (RolloutConfig, "groups", 0, "rollout.groups"),
        (RolloutConfig, "group_size", 1, "rollout.group_size"),
        (RolloutConfig, "temperature", 0, "rollout.temperature"),
        (RolloutConfig, "max_tokens", 0, "rollout.max_tokens"),
        (RolloutConfig, "max_turns", 0, "rollout.max_turns"),
        (RolloutConfig, "concurrent_games", 0, "rollout.concurrent_games"),
        (RolloutConfig, "kv_cache_gib", 0, "rollout.kv_cache_gib"),
        (RolloutConfig, "gpu_memory_utilization", 1.5, "rollout.gpu_memory_utilization"),
        (RolloutConfig, "dtype", "float16", "rollout.dtype"),
        (AlgorithmConfig, "clip", 0, "algorithm.clip"),
        (AlgorithmConfig, "clip", 1, "algorithm.clip"),
        (AlgorithmConfig, "kl_coefficient", -0.1, "algorithm.kl_coefficient"),
        (AlgorithmConfig, "entropy_coefficient", -0.1, "algorithm.entropy_coefficient"),
        (AlgorithmConfig, "max_mismatch", 0, "algorithm.max_mismatch"),
        (BufferConfig, "batches", 0, "buffer.batches"),
        (BufferConfig, "max_age", -1, "buffer.max_age"),
        (BufferConfig, "max_groups", -1, "buffer.max_groups"),
        (TrainingConfig, "epochs", 0, "training.epochs"),
        (TrainingConfig, "minibatch_size", 0, "training.minibatch_size"),
        (TrainingConfig, "learning_rate", 0, "training.learning_rate"),
        (TrainingConfig, "warmup_iterations", -1, "training.warmup_iterations"),
        (TrainingConfig, "min_lr_factor", 1.1, "training.min_lr_factor"),
        (TrainingConfig, "weight_decay", -1, "training.weight_decay"),
        (TrainingConfig, "max_norm", 0, "training.max_norm"),
        (TrainingConfig, "seq_len", 8, "training.seq_len"),
        (TrainingConfig, "rows", 0, "training.rows"),
        (TrainingConfig, "score_rows", 0, "training.score_rows"),
        (EvaluationConfig, "every", 0, "evaluation.every"),
        (EvaluationConfig, "games", 1, "evaluation.games"),
        (EvaluationConfig, "seed", -1, "evaluation.seed"),
        (TinyPolicyConfig, "hidden_size", 100, "tiny.hidden_size"),
        (TinyPolicyConfig, "heads", 0, "tiny.heads"),
        (TinyPolicyConfig, "layers", 0, "tiny.layers"),
        (TinyPolicyConfig, "cold_start_games", 1, "tiny.cold_start_games"),
        (TinyPolicyConfig, "cold_start_learning_rate", 0, "tiny.cold_start_learning_rate"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    record: type[Record], key: str, value: object, name: str
) -> None:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    said = complaint(record, {key: value})
    assert said.startswith(f"{name} is ") and "; allowed: " in said and said.endswith(".") and "\n" not in said
    assert said.startswith(f"{name} is {shown};") or said.startswith(f"{name} is {float(str(value))};")
    with pytest.raises(ValueError, match=f"^{name} is "):
        record(**{key: value})


def test_a_value_of_another_kind_is_refused() -> None:
    assert complaint(GrpoConfig, {"training": {"epochs": 1.5}}) == "training.epochs is 1.5; allowed: a whole number."
    assert complaint(GrpoConfig, {"training": {"epochs": True}}) == "training.epochs is True; allowed: a whole number."
    assert complaint(GrpoConfig, {"rollout": {"dtype": 32}}) == "rollout.dtype is 32; allowed: a word."
    assert complaint(GrpoConfig, {"rollout": 3}) == "rollout is 3; allowed: a JSON object."
    assert GrpoConfig.from_json('{"rollout": {"temperature": 2}}').rollout.temperature == 2  # a whole number will do


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (RolloutConfig, "temperature"),
        (AlgorithmConfig, "clip"),
        (AlgorithmConfig, "kl_coefficient"),
        (TrainingConfig, "learning_rate"),
        (TrainingConfig, "max_norm"),
    ],
)
def test_a_number_that_is_none_is_refused(record: type[Record], key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is nan; allowed: "):
        record(**{key: float("nan")})


def test_a_trajectory_must_fit_in_one_row() -> None:
    said = complaint(GrpoConfig, {"rollout": {"max_turns": 16, "max_tokens": 16}})
    assert said.startswith("training.seq_len is 256; allowed: more than rollout.max_turns x rollout.max_tokens")


def test_records_do_not_change_once_made() -> None:
    with pytest.raises(FrozenInstanceError):
        RolloutConfig().groups = 1  # type: ignore[misc]
