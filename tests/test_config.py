"""Inputs of a workflow: what was given and what follows from it, and bad values refused in one sentence."""

import json
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tasks.config import (
    CLIPS,
    AlgorithmConfig,
    BufferConfig,
    EvaluationConfig,
    GrpoConfig,
    LoraConfig,
    RetentionConfig,
    RolloutConfig,
    Run,
    TinyPolicyConfig,
    TrackingConfig,
    TrainingConfig,
)
from tasks.environments.catalog import get_environment
from tasks.settings import Settings

ADVANTAGES = get_args(AlgorithmConfig.model_fields["advantage"].annotation)
RECORDS = [
    GrpoConfig,
    RolloutConfig,
    AlgorithmConfig,
    BufferConfig,
    TrainingConfig,
    EvaluationConfig,
    TinyPolicyConfig,
    RetentionConfig,
    TrackingConfig,
    LoraConfig,
]


@pytest.mark.parametrize("record", RECORDS)
def test_the_defaults_are_allowed_and_survive_json(record: type[Settings]) -> None:
    assert record.from_json(record().to_json()) == record() == record.from_json("{}")
    assert record.from_dict(record().whole()) == record()


@pytest.mark.parametrize("record", [*RECORDS, Run])
def test_every_field_says_what_it_is(record: type[Settings]) -> None:
    plain = {"seed", "environment", "environment_url", "mlflow_run_id", "tracking_uri"}  # the inputs' own names
    for name, field in record.model_fields.items():
        is_record = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        assert field.description or is_record or name in plain, name


def test_a_run_survives_json() -> None:
    given = GrpoConfig.from_dict({"rollout": {"groups": 3}})
    run = Run(
        name="monday",
        token="6f9c",
        seed=0,
        environment="blackjack",
        environment_url="",
        mlflow_run_id="4be1",
        tracking_uri="sqlite:///runs/mlflow.db",
        given=given,
    )
    assert Run.from_json(run.to_json()) == run
    assert Run.from_json(run.to_json()).given.to_dict() == {"rollout": {"groups": 3}}


def test_one_changed_value_keeps_the_other_defaults() -> None:
    config = GrpoConfig.from_json('{"training": {"epochs": 3}, "rollout": {"temperature": 0.5}}')
    assert (config.training.epochs, config.rollout.temperature) == (3, 0.5)
    assert config.training.learning_rate == TrainingConfig().learning_rate
    assert config.algorithm == AlgorithmConfig()


def test_json_holds_what_was_given_and_nothing_else() -> None:
    given = {"rollout": {"groups": 64, "invalid_reward": None}, "training": {"lora": {"rank": 4}}}
    for config in (GrpoConfig.from_dict(given), GrpoConfig.from_json(json.dumps(given))):
        assert config.to_dict() == json.loads(config.to_json()) == json.loads(config.model_dump_json()) == given
    assert GrpoConfig().to_json() == GrpoConfig(rollout=RolloutConfig()).to_json() == "{}"
    assert config.replace(buffer=BufferConfig(max_age=1)).to_dict() == {**given, "buffer": {"max_age": 1}}
    assert config.rollout.replace(group_size=3).to_dict() == {**given["rollout"], "group_size": 3}


def test_resolved_every_field_is_given() -> None:
    config = GrpoConfig.from_dict({"rollout": {"groups": 7}}).resolved()
    assert config.to_dict() == config.whole() == GrpoConfig.from_json(config.to_json()).to_dict()
    assert config.resolved() == config
    assert config.resolved({"rollout": {"groups": 9}}).rollout.groups == 7


def test_what_is_given_goes_before_the_environments_default_and_that_before_the_general_one() -> None:
    defaults = {"rollout": {"groups": 100, "max_turns": 3}, "evaluation": {"tasks": 40}}
    config = GrpoConfig.from_dict({"rollout": {"groups": 7}}).resolved(defaults)
    assert (config.rollout.groups, config.rollout.max_turns, config.rollout.max_groups) == (7, 3, 512)
    assert config.evaluation.tasks == 40 and config.buffer.groups == 7
    assert RolloutConfig(groups=7).resolved(defaults) == config.rollout
    assert GrpoConfig.from_dict({"evaluation": {"tasks": 512}}).resolved(defaults).evaluation.tasks == 512
    nothing = GrpoConfig.from_dict({"rollout": {"invalid_reward": None}})  # given: the environment's own
    assert nothing.resolved({"rollout": {"invalid_reward": -2}}).rollout.invalid_reward is None


