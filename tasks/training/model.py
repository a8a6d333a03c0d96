"""The model of a policy directory: built, sharded, its weights loaded."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tasks.config import TrainingConfig
from tasks.policy.checkpoint import check_checkpoint
from tasks.training import titan  # first: it tells torchtitan the device
from tasks.training.architectures import SPECS
from tasks.training.lora import init_adapters, with_adapters
from tasks.training.weights import load_weights

from torchtitan.config import CompileConfig
from torchtitan.config import TrainingConfig as TitanTrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter


def build_model(
    folder: Path, training: TrainingConfig, *, seed: int = 0
) -> tuple[nn.Module, BaseStateDictAdapter, ParallelDims]:
    """The model of a policy directory, built and sharded by TorchTitan, with its weights in float32.

    With `training.dtype` bfloat16, FSDP, which is active on one rank too, casts the weights for each forward and
    backward pass and sums the gradients in float32. With `training.lora` only the adapters are trained, which `seed`
    initialises.

    Returns the model, its adapter to and from Hugging Face names, and the mesh of ranks. Raises ValueError when
    `training.seq_len` is more than the policy's max_position_embeddings.
    """
    config, seq_len = check_checkpoint(folder), training.seq_len
    if seq_len > config["max_position_embeddings"]:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at most {config['max_position_embeddings']}, "
            f"the max_position_embeddings of the policy."
        )
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
