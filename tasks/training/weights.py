"""The weights of a model in and out of Hugging Face checkpoints.

In the model they are float32 always; a checkpoint keeps them in its own precision, in one file or several.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from tasks.config import LoraConfig
from tasks.policy.checkpoint import copy_all_but
from tasks.policy.weights import check_stored, weights_dtype
from tasks.training import titan  # noqa: F401, first: it tells torchtitan the device
from tasks.training.lora import ADAPTER, merged, write_adapter

from torchtitan.components.checkpoint import ModelWrapper
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

MAX_SHARD_SIZE = "5GB"  # of a weight file, huggingface_hub's own limit
# What an export does not take over from its template: weights, in whichever format, and what a stage wrote about them.
REPLACED = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "policy.json", "_*")


@torch.no_grad()
def load_weights(model: nn.Module, adapter: BaseStateDictAdapter, folder: Path) -> None:
    """Read the safetensors of `folder` into `model`, each rank its own shard. Adapters of LoRA stay as they are.

    Raises ValueError, before any is read, for a tensor that is missing or of another shape.
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
    """Write `model` into `folder` as the Hugging Face checkpoint that `template` is, its other files unchanged.

    The weights have the precision of the template, adapters are merged into them, and lie beside them as well. All
    ranks call it, for the shards are gathered; rank 0 writes.
    """
    from huggingface_hub import save_torch_state_dict

    state = gathered(model)
    if dist.get_rank() != 0:
        return
    dtype = getattr(torch, weights_dtype(template, json.loads((template / "config.json").read_text())))
    if template != folder:
        copy_all_but(template, folder, drop=REPLACED)
    hf = adapter.to_hf(merged(state, lora) if lora.rank else state)
    # Copies: a gathered or split weight may be a view of a larger storage, which safetensors would not write.
    owned = {name: weight.to(dtype, copy=True, memory_format=torch.contiguous_format) for name, weight in hf.items()}
    save_torch_state_dict(owned, folder, max_shard_size=max_shard_size)
    if lora.rank:
        write_adapter(state, adapter, lora, folder / ADAPTER)


def gathered(model: nn.Module) -> dict[str, torch.Tensor]:
    """All weights whole on rank 0, float32 and in its main memory, by TorchTitan's names; nothing on other ranks."""
    whole: dict[str, torch.Tensor] = {}
    for name, weight in ModelWrapper(model).state_dict().items():
        full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        if dist.get_rank() == 0:
            whole[name] = full.cpu()
    return whole
