"""The architectures that can be trained, and what their config.json may not ask for.

A model that leaves out what config.json asks for would train and sample something else, without an error. So each such
key is refused by name before any work, without torch.
"""

from collections.abc import Mapping
from typing import Any

from tasks.settings import require

NO = (False, None)
EVERYWHERE: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "quantization_config": (None,),
    "is_causal": (True, None),
}
# For each model_type, the keys that change its forward pass, and their values with which it is the plain one.
ARCHITECTURES: dict[str, dict[str, tuple[object, ...]]] = {
    "qwen3": {"use_sliding_window": NO, "attention_bias": NO, "dual_chunk_attention_config": (None,)},
    "qwen2": {"use_sliding_window": NO, "qk_norm": NO, "dual_chunk_attention_config": (None,)},
    "llama": {"attention_bias": NO, "mlp_bias": NO, "bias": NO, "qkv_bias": NO},
}
ROPE_TYPES = {"qwen3": ("default",), "qwen2": ("default",), "llama": ("default", "llama3")}
LLAMA3_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
# What other keys are, where they are there.
KINDS: dict[str, tuple[type, ...]] = {
    "num_key_value_heads": (int,),
    "head_dim": (int,),
    "layer_types": (list,),
    "rope_parameters": (dict,),
    "rope_scaling": (dict,),
    "rope_theta": (int, float),
    "tie_word_embeddings": (bool,),
}
IN_WORDS = {int: "a whole number", float: "a number", list: "a list", dict: "an object", bool: "true or false"}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Those that CPUAttentionBackend of vLLM 0.29 lists, and 48, which it takes too (each was run).
CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding of a config.json, in transformers 5's terms: at least `rope_type` and `rope_theta`.

    Before transformers 5, the base stood beside a `rope_scaling`, whose `rope_type` was once called `type`.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        "rope_type": given.get("type", "default"),
        "rope_theta": config.get("rope_theta") or 10000.0,  # transformers' default
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **given,
    }


def head_size(config: Mapping[str, Any]) -> int:
    """Dimensions of an attention head; where config.json does not say, transformers' default."""
    plain = config["hidden_size"] // config["num_attention_heads"]
    return config.get("head_dim") or (128 if config["model_type"] == "qwen3" else plain)


def kv_heads(config: Mapping[str, Any]) -> int:
    """Heads of the keys and values; each serves one query head or several."""
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def check_architecture(config: Mapping[str, Any]) -> None:
    """Raise ValueError, in one sentence, where config.json asks for what its ModelSpec would leave out."""
    kind = config["model_type"]
    for key in (*SIZES, "max_position_embeddings"):
        size = config.get(key)
        _check(isinstance(size, int) and not isinstance(size, bool) and size >= 1, key, size, "1 or more")
    for key, kinds in KINDS.items():
        value = config.get(key)
        fine = value is None or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)))
        _check(fine, key, value, IN_WORDS[kinds[-1]])
        _check(not isinstance(value, int | float) or bool in kinds or value > 0, key, value, "more than 0")
    for key, allowed in (EVERYWHERE | ARCHITECTURES[kind]).items():
        _check(key not in config or config[key] in allowed, key, config.get(key), _listed(allowed))
    layers = sorted({str(layer) for layer in config.get("layer_types") or ()} - {"full_attention"})
    _check(not layers, "layer_types", ", ".join(layers), "full_attention")

    heads, fewer, size = config["num_attention_heads"], kv_heads(config), head_size(config)
    _check(heads % fewer == 0, "num_key_value_heads", fewer, f"a divisor of {heads}, its num_attention_heads")
    _check(size % 2 == 0, "head_dim", size, "an even number")
    plain = config["hidden_size"] // heads  # vLLM's Qwen2 has no other
    _check(kind != "qwen2" or size == plain, "head_dim", size, f"{plain}, hidden_size / num_attention_heads")

    given = rope(config)
    _check(given["rope_type"] in ROPE_TYPES[kind], "rope_type", given["rope_type"], _listed(ROPE_TYPES[kind]))
    part = given["partial_rotary_factor"]
    _check(part in (None, 1), "partial_rotary_factor", part, "1.0")
    for key in LLAMA3_SCALING if given["rope_type"] == "llama3" else ():
        number = given.get(key)
        _check(isinstance(number, int | float) and number > 0, key, number, "more than 0, with rope_type llama3")


def check_head_size(config: Mapping[str, Any]) -> None:
    """Raise ValueError where this machine has no accelerator, and vLLM's attention on a CPU no heads of such a size."""
    if (size := head_size(config)) not in CPU_HEAD_SIZES:
        import torch  # a second, so only where it matters

        allowed = f"{_listed(CPU_HEAD_SIZES)} where vLLM runs on a CPU"
        _check(torch.accelerator.is_available(), "head_dim", size, allowed)


def check_shares(config: Mapping[str, Any], tensor_parallel: int, section: str = "training") -> None:
    """Raise ValueError where a policy's heads cannot be divided evenly among so many ranks, or GPUs of vLLM."""
    heads, keys = config["num_attention_heads"], kv_heads(config)
    allowed = f"a divisor of the policy's {heads} attention heads and {keys} heads of keys and values"
    fits = heads % tensor_parallel == keys % tensor_parallel == 0
    require(fits, f"{section}.tensor_parallel", tensor_parallel, allowed)


def _check(fine: bool, key: str, given: object, allowed: str) -> None:
    if not fine:
        raise ValueError(f"policy has {key} {given} in its config.json; allowed: {allowed}.")


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
