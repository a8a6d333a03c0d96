"""The model that a policy directory describes: built, sharded, and its weights in and out."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tasks.policy.checkpoint import check_checkpoint, copy_all_but
from tasks.training import titan  # first: it tells torchtitan the device
from tasks.training.architectures import SPECS

from torchtitan.components.checkpoint import ModelWrapper
from torchtitan.config import CompileConfig
from torchtitan.config import TrainingConfig as TitanTrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter


def build_model(folder: Path, seq_len: int) -> tuple[nn.Module, BaseStateDictAdapter, ParallelDims]:
    """The model of a policy directory as TorchTitan builds, shards and trains it, weights loaded, float32.

    Returns the model, its adapter to and from Hugging Face names, and the mesh of ranks.
    """
    config = check_checkpoint(folder)
    if seq_len > config["max_position_embeddings"]:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at most {config['max_position_embeddings']}, "
            f"the max_position_embeddings of the policy."
        )
    spec = SPECS[config["model_type"]](config, seq_len)
    parallel_dims = titan.join_process_group()
    spec.model.update_from_config(config=SimpleNamespace(parallelism=titan.PARALLELISM))  # type: ignore[attr-defined]
    with torch.device("meta"):
        model = spec.model.build()
    model = spec.parallelize_fn(
        model,
        parallel_dims=parallel_dims,
        training=TitanTrainingConfig(seq_len=seq_len, mixed_precision_param="float32"),
        parallelism=titan.PARALLELISM,
        compile_config=CompileConfig(enable=False),
        ac_config=None,
        dump_folder="",
    )
    if titan.ON_CPU:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
    model.to_empty(device=titan.titan_utils.device_type)
    with torch.no_grad(), warnings.catch_warnings(action="ignore", category=UserWarning):
        model.init_weights(buffer_device=None)  # for the buffers; every weight is replaced below
    adapter = spec.state_dict_adapter(spec.model, None)  # type: ignore[misc]
    load_weights(model, adapter, folder)
    return model, adapter, parallel_dims


@torch.no_grad()
def load_weights(model: nn.Module, adapter: BaseStateDictAdapter, folder: Path) -> None:
    """Read the safetensors of `folder` into `model`, each rank its own shard."""
    hf = adapter.to_hf(dict(ModelWrapper(model).state_dict()))
    dcp.load(hf, storage_reader=adapter.get_hf_storage_reader(str(folder)))  # pyright: ignore[reportPrivateImportUsage]
    model.load_state_dict(adapter.from_hf(hf))


@torch.no_grad()
def export_weights(model: nn.Module, adapter: BaseStateDictAdapter, template: Path, folder: Path) -> None:
    """Write `model` into `folder` as the Hugging Face checkpoint that `template` is, its other files unchanged.

    All ranks call it, for the shards are gathered; rank 0 writes.
    """
    from huggingface_hub import save_torch_state_dict

    hf = adapter.to_hf(dict(ModelWrapper(model).state_dict()))
    whole = {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in hf.items()}
    if dist.get_rank() == 0:
        if template != folder:
            copy_all_but(template, folder, drop=("*.safetensors", "*.safetensors.index.json", "policy.json", "_*"))
        # Copies: a gathered or split weight may be a view of a larger storage, which safetensors would not write.
        owned = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in whole.items()}
        save_torch_state_dict(owned, folder)
