"""Llama 3 and SmolLM2: Qwen3's block without norms on q and k, and Llama 3's scaled rotary frequencies.

TorchTitan's own Llama rotates pairs of neighbouring dimensions, and permutes q and k when it reads and writes a
checkpoint. Here the two halves of a head are rotated, as in the checkpoint, so nothing is permuted and an export has
the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tasks.policy.architectures import LLAMA3_SCALING, rope
from tasks.training.architectures.parts import decoder_spec

from torchtitan.models.common import ComplexRoPE, CosSinRoPE
from torchtitan.protocols.model_spec import ModelSpec


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
    """The ModelSpec of a Llama checkpoint, from its parsed config.json."""
    settings = rope(config)
    scaling: dict[str, Any] = {}
    if settings["rope_type"] == "llama3":
        scaling = {"scaling": "llama", **{key: settings[key] for key in LLAMA3_SCALING}}
        scaling["scaling_factor"] = scaling.pop("factor")
    return decoder_spec(config, seq_len, LlamaRoPE.Config, theta=settings["rope_theta"], **scaling)
