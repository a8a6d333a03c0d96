"""How much memory a policy will take, from its config.json and the settings, before any of it is loaded.

Estimates of each role: what it holds while it is warm, and what it adds while it works. Stages that share a process
work one at a time. Axes in comments: V vocabulary, K sampled tokens.
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


class Sizes(NamedTuple):
    """The sizes of a policy; `queries` and `keys` are dimensions of all heads of a block together.

    Example, Qwen2.5-1.5B: `Sizes(dim=1536, hidden=8960, layers=28, head=128, queries=1536, keys=256,
    embeddings=233373696, tied=True)`.
    """

    dim: int
    hidden: int
    layers: int
    head: int
    queries: int
    keys: int
    embeddings: int  # numbers in the embedding matrix, and in an output head that is not tied to it
    tied: bool


def sizes(config: Mapping[str, Any]) -> Sizes:
    """The sizes in a config.json."""
    dim, head = config["hidden_size"], head_size(config)
    queries, keys = config["num_attention_heads"] * head, kv_heads(config) * head
    embeddings, tied = config["vocab_size"] * dim, bool(config.get("tie_word_embeddings", False))
    return Sizes(dim, config["intermediate_size"], config["num_hidden_layers"], head, queries, keys, embeddings, tied)


def parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a checkpoint; a head tied to the embeddings counts once."""
    dim, hidden, layers, head, queries, keys, embeddings, tied = sizes(config)
    norms_and_biases = 2 * dim + {"qwen3": 2 * head, "qwen2": queries + 2 * keys, "llama": 0}[config["model_type"]]
    block = 2 * dim * (queries + keys) + 3 * dim * hidden + norms_and_biases
    return layers * block + dim + (1 if tied else 2) * embeddings


def trained_parameters(config: Mapping[str, Any], lora: LoraConfig) -> int:
    """Parameters that have gradients: all, or two factors of each targeted layer (in, out), rank x (in + out)."""
    if lora.rank == 0:
        return parameters(config)
    of = sizes(config)
    parts = {"attention": 2 * (2 * of.dim + of.queries + of.keys), "feed_forward": 3 * (of.dim + of.hidden)}
    return of.layers * lora.rank * sum(size for part, size in parts.items() if lora.targets in ("all", part))


def block_bytes(config: Mapping[str, Any], training: TrainingConfig) -> int:
    """Bytes a token that a block keeps for its backward pass, without activation checkpointing.

    Two norms keep their input, the normalised input and their output: 6 x hidden. SwiGLU keeps two projections, the
    activation and the product: 4 x intermediate. Attention keeps its rotated q and k, its v and output; Qwen3's norms
    keep q and k twice more; the rotation a cosine and a sine. On a CPU the mask of a row is kept as numbers too:
    seq_len a token. In bfloat16 the norms still keep their input and the normalised input in float32.
    """
    of, width = sizes(config), BYTES[training.dtype]
    normed = 2 * (of.queries + of.keys) if config["model_type"] == "qwen3" else 0
    attention = 2 * of.queries + 2 * of.keys + normed + 2 * of.head + training.seq_len
    return (6 * of.dim + 4 * of.hidden + attention) * width + 4 * of.dim * (FLOAT32 - width)


def sampled_tokens(training: TrainingConfig, max_tokens: int) -> int:
    """K, sampled tokens of one forward pass: as if each trajectory of a step had one reply of `max_tokens`.

    A trajectory may have several replies, and most are shorter. A pass never has more than `rows` x `seq_len`.
    """
    return min(training.rows * training.seq_len, training.minibatch_size * max_tokens)


def training_role(
    config: Mapping[str, Any], training: TrainingConfig, max_tokens: int, *, ranks: int = 1, lag: int = 0
) -> Role:
    """The trainer holds weights and Adam's moments; on top come gradients, and activations or a copy of the weights.

    The weights are float32 always, in equal parts over `ranks`; frozen ones have neither gradients nor moments. The
    copy is what the optimizer's square roots and the gathered export take; with lag 1 a second scorer has the sampler's
    weights. Neither exists at the same time as activations.
    """
    of = sizes(config)
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
    work = tokens * block_bytes(config, training) + logits
    return Role(resident=parameters(config) * FLOAT32 / ranks, working=HEAP * work)


def generator_role(config: Mapping[str, Any], rollout: RolloutConfig, *, gpu: float = 0) -> Role:
    """vLLM: weights with an output head of their own, and the attention cache; on top the logits of what is sampled at
    once and a block's activations of the prompts, or the next version's weights while they are read.

    On a GPU of `gpu` bytes it takes its share whatever the policy; weights that are more than the share do not fit.
    """
    of = sizes(config)
    weights = (parameters(config) + of.tied * of.embeddings) * BYTES[rollout.dtype]
    if gpu:
        share = rollout.gpu_memory_utilization
        return Role(resident=max(share * gpu, weights / share), working=0)
    logits = SAMPLED_LOGITS * min(REQUESTS, rollout.concurrent_episodes) * config["vocab_size"] * FLOAT32
    prompts = max(PREFILLED, config["max_position_embeddings"])
    prefill = prompts * (3 * of.hidden + 4 * of.dim) * BYTES[rollout.dtype]
    working = max(logits + prefill, parameters(config) * FLOAT32)
    return Role(resident=HEAP * weights + rollout.kv_cache_gib * GIB, working=working)


def cache_bytes(config: Mapping[str, Any], rollout: RolloutConfig) -> int:
    """Attention states of one conversation of `max_position_embeddings` tokens: vLLM needs room for it."""
    of = sizes(config)
    return config["max_position_embeddings"] * of.layers * 2 * of.keys * BYTES[rollout.dtype]


def expected(config_json: Mapping[str, Any], config: GrpoConfig, *, lag: int = 0, gpu: float = 0) -> dict[str, float]:
    """Bytes of a whole run in one process: what each role holds, and `working`, the most that one adds.

    Example, Qwen2.5-1.5B with the defaults on a CPU, in GiB: training 20.7, generator 8.9, reference 5.8, libraries
    0.8, working 35.1.
    """
    ranks = config.training.ranks
    training = training_role(config_json, config.training, config.rollout.max_tokens, ranks=ranks, lag=lag)
    alike = 1 if gpu else ranks  # where there are GPUs each rank has one, else all share the machine
    roles = {
        "training": Role(alike * training.resident, alike * training.working),
        "generator": generator_role(config_json, config.rollout, gpu=gpu),
    }
    if config.algorithm.kl_coefficient:
        roles["reference"] = scorer_role(config_json, config.training, config.rollout.max_tokens)
    if not gpu:
        roles["libraries"] = Role(LIBRARIES, 0)
    held = {name: role.resident for name, role in roles.items()}
    return {**held, "working": max(role.working for role in roles.values())}
