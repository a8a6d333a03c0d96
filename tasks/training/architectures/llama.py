"""Llama 3 and SmolLM2: Qwen3's block without norms on q and k, and frequencies that Llama 3 stretches.

TorchTitan's own Llama turns neighbouring dimensions, and permutes q and k for it on the way in and out of a checkpoint.
Here the halves of a head are turned, as in the checkpoint: nothing is permuted, and an export is the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tasks.policy.architectures import LLAMA3_SCALING, rope
from tasks.training.architectures.parts import decoder_spec

from torchtitan.models.common import ComplexRoPE, CosSinRoPE
from torchtitan.protocols.model_spec import ModelSpec


class LlamaRoPE(CosSinRoPE):
    """CosSinRoPE with Llama 3's scaling, whose angles are those of TorchTitan's ComplexRoPE."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):
        pass

    def _precompute_cache(self) -> torch.Tensor:
        """Cosines, then sines, each for both halves of a head: [positions, 2 x head size]."""
        turns = ComplexRoPE(self.config).cache  # [positions, head size / 2], complex
        return torch.cat([turns.real, turns.real, turns.imag, turns.imag], dim=-1)


def llama_spec(config: dict[str, Any], seq_len: int) -> ModelSpec:
    """The ModelSpec of a Llama checkpoint, from its parsed config.json."""
    turns = rope(config)
    scaling: dict[str, Any] = {}
    if turns["rope_type"] == "llama3":
        scaling = {"scaling": "llama", **{key: turns[key] for key in LLAMA3_SCALING}}
        scaling["scaling_factor"] = scaling.pop("factor")
    return decoder_spec(config, seq_len, LlamaRoPE.Config, theta=turns["rope_theta"], **scaling)
