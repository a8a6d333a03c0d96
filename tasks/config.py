"""Every record that a workflow takes as input.

All are frozen, refuse unknown keys and check their values: bad input is one sentence, before any work. They travel as
JSON, so that `pyflyte run … --config '{"training": {"epochs": 2}}'` (or a JSON or YAML file) changes one value and
keeps the other defaults. A record remembers which of its fields were given, and its JSON holds only those:

    what the user gave ─► resolved(the environment's defaults) ─► every field is set ─► all stages

None stands for a value of the environment's own, or is DERIVED from other fields by `resolved`.
"""

import math
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from tasks.settings import LARGEST, Settings, flat, merged, require

DEFAULT_ENVIRONMENT = "blackjack"

Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
AtLeast0 = Annotated[Whole, Field(ge=0, le=LARGEST)]
AtLeast1 = Annotated[Whole, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(gt=0, le=1)]
Dtype = Literal["float32", "bfloat16"]
T = TypeVar("T")
if TYPE_CHECKING:  # what a stage gets is resolved
    Derived = Annotated[T, "None until resolved"]
else:
    Derived = T | None
DERIVED: Any = None


DAY: Any = {"allowed": 'a day, such as "2026-11-30"'}


def _is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


class RolloutConfig(Settings, section="rollout"):
    """How trajectories are sampled."""

    groups: AtLeast1 = 64
    """Groups wanted an iteration whose rewards differ; a group is the trajectories of one task."""
    max_groups: AtLeast1 = 512
    """Groups sampled an iteration at most to find them."""
    group_size: Annotated[
        Whole, Field(ge=2, json_schema_extra={"allowed": "2 or more, a group of one has no baseline"})
    ] = 8
    """Trajectories a group."""
    temperature: Positive = 1.0
    """Of the distribution that replies are sampled from."""
    max_tokens: AtLeast1 = 64
    """Sampled tokens a reply at most."""
    max_turns: AtLeast1 = 8
    """Replies an episode at most."""
    max_episode_tokens: Derived[AtLeast1] = DERIVED
    """Tokens of a whole episode at most: prompt, replies and all between. None: training.seq_len."""
    invalid_reward: Number | None = None
    """Replaces the reward of an episode that ended with an invalid reply. None: the environment's own."""
    partial_format_bonus: NotNegative = 0.0
    """Added to it where that reply began with a valid answer and went on."""
    thinking: Flag = False
    """Replies may think before they answer; the last line is the answer."""
    date: (
        Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$", json_schema_extra=DAY)] | None
    ) = None
    """The day that a chat template with a clock is told. None: the day on which a run began."""
    curriculum: Flag = False
    """Tasks are drawn by the share of groups of their kind in the last batches whose rewards differ."""
    truncated: Literal["invalid", "drop"] = "invalid"
    """An episode that a limit ended: "invalid" gets that reward, "drop" teaches nothing."""
    workers: AtLeast1 = 1
    """Pods that share the groups; the trajectories are the same, whatever their number."""
    workers_needed: Share = 1.0
    """Share of the workers that a batch needs; the groups of those lost are missing from it, and counted."""
    concurrent_episodes: AtLeast1 = 1024
    """Episodes open at once, a pod."""
    environment_concurrency: AtLeast1 = 64
    """Calls of the environment awaited at once, a pod."""
    environment_timeout_s: Positive = 60.0
    """Seconds that one call of the environment may take."""
    max_error_share: Annotated[Number, Field(ge=0, le=1)] = 0.05
    """Share of a batch's episodes that may fail in the environment before the stage fails."""
    environment_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment, which checks them."""
    kv_cache_gib: AtLeast1 = 1
    """GiB of memory for vLLM's attention states on a CPU."""
    gpu_memory_utilization: Share = 0.9
    """Share of a GPU's memory that vLLM may take."""
    seeds: Literal["auto", "request", "engine"] = "auto"
    """What chance depends on: "request" gives each reply a seed, "engine" draws all replies from one stream, which a
    GPU does for a batch at once. "auto": by the request on a CPU, by the engine on a GPU."""
    tensor_parallel: AtLeast1 = 1
    """GPUs that share the weights of vLLM."""
    dtype: Dtype = "float32"
    """Of weights and activations in vLLM."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        groups, longest = self.groups, self.max_episode_tokens
        self.rule("max_groups", self.max_groups >= groups, f"rollout.groups ({groups}) or more", "groups")
        self.rule("workers", self.workers <= groups, f"1 to rollout.groups ({groups})", "groups")
        if self.date is not None:
            self.rule("date", _is_day(self.date), DAY["allowed"])
        for name, value in flat(self.environment_options).items():
            finite = not isinstance(value, float) or math.isfinite(value)
            require(finite, f"rollout.environment_options.{name}", value, "a finite number")
        thought = "16 or more with rollout.thinking, for the thought and the answer"
        self.rule("max_tokens", not self.thinking or self.max_tokens >= 16, thought, "thinking")
        allowed = f"more than rollout.max_tokens ({self.max_tokens}); by default it is training.seq_len"
        self.rule("max_episode_tokens", longest is None or longest > self.max_tokens, allowed, "max_tokens")
        return self

    @property
    def shards_needed(self) -> int:
        """Workers of which a batch needs the groups: `workers_needed` as a count, rounded up."""
        return max(1, math.ceil(round(self.workers_needed * self.workers, 9)))

    def resolved(self, defaults: Mapping[str, Any] = {}) -> "RolloutConfig":
        """As `GrpoConfig.resolved`, where no training says how long an episode may be."""
        row = {} if self.max_episode_tokens is None else {"seq_len": max(self.max_episode_tokens, 16)}
        return GrpoConfig.from_dict({"rollout": self, "training": row}).resolved(defaults).rollout


# How far below and above 1 the ratio counts where the record does not say; each is the algorithm's own.
CLIPS = {"grpo": (0.2, 0.2), "dr_grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "gspo": (0.1, 0.1), "cispo": (1.0, 0.28)}
MISMATCH = {"float32": 0.02, "bfloat16": 0.1}  # measured: about 1e-6, and 0.02 to 0.06


class AlgorithmConfig(Settings, section="algorithm"):
    """The objective; the losses are in tasks/training/."""

    name: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"] = "grpo"
    """Which loss."""
    clip_low: Derived[Share] = DERIVED
    """The ratio counts from 1 - clip_low. None: the algorithm's own."""
    clip_high: Derived[Positive] = DERIVED
    """The ratio counts to 1 + clip_high. None: the algorithm's own."""
    dual_clip: Annotated[Number, Field(ge=0, json_schema_extra={"allowed": "more than 1, or 0 for no such bound"})] = (
        3.0
    )
    """A bad token's ratio, and the weight of a token's KL, count up to this (arXiv:1912.09729); 0: without bound."""
    advantage: Literal["mean", "mean_std", "leave_one_out"] = "mean"
    """Reward minus the mean of its group; "mean_std" divides by the deviation, "leave_one_out" is without itself."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the KL divergence from the reference policy."""
    kl_coefficient: NotNegative = 0.0
    """Weight of that divergence; 0 leaves the reference out."""
    entropy_coefficient: NotNegative = 0.0
    """Weight of the policy's entropy."""
    importance_sampling: Literal["none", "truncate", "mask"] = "none"
    """Of the trainer's own ratio to the generator: "truncate" it at the cap, or "mask" what is beyond it."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """That ratio of a token, or the product over a trajectory."""
    importance_sampling_cap: Annotated[Number, Field(ge=1)] = 2.0
    """The cap of that ratio."""
    max_mismatch: Derived[Positive] = DERIVED
    """Mean |trainer - generator| log-probability on a fresh batch, nats a token, that stops a run. None: by dtype."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        by_deviation = self.name == "dr_grpo" and self.advantage == "mean_std"  # which Dr. GRPO does not do
        self.rule("advantage", not by_deviation, "mean, leave_one_out")
        self.rule("dual_clip", self.dual_clip == 0 or self.dual_clip > 1, "more than 1, or 0 for no such bound")
        return self

    def resolved(self, dtype: Dtype = "float32") -> Self:
        """Every field set: clips by the algorithm, the mismatch allowed by the precision."""
        low, high = CLIPS[self.name]
        own = {"clip_low": low, "clip_high": high, "max_mismatch": MISMATCH[dtype]}
        return self.model_validate(own | {name: value for name, value in self if value is not None})


