"""Qwen3, dense: query and key of each head are normalised before the rotary embedding."""

from typing import Any

from tasks.policy.architectures import rope
from tasks.training.architectures.parts import decoder_spec

from torchtitan.models.common import CosSinRoPE
from torchtitan.protocols.model_spec import ModelSpec


def qwen3_spec(config: dict[str, Any], seq_len: int) -> ModelSpec:
    """The ModelSpec of a dense Qwen3 checkpoint, from its parsed config.json."""
    return decoder_spec(config, seq_len, CosSinRoPE.Config, theta=rope(config)["rope_theta"], qk_norm=True)
