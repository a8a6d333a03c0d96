"""Qwen2 and Qwen2.5, which TorchTitan lacks: Qwen3's block with biases on q, k and v, and no norms on q and k.

The biases are sharded and converted like their weights: TorchTitan's fused projection splits both when it saves.
"""

from typing import Any

from tasks.policy.architectures import rope
from tasks.training.architectures.parts import decoder_spec

from torchtitan.models.common import CosSinRoPE
from torchtitan.models.qwen3.model import Qwen3Model
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec


class Qwen2StateDictAdapter(Qwen3StateDictAdapter):
    """Qwen3's names, with those of the three biases."""

    def __init__(self, model_config: Qwen3Model.Config, hf_assets_path: str | None):
        super().__init__(model_config, hf_assets_path)
        for x in "qkv":
            name = f"model.layers.{{}}.self_attn.{x}_proj.bias"
            self.from_hf_map[name] = f"layers.{{}}.attention.qkv_linear.w{x}.bias"


def qwen2_spec(config: dict[str, Any], seq_len: int) -> ModelSpec:
    """The ModelSpec of a Qwen2 or Qwen2.5 checkpoint, from its parsed config.json."""
    return decoder_spec(
        config,
        seq_len,
        CosSinRoPE.Config,
        theta=rope(config)["rope_theta"],
        qkv_bias=True,
        adapter=Qwen2StateDictAdapter,
    )