class BufferConfig(Settings, section="buffer"):
    """The groups that one training stage draws from the last batches, freshest first."""

    max_age: AtLeast0 = 4
    """Policy versions between the one that sampled a group and the one trained."""
    reuse: AtLeast1 = 1
    """Training stages that may learn from a group."""
    groups: Derived[AtLeast1] = DERIVED
    """Groups in a training batch at most. None: rollout.groups x buffer.reuse."""


class LoraConfig(Settings, section="training.lora"):
    """Low-rank adapters beside frozen weights (arXiv:2106.09685); the output of each is scaled by alpha / rank."""

    rank: AtLeast0 = 0
    """0 trains all weights, without adapters."""
    alpha: Positive = 32.0
    """The scale's numerator."""
    targets: Literal["all", "attention", "feed_forward"] = "all"
    """The linear layers of every block that get adapters."""


class TrainingConfig(Settings, section="training"):
    """Optimizer steps on one training batch."""

    epochs: AtLeast1 = 1
    """Passes over the training batch."""
    minibatch_size: AtLeast1 = 64
    """Trajectories an optimizer step."""
    learning_rate: Positive = 3e-4
    """At its highest, of AdamW."""
    warmup_iterations: AtLeast0 = 2
    """Iterations over which the learning rate rises."""
    min_lr_factor: Annotated[Number, Field(ge=0, le=1)] = 0.1
    """The learning rate decays linearly to this share of itself over the whole run."""
    weight_decay: NotNegative = 0.0
    """Of AdamW."""
    max_norm: Positive = 1.0
    """Gradients are scaled to this norm at most."""
    seq_len: Annotated[Whole, Field(ge=16)] = 512
    """Tokens a packed row; a trajectory must fit in one."""
    rows: AtLeast1 = 16
    """Packed rows a forward pass."""
    score_rows: AtLeast1 = 32
    """Packed rows a forward pass without gradients."""
    dtype: Dtype = "float32"
    """Of the forward and backward pass; weights, gradients and optimizer are float32 always."""
    ranks: AtLeast1 = 1
    """Processes that train together, each with its share of weights and rows; where there are GPUs, one each."""
    nodes: AtLeast1 = 1
    """Machines of a cluster that the ranks are on, as many on each."""
    tensor_parallel: AtLeast1 = 1
    """Ranks that share the heads and the columns of every layer, and work on the same rows."""
    context_parallel: AtLeast1 = 1
    """Ranks that share the tokens of every row."""
    lora: LoraConfig = LoraConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        together = self.tensor_parallel * self.context_parallel
        for name, size in (("nodes", self.nodes), ("tensor_parallel x training.context_parallel", together)):
            require(self.ranks % size == 0, f"training.{name}", size, f"a divisor of training.ranks, {self.ranks}")
        return self

    def on_one_rank(self) -> Self:
        """The same training where one process does all of it: the result is the same, but for rounding."""
        ranks = ("ranks", "nodes", "tensor_parallel", "context_parallel")
        return self.model_validate({name: value for name, value in self.to_dict().items() if name not in ranks})


