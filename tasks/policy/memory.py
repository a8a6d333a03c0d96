"""How much memory each role of a run will take, from a policy's config.json and the settings, before it is loaded.

Stages that share a process work one at a time. Axes in comments: V vocabulary, K sampled tokens.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.config import GrpoConfig, LoraConfig, RolloutConfig, TrainingConfig
from tasks.policy.architectures import head_size, kv_heads

GIB = 2**30
FLOAT32 = 4  # bytes of weights, gradients, moments and logits
BYTES = {"float32": 4, "bfloat16": 2}
TRAINED_LOGITS = 5  # copies of [K, V] at the peak: logits, log-probabilities, their exponentials, products, a gradient
SCORED_LOGITS = 4  # the same without the gradient
SAMPLED_LOGITS = 6  # of [requests, V] in vLLM: logits, probabilities, log-probabilities, noise, sorted and ranked
REQUESTS = 1024  # that vLLM samples for at once, at most
PREFILLED = 4096  # tokens that vLLM passes through a block at once, or the longest prompt that it takes
LIBRARIES = 0.8 * GIB  # vLLM, TorchTitan and what they import, on a CPU
HEAP = 1.2  # lost to holes between freed activations: 16 to 21 % of a training step, measured with glibc on a CPU


class Role(NamedTuple):
    """Bytes that one part of a run takes: `resident` while it is warm, and `working` on top while it works."""

    resident: float
    working: float


class Sizes:
    """The sizes of a policy, from its config.json."""

    def __init__(self, config: Mapping[str, Any]):
        self.dim, self.hidden = config["hidden_size"], config["intermediate_size"]
        self.layers, self.head = config["num_hidden_layers"], head_size(config)
        self.queries = config["num_attention_heads"] * self.head  # dimensions of all heads of a block together
        self.keys = kv_heads(config) * self.head
        self.embeddings = config["vocab_size"] * self.dim  # as many in an output head that is not tied to them
        self.tied = bool(config.get("tie_word_embeddings", False))


def parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a checkpoint; a head tied to the embeddings counts once."""
    of = Sizes(config)
    own = {"qwen3": 2 * of.head, "qwen2": of.queries + 2 * of.keys, "llama": 0}  # norms of heads, or biases
    block = 2 * of.dim * (of.queries + of.keys) + 3 * of.dim * of.hidden + 2 * of.dim + own[config["model_type"]]
    return of.layers * block + of.dim + (1 if of.tied else 2) * of.embeddings


def trained_parameters(config: Mapping[str, Any], lora: LoraConfig) -> int:
    """Parameters that have gradients: all, or two factors of each targeted layer (in, out), rank x (in + out)."""
    if lora.rank == 0:
        return parameters(config)
    of = Sizes(config)
    parts = {"attention": 2 * (2 * of.dim + of.queries + of.keys), "feed_forward": 3 * (of.dim + of.hidden)}
    return of.layers * lora.rank * sum(size for part, size in parts.items() if lora.targets in ("all", part))


def block_bytes(config: Mapping[str, Any], training: TrainingConfig) -> int:
    """Bytes a token that a block keeps for its backward pass, without activation checkpointing.

    Two norms keep their input, the normalised input and their output: 6 x hidden. SwiGLU keeps two projections, the
    activation and the product: 4 x intermediate. Attention keeps its rotated q and k, its v and output; Qwen3's norms
    keep q and k twice more; the rotation a cosine and a sine. On a CPU the mask of a row is kept as numbers too:
    seq_len a token. In bfloat16 the norms still keep their input and the normalised input in float32.
    """
    of, width = Sizes(config), BYTES[training.dtype]
    normed = 2 * (of.queries + of.keys) if config["model_type"] == "qwen3" else 0
    attention = 2 * of.queries + 2 * of.keys + normed + 2 * of.head + training.seq_len
    return (6 * of.dim + 4 * of.hidden + attention) * width + 4 * of.dim * (FLOAT32 - width)


def sampled_tokens(training: TrainingConfig, max_tokens: int) -> int:
    """K, sampled tokens of one forward pass: as if each trajectory of a step had one reply of `max_tokens`."""
    return min(training.rows * training.seq_len, training.minibatch_size * max_tokens)


