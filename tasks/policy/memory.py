"""How much memory a policy will take, worked out from its config.json and the settings, before any of it is loaded.

Estimates, per role: what it rests on while it is warm, and what it adds while it works. Stages that share a process
work one at a time. Axes in comments: V vocabulary, K sampled tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
HEAP = 1.2  # what is lost to holes between freed activations: 16 to 21 % of a training step were, with glibc on a CPU


@dataclass(frozen=True)
class Role:
    """Bytes that one part of a run takes: `resident` while it is warm, and `working` on top while it works."""

    resident: float
    working: float


def linear_layers(config: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """(in, out) of the linear layers of one block, by the name that `training.lora.targets` has for their part."""
    dim, hidden = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * head_size(config)
    keys = kv_heads(config) * head_size(config)
    return {
        "attention": [(dim, queries), (dim, keys), (dim, keys), (queries, dim)],
        "feed_forward": [(dim, hidden), (dim, hidden), (hidden, dim)],
    }


def parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a checkpoint; a head tied to the embeddings counts once."""
    dim, size = config["hidden_size"], head_size(config)
    queries, keys = config["num_attention_heads"] * size, kv_heads(config) * size
    block = sum(a * b for layers in linear_layers(config).values() for a, b in layers) + 2 * dim
    block += {"qwen3": 2 * size, "qwen2": queries + 2 * keys, "llama": 0}[config["model_type"]]  # norms, biases
    return config["num_hidden_layers"] * block + dim + (1 if _tied(config) else 2) * _embeddings(config)


def trained_parameters(config: Mapping[str, Any], lora: LoraConfig) -> int:
    """Parameters that have gradients: all of them, or of each target (in, out) the two factors, rank x (in + out)."""
    if lora.rank == 0:
        return parameters(config)
    layers = [
        layer for part, layers in linear_layers(config).items() if lora.targets in ("all", part) for layer in layers
    ]
    return config["num_hidden_layers"] * sum(lora.rank * (a + b) for a, b in layers)


def block_floats(config: Mapping[str, Any], seq_len: int) -> int:
    """Numbers a token that a block keeps for its backward pass, without activation checkpointing.

    Two norms keep their input, the normalised input and their output: 6 x hidden. SwiGLU keeps two projections, the
    activation and the product: 4 x intermediate. Attention keeps q, k, v after the turn and its output, Qwen3's norms
    two more of q and k each, the turn a cosine and a sine. On a CPU the mask of a row, as numbers, is kept as well:
    seq_len a token.
    """
    size = head_size(config)
    queries, keys = config["num_attention_heads"] * size, kv_heads(config) * size
    normed = 2 * (queries + keys) if config["model_type"] == "qwen3" else 0
    attention = 2 * queries + 2 * keys + normed + 2 * size + seq_len
    return 6 * config["hidden_size"] + 4 * config["intermediate_size"] + attention


def block_bytes(config: Mapping[str, Any], training: TrainingConfig) -> int:
    """The same in bytes: with bfloat16 the two norms still keep their input and the normalised input in float32."""
    width = BYTES[training.dtype]
    return block_floats(config, training.seq_len) * width + 4 * config["hidden_size"] * (FLOAT32 - width)


def sampled_tokens(training: TrainingConfig, max_tokens: int) -> int:
    """K, sampled tokens of one forward pass: as if each trajectory of a step had one reply of `max_tokens`.

    A trajectory may have several replies, and most are shorter. A pass never has more than `rows` x `seq_len`.
    """
    return min(training.rows * training.seq_len, training.minibatch_size * max_tokens)


def training_role(
    config: Mapping[str, Any], training: TrainingConfig, max_tokens: int, *, ranks: int = 1, lag: int = 0
) -> Role:
    """The trainer: weights and Adam's moments rest; on top come gradients, and activations or a copy of the weights.

    The weights are float32 always, over `ranks` in equal parts; with bfloat16 a block's are cast while it works, and
    frozen ones have neither gradients nor moments. The copy is what the optimizer's square roots and the gathered
    export take; with lag 1 a second scorer has the sampler's weights. Neither is there beside activations. Prompts that
    share a row change nothing: no pass has more than `rows` x `seq_len` tokens.
    """
    whole = parameters(config) * FLOAT32
    trained = trained_parameters(config, training.lora) * FLOAT32 / ranks
    tokens = training.rows * training.seq_len
    activations = config["num_hidden_layers"] * tokens * block_bytes(config, training)
    logits = TRAINED_LOGITS * sampled_tokens(training, max_tokens) * config["vocab_size"] * FLOAT32
    head = 2 * _embeddings(config) * BYTES[training.dtype]  # FSDP's whole copy of the output head, and its gradient
    scoring = _scoring(config, training, max_tokens)
    work = max(activations + logits + head, whole, scoring + (whole if lag else 0))
    return Role(resident=HEAP * (whole / ranks + 2 * trained), working=HEAP * (trained + work))


def scorer_role(config: Mapping[str, Any], training: TrainingConfig, max_tokens: int, *, ranks: int = 1) -> Role:
    """The frozen reference: float32 weights, and one block's activations of `score_rows` rows."""
    return Role(parameters(config) * FLOAT32 / ranks, HEAP * _scoring(config, training, max_tokens))


def _scoring(config: Mapping[str, Any], training: TrainingConfig, max_tokens: int) -> float:
    tokens = training.score_rows * training.seq_len
    sampled = min(tokens, sampled_tokens(training, max_tokens) * training.score_rows / training.rows)
    return tokens * block_bytes(config, training) + SCORED_LOGITS * sampled * config["vocab_size"] * FLOAT32


def generator_role(config: Mapping[str, Any], rollout: RolloutConfig, *, gpu: float = 0) -> Role:
    """vLLM: weights with a head of their own, and the attention cache.

    On top come the logits of what is sampled at once and a block's activations of the prompts, or the next version's
    weights while they are read. On a GPU of `gpu` bytes it takes its share whatever the policy; weights that are more
    than the share do not fit.
    """
    head = _embeddings(config) if _tied(config) else 0
    weights = (parameters(config) + head) * BYTES[rollout.dtype]
    if gpu:
        share = rollout.gpu_memory_utilization
        return Role(max(share * gpu, weights / share), 0)
    logits = SAMPLED_LOGITS * min(REQUESTS, rollout.concurrent_episodes) * config["vocab_size"] * FLOAT32
    prompts = max(PREFILLED, config["max_position_embeddings"])
    prefill = prompts * (3 * config["intermediate_size"] + 4 * config["hidden_size"]) * BYTES[rollout.dtype]
    return Role(HEAP * weights + rollout.kv_cache_gib * GIB, max(logits + prefill, parameters(config) * FLOAT32))


def cache_bytes(config: Mapping[str, Any], rollout: RolloutConfig) -> int:
    """Attention states of one episode at its longest: vLLM insists on room for it."""
    token = config["num_hidden_layers"] * 2 * kv_heads(config) * head_size(config) * BYTES[rollout.dtype]
    return (rollout.max_episode_tokens or config["max_position_embeddings"]) * token


def expected(config_json: Mapping[str, Any], config: GrpoConfig, *, lag: int = 0, gpu: float = 0) -> dict[str, float]:
    """Bytes of a whole run in one process, by role: what each rests on, and `working`, the most that one adds.

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
    resting = {name: role.resident for name, role in roles.items()}
    return {**resting, "working": max(role.working for role in roles.values())}


def _tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", False))


def _embeddings(config: Mapping[str, Any]) -> int:
    return config["vocab_size"] * config["hidden_size"]