class EvaluationConfig(Settings, section="evaluation"):
    """Greedy episodes of test tasks, which training never sees."""

    every: AtLeast1 = 8
    """Iterations between evaluations; the first and the last policy always have one."""
    tasks: Annotated[Whole, Field(ge=2)] = 512
    """Test tasks an evaluation; all that there are, where the environment has fewer."""
    seed: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 0
    """Which test tasks."""
    comparison: Literal["fixed", "sequential"] = "fixed"
    """Of a retraining: plays all its tasks, or stops as soon as the new policy is surely better."""


class RetentionConfig(Settings, section="retention"):
    """What a run keeps on disk of old versions. Trajectories and evaluations stay, always."""

    last: Annotated[
        Whole, Field(ge=3, json_schema_extra={"allowed": "3 or more, a stage that is repeated may need so many"})
    ] = 3
    """Newest versions, with their trainer states; a run goes on from these. With lag n at least n + 2."""
    every: AtLeast1 = 1
    """Also each policy whose version is a multiple of this; policy 0 and those evaluated always."""
    nights: AtLeast0 = 0
    """Retrainings of a model that stay whole on one machine. Of older ones policies, trainer states and trajectories
    go, but what an alias of the registry names; 0: all stay."""


MODEL_NAME = "letters, digits, dots, dashes and underscores, or null for grpo-<environment>"


class TrackingConfig(Settings, section="tracking"):
    """What MLflow gets beside the numbers."""

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", json_schema_extra={"allowed": MODEL_NAME})] | None = None
    """Name of the policies in the registry. None: grpo-<environment>."""
    trace_groups: AtLeast0 = 2
    """Groups an iteration whose episodes become traces; 0: none."""
    max_traces: AtLeast0 = 200
    """Episodes a run at most that become traces; 0: none."""


