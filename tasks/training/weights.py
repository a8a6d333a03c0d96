"""Reads and writes a model's weights as Hugging Face checkpoints.

In the model they are always float32; a checkpoint has its own precision, and one file or several.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from tasks.config import LoraConfig
from tasks.policy.checkpoint import copy_all_but
from tasks.policy.contents import check_stored, weights_dtype
from tasks.training import titan  # noqa: F401, first: it tells torchtitan the device
from tasks.training.lora import ADAPTER, merged, write_adapter

from torchtitan.components.checkpoint import ModelWrapper
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

MAX_SHARD_SIZE = "5GB"  # of a weight file; huggingface_hub's default
# What an export does not copy from its template: weights in any format, and what a stage wrote about them.
REPLACED = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "policy.json", "_*")


@torch.no_grad()
def load_weights(model: nn.Module, adapter: BaseStateDictAdapter, folder: Path) -> None:
    """Read the safetensors of `folder` into `model`, on each rank its own shard. LoRA adapters are not changed.

    Raises ValueError, before any tensor is read, for one that is missing or has another shape.
    """
    state = dict(ModelWrapper(model).state_dict())
    hf = adapter.to_hf(state)
    check_stored(folder, {name: tuple(weight.shape) for name, weight in hf.items()})
    dcp.load(hf, storage_reader=adapter.get_hf_storage_reader(str(folder)))  # pyright: ignore[reportPrivateImportUsage]
    model.load_state_dict(state | adapter.from_hf(hf))


@torch.no_grad()
def export_weights(
    model: nn.Module,
    adapter: BaseStateDictAdapter,
    template: Path,
    folder: Path,
    *,
    lora: LoraConfig,
    max_shard_size: str = MAX_SHARD_SIZE,
) -> None:
    """Write `model` into `folder` as a Hugging Face checkpoint like `template`, whose other files are copied.

    The weights have the precision of the template. LoRA adapters are merged into them, and also written separately. All
    ranks must call this, as it gathers the shards; rank 0 writes.
    """
    from huggingface_hub import save_torch_state_dict

    state = gathered(model)
    if dist.get_rank() != 0:
        return
    dtype = getattr(torch, weights_dtype(template, json.loads((template / "config.json").read_text())))
    if template != folder:
        copy_all_but(template, folder, drop=REPLACED)
    hf = adapter.to_hf(merged(state, lora) if lora.rank else state)
    # Copies, because a gathered or split weight may be a view of a larger storage, which safetensors refuses.
    owned = {name: weight.to(dtype, copy=True, memory_format=torch.contiguous_format) for name, weight in hf.items()}
    save_torch_state_dict(owned, folder, max_shard_size=max_shard_size)
    if lora.rank:
        write_adapter(state, adapter, lora, folder / ADAPTER)


def gathered(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights on rank 0, float32 and in main memory, by TorchTitan's names; an empty dict on other ranks."""
    weights: dict[str, torch.Tensor] = {}
    for name, weight in ModelWrapper(model).state_dict().items():
        full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        if dist.get_rank() == 0:
            weights[name] = full.cpu()
    return weights