def training_role(
    config: Mapping[str, Any], training: TrainingConfig, max_tokens: int, *, ranks: int = 1, lag: int = 0
) -> Role:
    """The trainer holds weights and Adam's moments; on top come gradients, and activations or a copy of the weights.

    The weights are float32 always, in equal parts over `ranks`; in bfloat16 those of a block are cast while it works.
    Frozen weights have neither gradients nor moments. The copy is what the optimizer's square roots and the gathered
    export take; with lag 1 a second scorer has the sampler's weights. Neither exists at the same time as activations.
    """
    of = Sizes(config)
    whole = parameters(config) * FLOAT32
    trained = trained_parameters(config, training.lora) * FLOAT32 / ranks
    activations = of.layers * training.rows * training.seq_len * block_bytes(config, training)
    logits = TRAINED_LOGITS * sampled_tokens(training, max_tokens) * config["vocab_size"] * FLOAT32
    head = 2 * of.embeddings * BYTES[training.dtype]  # FSDP's whole copy of the output head, and its gradient
    scoring = scorer_role(config, training, max_tokens).working / HEAP
    work = max(activations + logits + head, whole, scoring + (whole if lag else 0))
    return Role(resident=HEAP * (whole / ranks + 2 * trained), working=HEAP * (trained + work))


def scorer_role(config: Mapping[str, Any], training: TrainingConfig, max_tokens: int, *, ranks: int = 1) -> Role:
    """The frozen reference: float32 weights, and one block's activations of `score_rows` rows."""
    tokens = training.score_rows * training.seq_len
    sampled = min(tokens, sampled_tokens(training, max_tokens) * training.score_rows / training.rows)
    logits = SCORED_LOGITS * sampled * config["vocab_size"] * FLOAT32
    work = HEAP * (tokens * block_bytes(config, training) + logits)
    return Role(resident=parameters(config) * FLOAT32 / ranks, working=work)


def generator_role(config: Mapping[str, Any], rollout: RolloutConfig, *, gpu: float = 0) -> Role:
    """vLLM: weights with an output head of their own, and the attention cache.

    On top come the logits of what is sampled at once and a block's activations of the prompts, or the next version's
    weights while they are read, in the precision in which they are kept. Of a GPU of `gpu` bytes it takes its share,
    and more weights than that do not fit; of several GPUs each has its part of the weights.
    """
    of = Sizes(config)
    weights = (parameters(config) + of.tied * of.embeddings) * BYTES[rollout.dtype]
    if gpu:
        share = rollout.gpu_memory_utilization
        return Role(resident=max(share * gpu, weights / rollout.tensor_parallel / share), working=0)
    logits = SAMPLED_LOGITS * min(REQUESTS, rollout.concurrent_episodes) * config["vocab_size"] * FLOAT32
    prompts = max(PREFILLED, config["max_position_embeddings"])
    prefill = prompts * (3 * of.hidden + 4 * of.dim) * BYTES[rollout.dtype]
    kept = BYTES.get(config.get("dtype") or config.get("torch_dtype") or "", FLOAT32)
    working = max(logits + prefill, parameters(config) * kept)
    return Role(HEAP * weights + rollout.kv_cache_gib * GIB, working)


def cache_bytes(config: Mapping[str, Any], rollout: RolloutConfig) -> int:
    """Attention states of one episode at its longest: vLLM needs room for it."""
    of, longest = Sizes(config), rollout.max_episode_tokens or config["max_position_embeddings"]
    return longest * of.layers * 2 * of.keys * BYTES[rollout.dtype]


def expected(config_json: Mapping[str, Any], config: GrpoConfig, *, lag: int = 0, gpu: float = 0) -> dict[str, float]:
    """Bytes of a whole run in one process: what each role holds, and `working`, the most that one adds.

    Example, Qwen2.5-1.5B with the defaults on a CPU, in GiB: training 20.7, generator 8.9, reference 5.8, libraries
    0.8, working 35.1.
    """
    ranks = config.training.ranks
    training = training_role(config_json, config.training, config.rollout.max_tokens, ranks=ranks, lag=lag)
    alike = 1 if gpu else ranks  # where there are GPUs each rank has one, else all share the machine
    roles = {"training": Role(alike * training.resident, alike * training.working)}
    roles["generator"] = generator_role(config_json, config.rollout, gpu=gpu)
    if config.algorithm.kl_coefficient:
        roles["reference"] = scorer_role(config_json, config.training, config.rollout.max_tokens)
    if not gpu:
        roles["libraries"] = Role(LIBRARIES, 0)
    working = max(role.working for role in roles.values())
    return {**{name: role.resident for name, role in roles.items()}, "working": working}