def test_what_follows_from_other_values() -> None:
    config = GrpoConfig.from_dict({"rollout": {"groups": 10}, "buffer": {"reuse": 3}, "training": {"seq_len": 128}})
    resolved = config.resolved()
    assert (resolved.buffer.groups, resolved.rollout.max_episode_tokens) == (30, 128)
    assert config.replace(buffer=BufferConfig(groups=5)).resolved().buffer.groups == 5
    assert config.buffer.groups is None and config.rollout.max_episode_tokens is None  # nothing is written back
    # An evaluation has no training; its episodes may be as long as somebody says.
    assert RolloutConfig().resolved({"training": {"seq_len": 96}}).max_episode_tokens == 96
    assert RolloutConfig(max_episode_tokens=4096).resolved().max_episode_tokens == 4096


def test_blackjack_has_settings_of_its_own() -> None:
    config = GrpoConfig().resolved(get_environment("blackjack").defaults)
    rollout, training, tiny = config.rollout, config.training, config.tiny
    assert (rollout.groups, rollout.max_groups, rollout.group_size) == (512, 4096, 2)
    assert (rollout.max_tokens, rollout.max_turns, rollout.invalid_reward) == (4, 16, None)
    assert (config.algorithm.name, config.algorithm.kl_coefficient) == ("grpo", 0.15)
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.5, 1.0)
    assert (training.epochs, training.minibatch_size, training.learning_rate) == (2, 64, 1e-3)
    assert (training.warmup_iterations, training.min_lr_factor, training.seq_len, training.rows) == (4, 0.1, 256, 16)
    assert (config.evaluation.tasks, config.evaluation.every) == (8192, 8)
    assert (tiny.hidden_size, tiny.layers, tiny.heads, tiny.cold_start_learning_rate) == (128, 2, 4, 2e-3)
    assert (tiny.cold_start_demonstrations, tiny.cold_start_steps, tiny.cold_start_batch) == (2048, 120, 32)


def test_an_environments_clips_are_not_those_of_another_loss() -> None:
    defaults = get_environment("blackjack").defaults
    for given, clips in (
        ({"name": "gspo"}, (0.1, 0.1)),
        ({"name": "dapo", "clip_low": 0.3}, (0.3, 0.28)),
        ({"name": "grpo"}, (0.5, 1.0)),
        ({"kl_coefficient": 0.0}, (0.5, 1.0)),
        ({"clip_high": 0.4}, (0.5, 0.4)),
    ):
        algorithm = GrpoConfig.from_dict({"algorithm": given}).resolved(defaults).algorithm
        assert (algorithm.clip_low, algorithm.clip_high) == clips


def test_the_mismatch_allowed_is_that_of_the_precision() -> None:
    assert GrpoConfig().resolved().algorithm.max_mismatch == 0.02
    for stage in ("training", "rollout"):
        half = GrpoConfig.from_dict({stage: {"dtype": "bfloat16"}})
        assert half.resolved().algorithm.max_mismatch == 0.1
    both = half.replace(algorithm=AlgorithmConfig(max_mismatch=0.05))
    assert both.resolved().algorithm.max_mismatch == 0.05


def complaint(record: type[Settings], values: dict[str, Any]) -> str:
    """What is said of values that are refused, alone or where they are resolved; three ways of giving them agree."""
    said = set()
    for make in (
        lambda: record.from_dict(values),
        lambda: record.from_json(json.dumps(values)),
        lambda: record(**values),
    ):
        with pytest.raises(ValueError) as caught:
            whole(make())
        said.add(str(caught.value))
    (sentence,) = said
    return sentence


def whole(record: Settings) -> None:
    if isinstance(record, GrpoConfig):
        record.resolved()
    elif record.section:
        GrpoConfig.from_dict({record.section: record}).resolved()


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    assert complaint(GrpoConfig, {"trainin": {}}) == (
        'config has an unknown key "trainin" (did you mean "training"?); '
        "allowed: rollout, algorithm, buffer, training, evaluation, retention, tracking, cluster, tiny."
    )
    nested = complaint(GrpoConfig, {"training": {"learningrate": 1}})
    assert nested.startswith(
        'config has an unknown key "training.learningrate" (did you mean "learning_rate"?); allowed: ep'
    )
    assert complaint(GrpoConfig, {"training": {"lora": {"rnk": 1}}}) == (
        'config has an unknown key "training.lora.rnk" (did you mean "rank"?); allowed: rank, alpha, targets.'
    )
    assert complaint(BufferConfig, {"xyz": 1}) == ('config has an unknown key "xyz"; allowed: max_age, reuse, groups.')
    with pytest.raises(ValueError, match=r'^config has an unknown key "rollout\.8"; allowed: groups, '):
        GrpoConfig.from_dict({"rollout": {8: 1}})  # YAML has such keys


