"""Inputs of a workflow: defaults that fit together, and bad values refused in one sentence."""

import json
from dataclasses import FrozenInstanceError

import pytest

from tasks.config import (
    ADVANTAGES,
    CLIPS,
    AlgorithmConfig,
    BufferConfig,
    EvaluationConfig,
    GrpoConfig,
    LoraConfig,
    Record,
    RetentionConfig,
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
    RetentionConfig,
    LoraConfig,
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
    assert config.algorithm == AlgorithmConfig(max_mismatch=0.02)


def test_the_mismatch_allowed_is_that_of_the_precision() -> None:
    assert GrpoConfig.from_json('{"training": {"dtype": "bfloat16"}}').algorithm.max_mismatch == 0.1
    assert GrpoConfig.from_json('{"rollout": {"dtype": "bfloat16"}}').algorithm.max_mismatch == 0.1
    both = '{"rollout": {"dtype": "bfloat16"}, "algorithm": {"max_mismatch": 0.05}}'
    assert GrpoConfig.from_json(both).algorithm.max_mismatch == 0.05


def complaint(record: type[Record], values: dict[str, object]) -> str:
    with pytest.raises(ValueError) as caught:
        record.from_json(json.dumps(values))
    return str(caught.value)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    assert complaint(GrpoConfig, {"trainin": {}}) == (
        'config has an unknown key "trainin" (did you mean "training"?); '
        "allowed: rollout, algorithm, buffer, training, evaluation, retention, tracking, tiny."
    )
    nested = complaint(GrpoConfig, {"training": {"learningrate": 1}})
    assert nested.startswith(
        'config has an unknown key "training.learningrate" (did you mean "learning_rate"?); allowed: ep'
    )
    assert complaint(BufferConfig, {"xyz": 1}) == ('config has an unknown key "xyz"; allowed: max_age, reuse, groups.')


@pytest.mark.parametrize(
    ("record", "key", "value", "name"),
    [
        (RolloutConfig, "groups", 0, "rollout.groups"),
        (RolloutConfig, "max_groups", 511, "rollout.max_groups"),
        (RolloutConfig, "group_size", 1, "rollout.group_size"),
        (RolloutConfig, "temperature", 0, "rollout.temperature"),
        (RolloutConfig, "top_p", 0.9, "rollout.top_p"),
        (RolloutConfig, "top_p", 0, "rollout.top_p"),
        (RolloutConfig, "top_k", 5, "rollout.top_k"),
        (RolloutConfig, "top_k", -1, "rollout.top_k"),
        (RolloutConfig, "max_tokens", 0, "rollout.max_tokens"),
        (RolloutConfig, "max_turns", 0, "rollout.max_turns"),
        (RolloutConfig, "cut", "keep", "rollout.cut"),
        (RolloutConfig, "workers", 0, "rollout.workers"),
        (RolloutConfig, "workers", 513, "rollout.workers"),
        (RolloutConfig, "workers_needed", 0, "rollout.workers_needed"),
        (RolloutConfig, "workers_needed", 1.1, "rollout.workers_needed"),
        (RolloutConfig, "concurrent_episodes", 0, "rollout.concurrent_episodes"),
        (RolloutConfig, "kv_cache_gib", 0, "rollout.kv_cache_gib"),
        (RolloutConfig, "gpu_memory_utilization", 1.5, "rollout.gpu_memory_utilization"),
        (RolloutConfig, "dtype", "float16", "rollout.dtype"),
        (AlgorithmConfig, "name", "ppo", "algorithm.name"),
        (AlgorithmConfig, "clip_low", -0.1, "algorithm.clip_low"),
        (AlgorithmConfig, "clip_low", 1.1, "algorithm.clip_low"),
        (AlgorithmConfig, "clip_high", -0.1, "algorithm.clip_high"),
        (AlgorithmConfig, "advantage", "rank", "algorithm.advantage"),
        (AlgorithmConfig, "kl_estimator", "k4", "algorithm.kl_estimator"),
        (AlgorithmConfig, "kl_coefficient", -0.1, "algorithm.kl_coefficient"),
        (AlgorithmConfig, "entropy_coefficient", -0.1, "algorithm.entropy_coefficient"),
        (AlgorithmConfig, "importance_sampling", "clip", "algorithm.importance_sampling"),
        (AlgorithmConfig, "importance_sampling_level", "group", "algorithm.importance_sampling_level"),
        (AlgorithmConfig, "importance_sampling_cap", 0.5, "algorithm.importance_sampling_cap"),
        (AlgorithmConfig, "max_mismatch", -0.1, "algorithm.max_mismatch"),
        (RolloutConfig, "partial_format_bonus", -0.5, "rollout.partial_format_bonus"),
        (RetentionConfig, "last", 2, "retention.last"),
        (RetentionConfig, "every", 0, "retention.every"),
        (BufferConfig, "max_age", -1, "buffer.max_age"),
        (BufferConfig, "reuse", 0, "buffer.reuse"),
        (BufferConfig, "groups", -1, "buffer.groups"),
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
        (TrainingConfig, "ranks", 0, "training.ranks"),
        (TrainingConfig, "nodes", 2, "training.nodes"),
        (TrainingConfig, "tensor_parallel", 0, "training.tensor_parallel"),
        (TrainingConfig, "context_parallel", 0, "training.context_parallel"),
        (EvaluationConfig, "every", 0, "evaluation.every"),
        (EvaluationConfig, "games", 1, "evaluation.games"),
        (EvaluationConfig, "seed", -1, "evaluation.seed"),
        (TinyPolicyConfig, "hidden_size", 100, "tiny.hidden_size"),
        (TinyPolicyConfig, "heads", 0, "tiny.heads"),
        (TinyPolicyConfig, "layers", 0, "tiny.layers"),
        (TinyPolicyConfig, "cold_start_demonstrations", 1, "tiny.cold_start_demonstrations"),
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


def test_what_is_allowed_is_told() -> None:
    whole = "the trainer's ratio is for draws from the whole distribution"
    assert complaint(RolloutConfig, {"top_p": 0.9}) == f"rollout.top_p is 0.9; allowed: 1, {whole}."
    assert complaint(RolloutConfig, {"top_k": 5}) == f"rollout.top_k is 5; allowed: 0, {whole}."
    assert complaint(GrpoConfig, {"algorithm": {"name": "ppo"}}) == (
        'algorithm.name is "ppo"; allowed: grpo, dr_grpo, dapo, gspo, cispo.'
    )
    assert complaint(RolloutConfig, {"workers": 513}) == "rollout.workers is 513; allowed: 1 to rollout.groups (512)."
    assert complaint(RolloutConfig, {"cut": "keep"}) == 'rollout.cut is "keep"; allowed: forfeit or drop.'
    assert complaint(AlgorithmConfig, {"kl_estimator": "k4"}) == (
        'algorithm.kl_estimator is "k4"; allowed: k1, k2 or k3.'
    )
    assert complaint(AlgorithmConfig, {"importance_sampling": "clip"}) == (
        'algorithm.importance_sampling is "clip"; allowed: none, truncate or mask.'
    )
    assert complaint(AlgorithmConfig, {"importance_sampling_level": "group"}) == (
        'algorithm.importance_sampling_level is "group"; allowed: token or sequence.'
    )


def test_as_many_groups_may_be_played_as_are_wanted_and_no_fewer() -> None:
    assert RolloutConfig(groups=24, max_groups=24).max_groups == 24
    said = complaint(RolloutConfig, {"groups": 24, "max_groups": 23})
    assert said == "rollout.max_groups is 23; allowed: rollout.groups (24) or more."
    assert complaint(RolloutConfig, {"groups": 5000}).endswith("allowed: rollout.groups (5000) or more.")


def test_ranks_are_dealt_out_without_a_rest() -> None:
    shape = {"ranks": 8, "nodes": 2, "tensor_parallel": 2, "context_parallel": 2}
    config = TrainingConfig(**shape, epochs=3)
    assert config.on_one_rank() == TrainingConfig(epochs=3)
    assert GrpoConfig(training=config).on_one_rank() == GrpoConfig(training=TrainingConfig(epochs=3))
    assert complaint(TrainingConfig, {**shape, "nodes": 3}) == (
        "training.nodes is 3; allowed: a divisor of training.ranks, 8."
    )
    assert complaint(TrainingConfig, {**shape, "context_parallel": 8}) == (
        "training.tensor_parallel x training.context_parallel is 16; allowed: a divisor of training.ranks, 8."
    )


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("grpo", 0.2, 0.2),
        ("dr_grpo", 0.2, 0.2),
        ("dapo", 0.2, 0.28),
        ("gspo", 0.1, 0.1),
        ("cispo", 1.0, 0.28),
    ],
)
def test_a_clip_that_is_not_given_is_the_algorithms_own(name: str, low: float, high: float) -> None:
    filled = AlgorithmConfig.from_json(json.dumps({"name": name}))
    assert (filled.clip_low, filled.clip_high) == (low, high)
    assert filled == AlgorithmConfig(name=name, clip_low=0, clip_high=0)
    # What a run's record says, and a stage on a cluster is given, is the numbers.
    assert json.loads(filled.to_json())["clip_low"] == low and json.loads(filled.to_json())["clip_high"] == high
    assert AlgorithmConfig.from_json(filled.to_json()) == filled

    given = AlgorithmConfig.from_json(json.dumps({"name": name, "clip_low": 0.5, "clip_high": 3}))
    assert (given.clip_low, given.clip_high) == (0.5, 3)
    assert AlgorithmConfig.from_json(given.to_json()) == given
    half = AlgorithmConfig.from_json(json.dumps({"name": name, "clip_high": 0.3}))
    assert (half.clip_low, half.clip_high) == (low, 0.3)


def test_every_algorithm_has_its_clips() -> None:
    from tasks.training.losses import LOSSES

    assert list(LOSSES) == list(CLIPS)


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_dr_grpo_does_not_divide_by_the_deviation(name: str, advantage: str) -> None:
    if (name, advantage) == ("dr_grpo", "mean_std"):
        assert complaint(AlgorithmConfig, {"name": name, "advantage": advantage}) == (
            'algorithm.advantage is "mean_std"; allowed: mean, leave_one_out.'
        )
    else:
        assert AlgorithmConfig(name=name, advantage=advantage).advantage == advantage


def test_a_value_of_another_kind_is_refused() -> None:
    assert complaint(GrpoConfig, {"training": {"epochs": 1.5}}) == "training.epochs is 1.5; allowed: a whole number."
    assert complaint(GrpoConfig, {"training": {"epochs": True}}) == "training.epochs is True; allowed: a whole number."
    assert complaint(GrpoConfig, {"rollout": {"dtype": 32}}) == "rollout.dtype is 32; allowed: a word."
    assert complaint(GrpoConfig, {"rollout": 3}) == "rollout is 3; allowed: a JSON object."
    assert complaint(GrpoConfig, {"algorithm": {"name": 1}}) == "algorithm.name is 1; allowed: a word."
    assert complaint(GrpoConfig, {"algorithm": {"clip_low": "tight"}}) == (
        'algorithm.clip_low is "tight"; allowed: a number.'
    )
    assert complaint(GrpoConfig, {"buffer": {"reuse": 1.5}}) == "buffer.reuse is 1.5; allowed: a whole number."
    assert complaint(GrpoConfig, {"rollout": {"top_k": 0.0}}) == "rollout.top_k is 0.0; allowed: a whole number."
    assert GrpoConfig.from_json('{"rollout": {"temperature": 2}}').rollout.temperature == 2  # a whole number will do


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (RolloutConfig, "temperature"),
        (RolloutConfig, "top_p"),
        (AlgorithmConfig, "clip_low"),
        (AlgorithmConfig, "clip_high"),
        (AlgorithmConfig, "kl_coefficient"),
        (AlgorithmConfig, "entropy_coefficient"),
        (AlgorithmConfig, "importance_sampling_cap"),
        (TrainingConfig, "learning_rate"),
        (TrainingConfig, "max_norm"),
    ],
)
def test_a_number_that_is_none_is_refused(record: type[Record], key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is nan; allowed: "):
        record(**{key: float("nan")})


def test_a_trajectory_must_fit_in_one_row() -> None:
    said = complaint(GrpoConfig, {"rollout": {"thinking": True}})
    assert said == (
        "rollout.max_tokens is 4; allowed: 16 or more with rollout.thinking, for the thought and the answer."
    )
    said = complaint(GrpoConfig, {"rollout": {"max_turns": 16, "max_tokens": 16}})
    assert said.startswith("training.seq_len is 256; allowed: more than rollout.max_turns x rollout.max_tokens")


def test_records_do_not_change_once_made() -> None:
    with pytest.raises(FrozenInstanceError):
        RolloutConfig().groups = 1  # type: ignore[misc]
