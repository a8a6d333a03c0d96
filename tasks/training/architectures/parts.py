"""What the architectures share: each is a variation of TorchTitan's dense Qwen3 decoder.

x -> norm -> q, k, v (+ biases: Qwen2) (-> norms of q and k: Qwen3) -> RoPE -> attention -> + -> norm -> SwiGLU -> +
"""

from functools import partial
from typing import Any

from torch import nn

from tasks.policy.architectures import head_size, kv_heads
from tasks.training import titan  # first: it tells torchtitan the device

from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import FusedQKVLinear, GQAttention
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
    rope: type[CosSinRoPE.Config],
    *,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    adapter: type[Qwen3StateDictAdapter] = Qwen3StateDictAdapter,
    **rope_options: Any,
) -> ModelSpec:
    """The ModelSpec of a decoder with the sizes of config.json, and a rotary embedding with `rope_options`."""
    dim, vocabulary = config["hidden_size"], config["vocab_size"]

    def norm(size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=config.get("rms_norm_eps", 1e-6), param_init=_ONES)

    def attention() -> GQAttention.Config:
        made = make_gqa_config(
            dim=dim,
            n_heads=config["num_attention_heads"],
            n_kv_heads=kv_heads(config),
            head_dim=head_size(config),
            wqkv_param_init=_NORMAL,
            wo_param_init=_NORMAL,
            inner_attention=titan.inner_attention(),
            rope=rope(dim=head_size(config), max_seq_len=seq_len, **rope_options),
            fuse_qkv=True,
            qk_norm=norm(head_size(config)) if qk_norm else None,
        )
        assert isinstance(made.qkv_linear, FusedQKVLinear.Config)
        made.qkv_linear.wqkv.bias = qkv_bias
        return made

    def block() -> Qwen3TransformerBlock.Config:
        return Qwen3TransformerBlock.Config(
            attention_norm=norm(dim),
            ffn_norm=norm(dim),
            attention=attention(),
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
