"""LoRA (arXiv:2106.09685): some linear layers have, beside the frozen weight W, a trained product B A of low rank.

    y = W x + alpha / rank · B A x      W [out, in], A [rank, in] random, B [out, rank] zeros at first

TorchTitan's converter adds the adapters to a model's config. Q, k and v are separate layers here, instead of
TorchTitan's fused one, so that each has its own adapter and PEFT can read them. The embeddings and the output head have
none.

A policy is exported merged, W + alpha / rank · B A, so that the generator and the scorer need no LoRA, with the
adapters beside it in PEFT's format. Training continues from the trainer's state, which has W, A and B separately; a
merged policy as W would count the adapters twice.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tasks.config import LoraConfig
from tasks.seeds import derived_seed
from tasks.training import titan  # noqa: F401, first: it tells torchtitan the device

from torchtitan.components.lora import LoRAConverter
from torchtitan.models.common import Linear
from torchtitan.models.common.attention import FusedQKVLinear, GQAttention, QKVLinear
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.model import BaseModel
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

ADAPTER = "adapter"  # the folder in a policy directory; a copy of a policy has no folders
A, B = ".lora_a.weight", ".lora_b.weight"
# The layers by TorchTitan's names, with the names that PEFT has for them.
ATTENTION = {"wq": ["q_proj"], "wkv": ["k_proj", "v_proj"], "wo": ["o_proj"]}
FEED_FORWARD = {"w1": ["gate_proj"], "w3": ["up_proj"], "w2": ["down_proj"]}
TARGETS = {"all": ATTENTION | FEED_FORWARD, "attention": ATTENTION, "feed_forward": FEED_FORWARD}


def with_adapters(model: BaseModel.Config, lora: LoraConfig) -> BaseModel.Config:
    """The config of the same model with adapters, and everything else frozen."""
    assert isinstance(model, Decoder.Config)
    for layer in model.layers:
        attention = layer.attention
        assert isinstance(attention, GQAttention.Config) and isinstance(attention.qkv_linear, FusedQKVLinear.Config)
        fused, parts = attention.qkv_linear, {}
        for name, heads in (("wq", fused.n_heads), ("wkv", fused.n_kv_heads)):
            parts[name] = Linear.Config(
                in_features=fused.wqkv.in_features,
                out_features=heads * fused.head_dim,
                bias=fused.wqkv.bias,
                param_init=attention.wo.param_init,  # every weight is replaced by the checkpoint's
            )
        attention.qkv_linear = QKVLinear.Config(head_dim=fused.head_dim, **parts)
    converter = LoRAConverter.Config(rank=lora.rank, alpha=lora.alpha, target_modules=list(TARGETS[lora.targets]))
    converted = converter.build().convert(model)
    assert isinstance(converted, BaseModel.Config)
    return converted


@torch.no_grad()
def init_adapters(model: nn.Module, seed: int) -> None:
    """A uniform within ±1 / sqrt(in), B zero: the model starts equal to its base.

    Each A depends only on the seed and its name, not on the ranks or the device.
    """
    for name, weight in model.named_parameters():
        if name.endswith(A):
            bound = 1 / math.sqrt(weight.shape[1])
            draw = torch.Generator().manual_seed(derived_seed("lora_a", seed, name))
            whole = torch.empty(weight.shape).uniform_(-bound, bound, generator=draw).to(weight.device)
            if isinstance(weight, DTensor):
                whole = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
            weight.copy_(whole)
        elif name.endswith(B):
            weight.zero_()


def is_factor(name: str) -> bool:
    """Whether TorchTitan's `name` is that of an A or a B."""
    return name.endswith((A, B))


def merged(name: str, weight: torch.Tensor, factors: Mapping[str, torch.Tensor], lora: LoraConfig) -> torch.Tensor:
    """A weight with its adapter added, W + alpha / rank · B A in float32; one without an adapter as it is."""
    base = name.removesuffix(".weight")
    if base + A not in factors:
        return weight
    change = factors[base + B].float() @ factors[base + A].float()
    return weight.float() + lora.alpha / lora.rank * change


def write_adapter(
    state: dict[str, torch.Tensor], adapter: BaseStateDictAdapter, lora: LoraConfig, folder: Path
) -> None:
    """Write the adapters in PEFT's format, in float32."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for suffix, theirs in ((A, "lora_A"), (B, "lora_B")):
        ours = {name.removesuffix(suffix) + ".weight": t for name, t in state.items() if name.endswith(suffix)}
        for name, tensor in adapter.to_hf(ours).items():
            key = f"base_model.model.{name.removesuffix('.weight')}.{theirs}.weight"
            tensors[key] = tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",  # policy 0 of the run; adapters do not know its path
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name for names in TARGETS[lora.targets].values() for name in names],
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
