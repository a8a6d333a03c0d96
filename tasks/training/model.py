"""The model of a policy directory: built, sharded, and its weights read from and written as Hugging Face checkpoints.

In the model the weights are always float32; a checkpoint has its own precision, and one file or several.
"""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tasks.config import LoraConfig, TrainingConfig
from tasks.policy.checkpoint import check_checkpoint, copy_all_but
from tasks.policy.contents import check_stored, weights_dtype
from tasks.settings import require
from tasks.training import titan  # first: it tells torchtitan the device
from tasks.training.architectures import SPECS
from tasks.training.lora import ADAPTER, init_adapters, is_factor, merged, with_adapters, write_adapter

from torchtitan.components.checkpoint import ModelWrapper
from torchtitan.config import CompileConfig
from torchtitan.config import TrainingConfig as TitanTrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

# What an export does not copy from its template: weights in any format, and what a stage wrote about them.
REPLACED = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "policy.json", "_*")


def build_model(
    folder: Path, training: TrainingConfig, *, seed: int = 0
) -> tuple[nn.Module, BaseStateDictAdapter, ParallelDims]:
    """The model of a policy directory, its adapter to and from Hugging Face names, and the mesh of ranks.

    With `training.dtype` bfloat16, FSDP casts the weights for each pass, on one rank too, and sums the gradients in
    float32. One rank in float32 is without FSDP, which would take a seventh of a small policy's time.

    With `training.lora` only the adapters are trained, which `seed` initialises. Raises ValueError when
    `training.seq_len` is more than the policy's max_position_embeddings.
    """
    config, seq_len = check_checkpoint(folder), training.seq_len
    positions = config["max_position_embeddings"]
    allowed = f"at most {positions}, the max_position_embeddings of the policy"
    require(seq_len <= positions, "training.seq_len", seq_len, allowed)
    spec = SPECS[config["model_type"]](config, seq_len)
    parallelism, parallel_dims = titan.parallelism(training), titan.join_process_group(training)
    shape = with_adapters(spec.model, training.lora) if training.lora.rank else spec.model
    shape.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    with torch.device("meta"):
        model = shape.build()
    model = spec.parallelize_fn(
        model,
        parallel_dims=parallel_dims,
        training=TitanTrainingConfig(seq_len=seq_len, mixed_precision_param=training.dtype),  # pyright: ignore[reportArgumentType]
        parallelism=parallelism,
        compile_config=CompileConfig(enable=False),
        ac_config=None,
        dump_folder="",
        skip_dp=dist.get_world_size() == 1 and training.dtype == "float32",
    )
    if titan.ON_CPU:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
    model.to_empty(device=titan.titan_utils.device_type)
    with torch.no_grad(), warnings.catch_warnings(action="ignore", category=UserWarning):
        model.init_weights(buffer_device=None)  # for the buffers; all weights are replaced below
    if training.lora.rank:
        init_adapters(model, seed)
    adapter = spec.state_dict_adapter(shape, None)  # type: ignore[misc]
    load_weights(model, adapter, folder)
    return model, adapter, parallel_dims


def full_tensor(values: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which the ranks hold parts; another tensor as it is."""
    return values.full_tensor() if isinstance(values, DTensor) else values


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
    max_shard_size: str = "5GB",
) -> None:
    """Write `model` into `folder` as a Hugging Face checkpoint like `template`, whose other files are copied.

    The weights have the precision of the template. LoRA adapters are merged into them, and also written separately. All
    ranks must call this, as it gathers the shards; rank 0 writes.
    """
    from huggingface_hub import save_torch_state_dict

    first, whole = dist.get_rank() == 0, ModelWrapper(model).state_dict()
    dtype = getattr(torch, weights_dtype(template, json.loads((template / "config.json").read_text())))
    factors = {name: full_tensor(weight).cpu() for name, weight in whole.items() if is_factor(name)}
    state = {}  # of rank 0: by TorchTitan's names, in main memory; a weight at a time is whole in float32
    for name, weight in whole.items():
        if not is_factor(name):
            gathered = full_tensor(weight)
            if first:
                state[name] = merged(name, gathered.cpu(), factors, lora).to(dtype)
    if not first:
        return
    if template != folder:
        copy_all_but(template, folder, drop=REPLACED)
    hf = adapter.to_hf(state)
    del state, gathered
    # Copies, because a gathered or split weight may be a view of a larger storage, which safetensors refuses.
    owned = {name: hf.pop(name).to(copy=True, memory_format=torch.contiguous_format) for name in list(hf)}
    save_torch_state_dict(owned, folder, max_shard_size=max_shard_size)
    if lora.rank:
        write_adapter(factors, adapter, lora, folder / ADAPTER)