@pytest.mark.parametrize(
    ("record", "key", "value", "name"),
    [
        (RolloutConfig, "groups", 0, "rollout.groups"),
        (RolloutConfig, "max_groups", 63, "rollout.max_groups"),
        (RolloutConfig, "group_size", 1, "rollout.group_size"),
        (RolloutConfig, "temperature", 0, "rollout.temperature"),
        (RolloutConfig, "max_tokens", 0, "rollout.max_tokens"),
        (RolloutConfig, "max_turns", 0, "rollout.max_turns"),
        (RolloutConfig, "max_episode_tokens", 0, "rollout.max_episode_tokens"),
        (RolloutConfig, "truncated", "keep", "rollout.truncated"),
        (RolloutConfig, "workers", 0, "rollout.workers"),
        (RolloutConfig, "workers", 65, "rollout.workers"),
        (RolloutConfig, "workers_needed", 0, "rollout.workers_needed"),
        (RolloutConfig, "workers_needed", 1.1, "rollout.workers_needed"),
        (RolloutConfig, "concurrent_episodes", 0, "rollout.concurrent_episodes"),
        (RolloutConfig, "environment_concurrency", 0, "rollout.environment_concurrency"),
        (RolloutConfig, "environment_timeout_s", 0, "rollout.environment_timeout_s"),
        (RolloutConfig, "max_error_share", 1.1, "rollout.max_error_share"),
        (RolloutConfig, "environment_options", "none", "rollout.environment_options"),
        (RolloutConfig, "kv_cache_gib", 0, "rollout.kv_cache_gib"),
        (RolloutConfig, "gpu_memory_utilization", 1.5, "rollout.gpu_memory_utilization"),
        (RolloutConfig, "dtype", "float16", "rollout.dtype"),
        (AlgorithmConfig, "name", "ppo", "algorithm.name"),
        (AlgorithmConfig, "clip_low", -0.1, "algorithm.clip_low"),
        (AlgorithmConfig, "clip_low", 0, "algorithm.clip_low"),
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
        (LoraConfig, "rank", -1, "training.lora.rank"),
        (LoraConfig, "targets", "head", "training.lora.targets"),
        (EvaluationConfig, "every", 0, "evaluation.every"),
        (EvaluationConfig, "tasks", 1, "evaluation.tasks"),
        (EvaluationConfig, "seed", -1, "evaluation.seed"),
        (TrackingConfig, "model", "a/b", "tracking.model"),
        (TrackingConfig, "model", "", "tracking.model"),
        (TrackingConfig, "max_traces", -1, "tracking.max_traces"),
        (TinyPolicyConfig, "hidden_size", 100, "tiny.hidden_size"),
        (TinyPolicyConfig, "heads", 0, "tiny.heads"),
        (TinyPolicyConfig, "layers", 0, "tiny.layers"),
        (TinyPolicyConfig, "cold_start_demonstrations", 1, "tiny.cold_start_demonstrations"),
        (TinyPolicyConfig, "cold_start_learning_rate", 0, "tiny.cold_start_learning_rate"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(
    record: type[Settings], key: str, value: object, name: str
) -> None:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    said = complaint(record, {key: value})
    assert said.startswith(f"{name} is {shown}; allowed: ") and said.endswith(".") and "\n" not in said
    if record.section in GrpoConfig.model_fields:
        assert complaint(GrpoConfig, {record.section: {key: value}}) == said


def test_what_is_allowed_is_told() -> None:
    assert complaint(GrpoConfig, {"rollout": {"groups": 0}}) == "rollout.groups is 0; allowed: 1 or more."
    assert complaint(RolloutConfig, {"group_size": 1}) == (
        "rollout.group_size is 1; allowed: 2 or more, a group of one has no baseline."
    )
    assert complaint(RolloutConfig, {"temperature": 0}) == "rollout.temperature is 0; allowed: more than 0."
    assert complaint(AlgorithmConfig, {"clip_low": 1.1}) == (
        "algorithm.clip_low is 1.1; allowed: more than 0, at most 1."
    )
    assert complaint(TrainingConfig, {"min_lr_factor": 2}) == "training.min_lr_factor is 2; allowed: 0 to 1."
    assert complaint(EvaluationConfig, {"seed": -1}) == "evaluation.seed is -1; allowed: 0 to 2147483647."
    assert complaint(RetentionConfig, {"last": 2}) == (
        "retention.last is 2; allowed: 3 or more, a stage that is repeated may need so many."
    )
    assert complaint(TrackingConfig, {"model": "a/b"}) == (
        'tracking.model is "a/b"; allowed: letters, digits, dots, dashes and underscores, or null for '
        "grpo-<environment>."
    )
    assert complaint(GrpoConfig, {"algorithm": {"name": "ppo"}}) == (
        'algorithm.name is "ppo"; allowed: grpo, dr_grpo, dapo, gspo or cispo.'
    )
    assert complaint(RolloutConfig, {"workers": 65}) == "rollout.workers is 65; allowed: 1 to rollout.groups (64)."
    assert complaint(RolloutConfig, {"truncated": "keep"}) == ('rollout.truncated is "keep"; allowed: invalid or drop.')
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
    with pytest.raises(ValueError, match=r"^rollout.max_groups is 23; allowed: rollout.groups \(24\) or more\.$"):
        RolloutConfig(groups=24, max_groups=23)
    assert complaint(RolloutConfig, {"groups": 5000}).endswith("allowed: rollout.groups (5000) or more.")
    # Alone it says nothing of what the environment's default is.
    assert RolloutConfig(groups=5000).resolved({"rollout": {"max_groups": 6000}}).groups == 5000
    with pytest.raises(ValueError, match=r"^rollout.max_groups is 100; allowed: rollout.groups \(512\) or more\.$"):
        RolloutConfig(max_groups=100).resolved({"rollout": {"groups": 512, "max_groups": 4096}})


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


def test_the_settings_of_a_stage_are_the_same_text_with_any_ranks() -> None:
    one, two = (GrpoConfig.from_dict({"training": {"ranks": ranks, "epochs": 3}}) for ranks in (1, 2))
    assert one.resolved().on_one_rank().to_json() == two.resolved().on_one_rank().to_json()
    assert one.on_one_rank().to_dict() == two.on_one_rank().to_dict() == {"training": {"epochs": 3}}
    assert GrpoConfig().on_one_rank().to_json() == "{}"


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
    for given in ({"name": name}, {"name": name, "clip_low": None, "clip_high": None}):
        filled = GrpoConfig.from_dict({"algorithm": given}).resolved().algorithm
        assert (filled.clip_low, filled.clip_high) == (low, high)
        assert AlgorithmConfig.from_dict(given).resolved() == filled
        # What a run's record says, and a stage on a cluster is given, is the numbers.
        assert (json.loads(filled.to_json())["clip_low"], json.loads(filled.to_json())["clip_high"]) == (low, high)

    given = AlgorithmConfig.from_json(json.dumps({"name": name, "clip_low": 0.5, "clip_high": 3})).resolved()
    assert (given.clip_low, given.clip_high) == (0.5, 3)
    assert AlgorithmConfig.from_json(given.to_json()) == given
    half = AlgorithmConfig.from_json(json.dumps({"name": name, "clip_high": 0.3}))
    assert (half.resolved().clip_low, half.resolved().clip_high) == (low, 0.3)
    # Another algorithm has its own clips, where none are given.
    assert AlgorithmConfig().replace(name=name).resolved().clip_low == low


def test_every_algorithm_has_its_clips() -> None:
    from tasks.training.losses import LOSSES

    assert list(LOSSES) == list(CLIPS) == list(get_args(AlgorithmConfig.model_fields["name"].annotation))


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_dr_grpo_does_not_divide_by_the_deviation(name: str, advantage: str) -> None:
    if (name, advantage) == ("dr_grpo", "mean_std"):
        assert complaint(AlgorithmConfig, {"name": name, "advantage": advantage}) == (
            'algorithm.advantage is "mean_std"; allowed: mean, leave_one_out.'
        )
    else:
        assert AlgorithmConfig.from_dict({"name": name, "advantage": advantage}).resolved().advantage == advantage


def test_a_value_of_another_kind_is_refused() -> None:
    assert complaint(GrpoConfig, {"training": {"epochs": 1.5}}) == "training.epochs is 1.5; allowed: a whole number."
    assert complaint(GrpoConfig, {"training": {"epochs": True}}) == "training.epochs is True; allowed: a whole number."
    assert complaint(GrpoConfig, {"training": {"epochs": "3"}}) == 'training.epochs is "3"; allowed: a whole number.'
    assert complaint(GrpoConfig, {"rollout": {"thinking": 1}}) == "rollout.thinking is 1; allowed: true or false."
    assert complaint(GrpoConfig, {"rollout": {"dtype": 32}}) == "rollout.dtype is 32; allowed: float32 or bfloat16."
    assert complaint(GrpoConfig, {"rollout": 3}) == "rollout is 3; allowed: a JSON object."
    assert complaint(GrpoConfig, {"tracking": {"model": 1}}) == "tracking.model is 1; allowed: a word."
    assert complaint(GrpoConfig, {"algorithm": {"clip_low": "tight"}}) == (
        'algorithm.clip_low is "tight"; allowed: a number.'
    )
    for infinite in (float("inf"), "inf", "-inf", 1e400):
        assert complaint(GrpoConfig, {"training": {"learning_rate": infinite}}).endswith("; allowed: a finite number.")
    options = {"rollout": {"environment_options": {"odds": {"win": float("inf")}}}}
    assert complaint(GrpoConfig, options) == "rollout.environment_options.odds.win is inf; allowed: a finite number."
    said = complaint(GrpoConfig, {"rollout": {"groups": 10**30}})
    assert said == f"rollout.groups is {10**30}; allowed: 1 to 1000000000."
    assert complaint(GrpoConfig, {"algorithm": {"dual_clip": 0.5}}) == (
        "algorithm.dual_clip is 0.5; allowed: more than 1, or 0 for no such bound."
    )
    assert complaint(GrpoConfig, {"training": {"max_norm": True}}) == "training.max_norm is True; allowed: a number."
    assert complaint(GrpoConfig, {"buffer": {"reuse": 1.5}}) == "buffer.reuse is 1.5; allowed: a whole number."
    with pytest.raises(ValueError, match=r"^config is None; allowed: a JSON object\.$"):
        GrpoConfig.from_dict(None)  # an empty YAML file
    with pytest.raises(ValueError, match=r"^run\.token is missing\.$"):
        Run.from_dict({"name": "monday"})


def test_numbers_may_be_written_in_other_ways() -> None:
    assert GrpoConfig.from_json('{"rollout": {"temperature": 2}}').rollout.temperature == 2
    given = {"training": {"epochs": 3.0, "learning_rate": "1e-6"}, "buffer": {"groups": 8.0}}  # flytectl's, YAML's
    assert GrpoConfig.from_dict(given).to_json() == (
        '{"buffer": {"groups": 8}, "training": {"epochs": 3, "learning_rate": 1e-06}}'
    )


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (RolloutConfig, "temperature"),
        (RolloutConfig, "environment_timeout_s"),
        (AlgorithmConfig, "clip_low"),
        (AlgorithmConfig, "clip_high"),
        (AlgorithmConfig, "kl_coefficient"),
        (AlgorithmConfig, "entropy_coefficient"),
        (AlgorithmConfig, "importance_sampling_cap"),
        (TrainingConfig, "learning_rate"),
        (TrainingConfig, "max_norm"),
    ],
)
def test_a_number_that_is_none_is_refused(record: type[Settings], key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is nan; allowed: "):
        record(**{key: float("nan")})


def test_a_trajectory_must_fit_in_one_row() -> None:
    said = complaint(GrpoConfig, {"rollout": {"thinking": True, "max_tokens": 4}})
    assert said == (
        "rollout.max_tokens is 4; allowed: 16 or more with rollout.thinking, for the thought and the answer."
    )
    assert complaint(GrpoConfig, {"rollout": {"max_episode_tokens": 513}}) == (
        "rollout.max_episode_tokens is 513; allowed: at most training.seq_len (512), a trajectory must fit in one row."
    )
    assert complaint(GrpoConfig, {"training": {"seq_len": 64}}) == (
        "rollout.max_episode_tokens is 64; allowed: more than rollout.max_tokens (64); by default it is "
        "training.seq_len."
    )
    # How many turns there are is no matter: an episode ends at its limit.
    many = GrpoConfig.from_dict({"rollout": {"max_turns": 1000}})
    assert many.resolved().rollout.max_episode_tokens == 512


def test_records_do_not_change_once_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RolloutConfig().groups = 1  # type: ignore[misc]


def test_the_records_are_cheap_to_import() -> None:
    code = (
        "import sys, tasks.config; "
        "print([m for m in ('torch', 'vllm', 'mlflow', 'numpy', 'flytekit', 'openenv') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
