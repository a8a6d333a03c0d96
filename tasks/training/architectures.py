"""The TorchTitan ModelSpec of each architecture, from a parsed config.json.

All are variations of TorchTitan's dense Qwen3 decoder:

    x -> norm -> q, k, v (+ biases: Qwen2) (-> norms of q and k: Qwen3) -> RoPE -> attention -> + -> norm -> SwiGLU -> +

All sizes come from config.json, none from TorchTitan's list of flavours. Settings that a spec does not support are
refused earlier, by `tasks/policy/architectures.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tasks.policy.architectures import LLAMA3_SCALING, head_size, kv_heads, rope
from tasks.training import titan  # first: it tells torchtitan the device

from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import FlexAttention, FusedQKVLinear
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.qwen3 import parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec

_NORMAL: dict[str, Any] = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
_ONES: dict[str, Any] = {"weight": nn.init.ones_}


def decoder_spec(
    config: dict[str, Any],
    seq_len: int,
    *,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    adapter: type[Qwen3StateDictAdapter] = Qwen3StateDictAdapter,
    rope_type: type[CosSinRoPE.Config] = CosSinRoPE.Config,
    **rope_options: Any,
) -> ModelSpec:
    """The ModelSpec of a decoder with the sizes of config.json, for rows of at most `seq_len` tokens."""
    dim, vocabulary = config["hidden_size"], config["vocab_size"]

    def norm(size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=config.get("rms_norm_eps", 1e-6), param_init=_ONES)

    def block() -> Qwen3TransformerBlock.Config:
        theta, size = rope(config)["rope_theta"], head_size(config)
        attention = make_gqa_config(
            dim=dim,
            n_heads=config["num_attention_heads"],
            n_kv_heads=kv_heads(config),
            head_dim=size,
            wqkv_param_init=_NORMAL,
            wo_param_init=_NORMAL,
            inner_attention=titan.DenseMaskAttention.Config() if titan.ON_CPU else FlexAttention.Config(),
            rope=rope_type(dim=size, max_seq_len=seq_len, theta=theta, **rope_options),
            fuse_qkv=True,
            qk_norm=norm(size) if qk_norm else None,
        )
        assert isinstance(attention.qkv_linear, FusedQKVLinear.Config)
        attention.qkv_linear.wqkv.bias = qkv_bias
        return Qwen3TransformerBlock.Config(
            attention_norm=norm(dim),
            ffn_norm=norm(dim),
            attention=attention,
            feed_forward=make_ffn_config(
                dim=dim, hidden_dim=config["intermediate_size"], w1_param_init=_NORMAL, w2w3_param_init=_NORMAL
            ),
        )

    model = Qwen3Model.Config(
        dim=dim,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=dim, param_init={"weight": _NORMAL["weight"]}
        ),
        layers=[block() for _ in range(config["num_hidden_layers"])],
        norm=norm(dim),
        lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init=_NORMAL),
        enable_weight_tying=bool(config.get("tie_word_embeddings", False)),
    )
    return ModelSpec(
        name=config["model_type"],
        flavor="",
        model=model,
        parallelize_fn=parallelize_qwen3,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=adapter,
    )


class Qwen2StateDictAdapter(Qwen3StateDictAdapter):
    """Qwen3's names, with those of the three biases, which TorchTitan shards and splits like their weights."""

    def __init__(self, model_config: Qwen3Model.Config, hf_assets_path: str | None):
        super().__init__(model_config, hf_assets_path)
        for x in "qkv":
            name = f"model.layers.{{}}.self_attn.{x}_proj.bias"
            self.from_hf_map[name] = f"layers.{{}}.attention.qkv_linear.w{x}.bias"


class LlamaRoPE(CosSinRoPE):
    """CosSinRoPE with Llama 3's scaling, by the angles of TorchTitan's ComplexRoPE."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    def _precompute_cache(self) -> torch.Tensor:
        """Cosines, then sines, each for both halves of a head: [positions, 2 x head size]."""
        rotations = ComplexRoPE(self.config).cache  # [positions, head size / 2], complex
        return torch.cat([rotations.real, rotations.real, rotations.imag, rotations.imag], dim=-1)


def llama_spec(config: dict[str, Any], seq_len: int) -> ModelSpec:
    """Llama 3 and SmolLM2: no norms on q and k, and Llama 3's scaled rotary frequencies.

    TorchTitan's own Llama rotates pairs of neighbouring dimensions, and permutes q and k of a checkpoint. Here the two
    halves of a head are rotated, as in the checkpoint, so an export has the same bytes.
    """
    settings, scaling = rope(config), {}
    if settings["rope_type"] == "llama3":
        scaling = {"scaling": "llama", **{key: settings[key] for key in LLAMA3_SCALING}}
        scaling["scaling_factor"] = scaling.pop("factor")
    return decoder_spec(config, seq_len, rope_type=LlamaRoPE.Config, **scaling)


SPECS: dict[str, Callable[[dict[str, Any], int], ModelSpec]] = {  # by the model_type of config.json
    "qwen3": partial(decoder_spec, qk_norm=True),
    "qwen2": partial(decoder_spec, qkv_bias=True, adapter=Qwen2StateDictAdapter),  # and Qwen2.5
    "llama": llama_spec,
}
