"""Every record that a workflow takes as input.

All are frozen, refuse unknown keys, and check their values when they are made: bad input is one sentence, before any
work. They travel as JSON, so that `pyflyte run … --config '{"training": {"epochs": 2}}'` (or a JSON or YAML file)
changes one value and keeps the other defaults.
"""

import difflib
import math
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from mashumaro.config import BaseConfig
from mashumaro.mixins.json import DataClassJSONMixin


def require(condition: bool, name: str, given: object, allowed: str) -> None:
    """Raise ValueError in the one form that every complaint about an input has."""
    if not condition:
        shown = f'"{given}"' if isinstance(given, str) else given
        raise ValueError(f"{name} is {shown}; allowed: {allowed}.")


class Record(DataClassJSONMixin):
    """Base of all records: a frozen dataclass that refuses keys it does not know."""

    class Config(BaseConfig):
        forbid_extra_keys = True

    @classmethod
    def __pre_deserialize__(cls, d: dict[Any, Any]) -> dict[Any, Any]:
        check_given(cls, d, "")
        return d

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new record."""
        return replace(self, **changes)  # type: ignore[type-var]


PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a word"),
    bool: ((bool,), "true or false"),
}


def check_given(record: type, given: Any, path: str) -> None:
    """Raise ValueError where `given` is not what `record` can be made of: before mashumaro, which wraps every error
    of a nested record in one that no longer says what was wrong."""
    require(isinstance(given, dict), path or "config", given, "a JSON object")
    known = {f.name: f.type for f in fields(record)}
    for key, value in given.items():
        name = f"{path}.{key}" if path else str(key)
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f' (did you mean "{near[0]}"?)' if near else ""
            raise ValueError(f'config has an unknown key "{name}"{hint}; allowed: {", ".join(known)}.')
        kind = known[key]
        if isinstance(kind, type) and issubclass(kind, Record):
            check_given(kind, value, name)
            kind.from_dict(value)
        elif kind in PLAIN:
            types, allowed = PLAIN[kind]
            require(isinstance(value, types) and isinstance(value, bool) == (kind is bool), name, value, allowed)


@dataclass(frozen=True)
class RolloutConfig(Record):
    """How trajectories are sampled."""

    groups: int = 512  # groups wanted an iteration whose rewards differ; a group shares one environment seed
    max_groups: int = 4096  # groups played an iteration at most to find them
    group_size: int = 2  # trajectories a group; two show for the fewest games which move a deck rewards
    temperature: float = 1.0
    max_tokens: int = 4  # sampled tokens a reply at most
    max_turns: int = 16  # replies a trajectory at most
    max_episode_tokens: int | None = None  # prompt, replies and all between, a segment; None: training.seq_len
    invalid_reward: float | None = (
        None  # replaces the reward of an episode that is invalid; None: the environment's own
    )
    partial_format_bonus: float = 0.0  # added to it where that reply began with a readable answer, and went on
    thinking: bool = False  # replies may think before they answer; then the last line is the answer
    truncated: str = "invalid"  # what a limit ended: "invalid" gets its reward, "drop" teaches nothing
    workers: int = 1  # pods that share the groups out; the games are the same, whatever their number
    workers_needed: float = 1.0  # share of them that a batch needs; it goes without the groups of those lost, counted
    concurrent_episodes: int = 1024  # episodes open at once, in a pod
    environment_concurrency: int = 64  # calls of the environment awaited at once
    environment_timeout_s: float = 60.0  # of one call
    max_error_share: float = 0.05  # episodes of a batch that may fail in the environment before the stage does
    environment_options: dict[str, Any] = field(default_factory=dict)  # options of the environment, checked by it
    kv_cache_gib: int = 1  # memory for vLLM's attention states on a CPU
    gpu_memory_utilization: float = 0.9  # the share of a GPU that vLLM may take
    dtype: str = "float32"

    def __post_init__(self) -> None:
        require(self.groups >= 1, "rollout.groups", self.groups, "1 or more")
        require(
            self.max_groups >= self.groups,
            "rollout.max_groups",
            self.max_groups,
            f"rollout.groups ({self.groups}) or more",
        )
        require(
            self.group_size >= 2, "rollout.group_size", self.group_size, "2 or more, a group of one has no baseline"
        )
        require(self.temperature > 0, "rollout.temperature", self.temperature, "more than 0")
        require(self.max_tokens >= 1, "rollout.max_tokens", self.max_tokens, "1 or more")
        require(
            self.max_tokens >= 16 or not self.thinking,
            "rollout.max_tokens",
            self.max_tokens,
            "16 or more with rollout.thinking, for the thought and the answer",
        )
        require(self.max_turns >= 1, "rollout.max_turns", self.max_turns, "1 or more")
        require(self.partial_format_bonus >= 0, "rollout.partial_format_bonus", self.partial_format_bonus, "0 or more")
        require(self.truncated in ("invalid", "drop"), "rollout.truncated", self.truncated, "invalid or drop")
        require(
            1 <= self.workers <= self.groups,
            "rollout.workers",
            self.workers,
            f"1 to rollout.groups ({self.groups})",
        )
        require(
            0 < self.workers_needed <= 1,
            "rollout.workers_needed",
            self.workers_needed,
            "more than 0, at most 1",
        )
        require(self.concurrent_episodes >= 1, "rollout.concurrent_episodes", self.concurrent_episodes, "1 or more")
        require(self.kv_cache_gib >= 1, "rollout.kv_cache_gib", self.kv_cache_gib, "1 or more")
        require(
            0 < self.gpu_memory_utilization <= 1,
            "rollout.gpu_memory_utilization",
            self.gpu_memory_utilization,
            "more than 0, at most 1",
        )
        require(self.dtype in ("float32", "bfloat16"), "rollout.dtype", self.dtype, "float32 or bfloat16")

    @property
    def shards_needed(self) -> int:
        """Workers of which a batch needs the games: `workers_needed` as a count, rounded up."""
        return max(1, math.ceil(round(self.workers_needed * self.workers, 9)))


# How far below and above 1 the ratio counts where the record does not say. Each algorithm's own: see its file.
CLIPS = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "gspo": (0.1, 0.1),
    "cispo": (1.0, 0.28),
}


MISMATCH = {"float32": 0.02, "bfloat16": 0.1}  # measured: about 1e-6, and 0.02 to 0.06
ADVANTAGES = ("mean", "mean_std", "leave_one_out")


@dataclass(frozen=True)
class AlgorithmConfig(Record):
    """The objective; the losses are in tasks/training/losses/, one file each."""

    name: str = "grpo"  # or dr_grpo, dapo, gspo, cispo
    clip_low: float = 0.0  # the ratio counts from 1 - clip_low …
    clip_high: float = 0.0  # … to 1 + clip_high; 0 takes the algorithm's own
    advantage: str = "mean"  # in its group; or "mean_std" (and divided by its deviation), "leave_one_out"
    kl_estimator: str = "k3"  # or k1, k2
    kl_coefficient: float = 0.15  # 0: the reference is not asked, its stage is left out
    entropy_coefficient: float = 0.0
    importance_sampling: str = (
        "none"  # of the trainer's own ratio to the generator: "truncate" it at the cap, "mask" beyond it
    )
    importance_sampling_level: str = "token"  # or "sequence": the product over a trajectory
    importance_sampling_cap: float = 2.0
    # Mean |trainer - generator| log-probability on a fresh batch, in nats a token, that stops a run; 0 takes 0.02,
    # or 0.1 with bfloat16.
    max_mismatch: float = 0.0

    def __post_init__(self) -> None:
        require(self.name in CLIPS, "algorithm.name", self.name, ", ".join(CLIPS))
        low, high = CLIPS[self.name]  # filled in, so that a run's record says what it was
        object.__setattr__(self, "clip_low", self.clip_low or low)
        object.__setattr__(self, "clip_high", self.clip_high or high)
        require(0 < self.clip_low <= 1, "algorithm.clip_low", self.clip_low, "more than 0, at most 1 (0: its own)")
        require(self.clip_high > 0, "algorithm.clip_high", self.clip_high, "more than 0 (0: its own)")
        advantages = ("mean", "leave_one_out") if self.name == "dr_grpo" else ADVANTAGES
        require(self.advantage in advantages, "algorithm.advantage", self.advantage, ", ".join(advantages))
        require(self.kl_estimator in ("k1", "k2", "k3"), "algorithm.kl_estimator", self.kl_estimator, "k1, k2 or k3")
        require(self.kl_coefficient >= 0, "algorithm.kl_coefficient", self.kl_coefficient, "0 or more")
        require(self.entropy_coefficient >= 0, "algorithm.entropy_coefficient", self.entropy_coefficient, "0 or more")
        corrections = ("none", "truncate", "mask")
        require(
            self.importance_sampling in corrections,
            "algorithm.importance_sampling",
            self.importance_sampling,
            "none, truncate or mask",
        )
        require(
            self.importance_sampling_level in ("token", "sequence"),
            "algorithm.importance_sampling_level",
            self.importance_sampling_level,
            "token or sequence",
        )
        require(
            self.importance_sampling_cap >= 1,
            "algorithm.importance_sampling_cap",
            self.importance_sampling_cap,
            "1 or more",
        )
        require(self.max_mismatch >= 0, "algorithm.max_mismatch", self.max_mismatch, "more than 0 (0: its own)")


@dataclass(frozen=True)
class BufferConfig(Record):
    """The window of groups that one training stage draws from the last batches, freshest first."""

    max_age: int = 4  # policy versions between the one that sampled a group and the one trained
    reuse: int = 1  # training stages that may learn from a group
    groups: int = 0  # groups in a window at most; 0 takes rollout.groups x reuse

    def __post_init__(self) -> None:
        require(self.max_age >= 0, "buffer.max_age", self.max_age, "0 or more")
        require(self.reuse >= 1, "buffer.reuse", self.reuse, "1 or more")
        require(self.groups >= 0, "buffer.groups", self.groups, "0 (rollout.groups x buffer.reuse) or more")


LORA_TARGETS = ("all", "attention", "feed_forward")


@dataclass(frozen=True)
class LoraConfig(Record):
    """Low-rank adapters beside frozen weights (arXiv:2106.09685); the output of each is scaled by alpha / rank."""

    rank: int = 0  # 0 trains all weights
    alpha: float = 32.0
    targets: str = "all"  # linear layers of every block, or only those of "attention" or "feed_forward"

    def __post_init__(self) -> None:
        require(self.rank >= 0, "training.lora.rank", self.rank, "0 (all weights are trained) or more")
        require(self.alpha > 0, "training.lora.alpha", self.alpha, "more than 0")
        require(self.targets in LORA_TARGETS, "training.lora.targets", self.targets, ", ".join(LORA_TARGETS))


@dataclass(frozen=True)
class TrainingConfig(Record):
    """Optimizer steps on one window."""

    epochs: int = 2
    minibatch_size: int = 64  # trajectories an optimizer step
    learning_rate: float = 5e-4
    warmup_iterations: int = 4  # over which the learning rate rises
    min_lr_factor: float = 0.1  # the learning rate decays linearly to this share of itself over the whole run
    weight_decay: float = 0.0
    max_norm: float = 1.0  # gradients are scaled to this norm at most
    seq_len: int = 256  # tokens a packed row
    rows: int = 16  # packed rows a forward pass
    score_rows: int = 32  # packed rows a forward pass without gradients
    share_prefixes: bool = False  # what trajectories of a step have in common goes through the model once
    dtype: str = "float32"  # of the forward and backward pass; weights, gradients and optimizer are float32 always
    ranks: int = (
        1  # processes that train together, each with its share of weights and rows; where there are GPUs, one each
    )
    nodes: int = 1  # machines of a cluster over which the ranks are spread, as many on each
    tensor_parallel: int = 1  # ranks that share the heads and the columns of every layer, and work on the same rows
    context_parallel: int = 1  # ranks that share the tokens of every row
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "training.epochs", self.epochs, "1 or more")
        require(self.minibatch_size >= 1, "training.minibatch_size", self.minibatch_size, "1 or more")
        require(self.learning_rate > 0, "training.learning_rate", self.learning_rate, "more than 0")
        require(self.warmup_iterations >= 0, "training.warmup_iterations", self.warmup_iterations, "0 or more")
        require(0 <= self.min_lr_factor <= 1, "training.min_lr_factor", self.min_lr_factor, "0 to 1")
        require(self.weight_decay >= 0, "training.weight_decay", self.weight_decay, "0 or more")
        require(self.max_norm > 0, "training.max_norm", self.max_norm, "more than 0")
        require(self.seq_len >= 16, "training.seq_len", self.seq_len, "16 or more")
        require(self.rows >= 1, "training.rows", self.rows, "1 or more")
        require(self.score_rows >= 1, "training.score_rows", self.score_rows, "1 or more")
        require(self.dtype in ("float32", "bfloat16"), "training.dtype", self.dtype, "float32 or bfloat16")
        for name in ("ranks", "nodes", "tensor_parallel", "context_parallel"):
            require(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "1 or more")
        together = self.tensor_parallel * self.context_parallel
        for name, size in (("nodes", self.nodes), ("tensor_parallel x training.context_parallel", together)):
            require(self.ranks % size == 0, f"training.{name}", size, f"a divisor of training.ranks, {self.ranks}")

    def on_one_rank(self) -> "TrainingConfig":
        """The same training where one process does all of it: the result is the same, but for rounding."""
        return replace(self, ranks=1, nodes=1, tensor_parallel=1, context_parallel=1)


@dataclass(frozen=True)
class EvaluationConfig(Record):
    """Greedy play on decks that training never sees."""

    every: int = 8  # iterations between evaluations; the first and the last policy always have one
    tasks: int = 8192
    seed: int = 0  # which held-out decks

    def __post_init__(self) -> None:
        require(self.every >= 1, "evaluation.every", self.every, "1 or more")
        require(self.tasks >= 2, "evaluation.tasks", self.tasks, "2 or more")
        require(0 <= self.seed < 2**31, "evaluation.seed", self.seed, "0 to 2147483647")


@dataclass(frozen=True)
class RetentionConfig(Record):
    """What a run keeps on disk of the versions that it has left behind. Trajectories and evaluations stay, always."""

    last: int = 3  # newest versions, with their trainer states; a run goes on from these
    every: int = 1  # also each policy whose version is a multiple of this; policy 0 and those evaluated always

    def __post_init__(self) -> None:
        require(self.last >= 3, "retention.last", self.last, "3 or more, a stage that is repeated may need so many")
        require(self.every >= 1, "retention.every", self.every, "1 (all policies stay) or more")


@dataclass(frozen=True)
class TrackingConfig(Record):
    """What MLflow gets beside the numbers."""

    model: str = ""  # name of the policies in the registry; "" takes grpo-<environment>
    trace_groups: int = 2  # groups an iteration whose games become traces
    max_traces: int = 200  # games a run at most that become traces

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9._-]*", self.model) is not None,
            "tracking.model",
            self.model,
            "letters, digits, dots, dashes and underscores, or nothing for grpo-<environment>",
        )
        require(self.trace_groups >= 0, "tracking.trace_groups", self.trace_groups, "0 (no traces) or more")
        require(self.max_traces >= 0, "tracking.max_traces", self.max_traces, "0 (no traces) or more")


@dataclass(frozen=True)
class TinyPolicyConfig(Record):
    """The checkpoint that `--policy tiny` makes, and its supervised cold start."""

    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    cold_start_demonstrations: int = 2048  # random games that it learns to imitate
    cold_start_steps: int = 300
    cold_start_batch: int = 32
    cold_start_learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        require(self.heads >= 1, "tiny.heads", self.heads, "1 or more")
        require(
            self.hidden_size > 0 and self.hidden_size % (32 * self.heads) == 0,  # what vLLM's attention takes on a CPU
            "tiny.hidden_size",
            self.hidden_size,
            f"a multiple of 32 x tiny.heads ({32 * self.heads})",
        )
        require(self.layers >= 1, "tiny.layers", self.layers, "1 or more")
        require(
            self.cold_start_demonstrations >= 64,
            "tiny.cold_start_demonstrations",
            self.cold_start_demonstrations,
            "64 or more",
        )
        require(self.cold_start_steps >= 1, "tiny.cold_start_steps", self.cold_start_steps, "1 or more")
        require(self.cold_start_batch >= 1, "tiny.cold_start_batch", self.cold_start_batch, "1 or more")
        require(
            self.cold_start_learning_rate > 0,
            "tiny.cold_start_learning_rate",
            self.cold_start_learning_rate,
            "more than 0",
        )


@dataclass(frozen=True)
class GrpoConfig(Record):
    """All settings of a training, one record a stage."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    tiny: TinyPolicyConfig = field(default_factory=TinyPolicyConfig)

    def __post_init__(self) -> None:
        if not self.algorithm.max_mismatch:
            limit = MISMATCH["bfloat16" if "bfloat16" in (self.rollout.dtype, self.training.dtype) else "float32"]
            object.__setattr__(self, "algorithm", replace(self.algorithm, max_mismatch=limit))
        require(
            self.rollout.max_turns * self.rollout.max_tokens < self.training.seq_len,
            "training.seq_len",
            self.training.seq_len,
            "more than rollout.max_turns x rollout.max_tokens, a trajectory must fit in one row",
        )

    def on_one_rank(self) -> "GrpoConfig":
        """The same settings, as far as they decide what comes out: with a training on one rank."""
        return replace(self, training=self.training.on_one_rank())


@dataclass(frozen=True)
class Run(Record):
    """What every stage of one training knows about it. Made by `create_run`, after all inputs were checked.

    Example: `Run(name="monday", token="6f9c…", seed=0, environment="blackjack", environment_url="",
    mlflow_run_id="4be1…", tracking_uri="sqlite:///…/runs/mlflow.db", iterations=32, started=1764500000.0)`.
    """

    name: str
    # New for each run folder: cached stages of a deleted run are never found again. On a cluster the execution's name.
    token: str
    seed: int
    environment: str
    environment_url: str
    mlflow_run_id: str
    tracking_uri: str
    iterations: int = 1  # policy versions that it trains
    started: float = 0.0  # when the run was first opened, seconds since 1970
    policy: str = ""  # what it starts from: "tiny", a name on the hub, a directory, or the URI of one