class TinyPolicyConfig(Settings, section="tiny"):
    """The checkpoint that `--policy tiny` makes, and its supervised cold start."""

    hidden_size: AtLeast1 = 128
    """Width; a multiple of 32 x heads, which vLLM's attention wants on a CPU."""
    layers: AtLeast1 = 2
    """Transformer blocks."""
    heads: AtLeast1 = 4
    """Attention heads."""
    cold_start_demonstrations: Annotated[Whole, Field(ge=64)] = 2048
    """Demonstrations of the environment that it learns to imitate."""
    cold_start_steps: AtLeast1 = 300
    """Optimizer steps."""
    cold_start_batch: AtLeast1 = 32
    """Demonstrations a step."""
    cold_start_learning_rate: Positive = 2e-3
    """Of those steps."""
    drill_steps: AtLeast0 = 0
    """Optimizer steps before them on the environment's drills, if it has some; more where they are not mastered."""
    max_drill_loss: Positive = 0.1
    """Nats a token on fresh drills that count as mastered; a policy that does not get there is refused."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        unit = 32 * self.heads
        self.rule("hidden_size", self.hidden_size % unit == 0, f"a multiple of 32 x tiny.heads ({unit})", "heads")
        return self


PER_POD = 8  # as many as lie between two evaluations by default


class ClusterConfig(Settings, section="cluster"):
    """How a cluster shares a training out among pods; no result depends on it."""

    iterations_per_pod: AtLeast0 | None = None
    """Iterations, rollout to train, that one pod does with engine and trainer warm; 0: a pod for each stage. None: 8
    where one pod can, with lag 0, one worker and one rank."""

    def per_pod(self, config: "GrpoConfig", lag: int) -> int:
        """Iterations that one pod does, 0 for pods apart. Raises ValueError where one pod cannot."""
        rollout, ranks = config.rollout, config.training.ranks
        several = {
            "rollout.workers": rollout.workers,
            "rollout.tensor_parallel": rollout.tensor_parallel,
            "training.ranks": ranks,
        }
        needed = [f"lag {lag}"] if lag else []
        needed += [f"{name} {value}" for name, value in several.items() if value > 1]
        given = self.iterations_per_pod
        allowed = f"0 or null with {' and '.join(needed)}, which want pods apart"
        require(not (given and needed), "cluster.iterations_per_pod", given, allowed)
        return (0 if needed else PER_POD) if given is None else given


class GrpoConfig(Settings):
    """All settings of a training, one record a stage."""

    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    buffer: BufferConfig = BufferConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    retention: RetentionConfig = RetentionConfig()
    tracking: TrackingConfig = TrackingConfig()
    cluster: ClusterConfig = ClusterConfig()
    tiny: TinyPolicyConfig = TinyPolicyConfig()

    def resolved(self, defaults: Mapping[str, Any] = {}) -> Self:
        """Every field set: by what was given, else by `defaults`, the environment's (nested), else by those here.

        An environment's clips are for the loss of its defaults; another loss has its own. Raises ValueError, in one
        sentence, for values that do not fit together.
        """
        given, algorithm = self.to_dict(), defaults.get("algorithm", {})
        loss = algorithm.get("name", "grpo")
        if given.get("algorithm", {}).get("name", loss) != loss:
            algorithm = {name: value for name, value in algorithm.items() if name not in ("clip_low", "clip_high")}
        found = self.model_validate(merged({**defaults, "algorithm": algorithm}, given))
        rollout, buffer, training, values = found.rollout, found.buffer, found.training, found.whole()
        longest = rollout.max_episode_tokens or training.seq_len
        allowed = f"at most training.seq_len ({training.seq_len}), a trajectory must fit in one row"
        require(longest <= training.seq_len, "rollout.max_episode_tokens", longest, allowed)
        dtype = "bfloat16" if "bfloat16" in (rollout.dtype, training.dtype) else "float32"
        values["algorithm"] = found.algorithm.resolved(dtype)
        values["rollout"]["max_episode_tokens"] = longest
        values["buffer"]["groups"] = buffer.groups or rollout.groups * buffer.reuse
        return self.model_validate(values)

    def on_one_rank(self) -> Self:
        """The same settings, as far as they decide what comes out: with a training on one rank, wherever it runs."""
        return self.replace(training=self.training.on_one_rank(), cluster=ClusterConfig())


class Run(Settings, section="run"):
    """What every stage of one training knows about it. Made by `create_run`, after all inputs were checked.

    Example: `Run(name="monday", token="6f9c…", seed=0, environment="arithmetic", environment_url="",
    mlflow_run_id="4be1…", tracking_uri="sqlite:///…/runs/mlflow.db", iterations=32, started=1764500000.0)`.
    """

    name: str
    """Of its folder under runs/, and in MLflow."""
    token: str
    """New for each run folder: cached stages of a deleted run are never found again. On a cluster its execution."""
    seed: Whole
    environment: str
    environment_url: str
    mlflow_run_id: str
    tracking_uri: str
    iterations: Whole = 1
    """Policy versions that it trains."""
    started: Number = 0.0
    """When the run was first opened, seconds since 1970."""
    policy: str = ""
    """What it starts from: "tiny", a name on the hub, a directory, or the URI of one."""
    given: GrpoConfig = GrpoConfig()
    """The settings that the user gave, without the ranks, on which no result depends."""
