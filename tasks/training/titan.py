"""TorchTitan on this machine, with an accelerator or without: device, attention, process group.

Import this module before any other of torchtitan's. Without an accelerator `torchtitan.tools.utils` sets the device
type to "cuda"; it must be changed to the CPU before other modules read it. Only `tasks/training/` imports torchtitan.
"""

import importlib
import importlib.util
import logging
import os
import sys
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE

from tasks.config import TrainingConfig
from tasks.launcher import started_as_rank

import torchtitan.tools.utils as titan_utils

if not torch.accelerator.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu


if importlib.util.find_spec("triton") is None:
    # Only a GPU build of torch brings Triton, with which torchtitan defines kernels for experts that are never called
    # here. The placeholder is removed again, so that no other package takes it for Triton.
    placeholder = MagicMock()
    sys.modules.update({"triton": placeholder, "triton.language": placeholder.language})
    importlib.import_module("torchtitan.distributed.minimal_async_ep")
    del sys.modules["triton"], sys.modules["triton.language"]

from torchtitan.config import CommConfig, ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.context_parallel import cp_shard
from torchtitan.models.common.attention import FlexAttention, create_attention_mask

logging.getLogger("torchtitan").setLevel(logging.WARNING)
logging.getLogger().setLevel(logging.WARNING)

ON_CPU = titan_utils.device_type == "cpu"


class DenseMaskAttention(FlexAttention):
    """Scaled-dot-product attention with a dense mask instead of FlexAttention, which has no backward on the CPU.

    `attention_masks` is a bool tensor [B, 1, T, T], true where a query (third axis) attends to a key (fourth axis). The
    parameters must have TorchTitan's names, by which it looks up their sharding.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks, scale=None, enable_gqa=False, **kwargs):  # type: ignore[override]
        out_BNLH = torch.nn.functional.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=attention_masks,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out_BNLH.transpose(1, 2)


def attention_rule(subtree_end_BT: torch.Tensor):
    """FlexAttention's function of row, head, and the columns of query and key: whether the query attends to the key,
    to itself and earlier tokens whose subtree contains it (see `packing.py`)."""

    def attends(b, _head, q, k):
        return (q >= k) & (q < subtree_end_BT[b, k])

    return attends


def attention_masks(subtree_end_BT: torch.Tensor, cp_mesh: DeviceMesh | None = None):
    """`attention_rule` for all pairs of columns: a dense bool [B, 1, T, T] on the CPU, a BlockMask elsewhere.

    With `cp_mesh`, the ranks that share each row, only for the queries of this rank.
    """
    (B, T), attends = subtree_end_BT.shape, attention_rule(subtree_end_BT)
    if not ON_CPU:
        mask = create_attention_mask(attends, B, None, T, T)
        return mask if cp_mesh is None else cp_shard(cp_mesh, (subtree_end_BT,), mask, load_balancer_type=None)[1]
    b, q, k = torch.arange(B)[:, None, None], torch.arange(T)[None, :, None], torch.arange(T)[None, None, :]
    mask = attends(b, None, q, k)[:, None]
    return mask if cp_mesh is None else mask.chunk(cp_mesh.size(), dim=2)[cp_mesh.get_local_rank()]


def row_multiple(training: TrainingConfig) -> int:
    """What a row's length is a multiple of: its ranks have equal parts, on a GPU in whole blocks of FlexAttention."""
    ranks = training.context_parallel
    return ranks if ON_CPU or ranks == 1 else ranks * _DEFAULT_SPARSE_BLOCK_SIZE


def parallelism(training: TrainingConfig) -> ParallelismConfig:
    """FSDP over all ranks, tensor and context parallel degrees.

    Gloo reduces FSDP's gradients only without the SPMD types. Without sequence parallelism a row may have any length.
    """
    return ParallelismConfig(
        spmd_backend="partial_dtensor",
        data_parallel_shard_degree=-1,
        tensor_parallel_degree=training.tensor_parallel,
        context_parallel_degree=training.context_parallel,
        enable_sequence_parallel=False,
    )


def join_process_group(training: TrainingConfig) -> ParallelDims:
    """Join the ranks that torchrun (or Flyte's Elastic) started, or form a group of one, unless an in-process vLLM
    engine has formed it before; returns TorchTitan's mesh."""
    if not dist.is_initialized():
        if started_as_rank():
            if not ON_CPU:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # each rank has its own
            os.environ.pop("TORCH_NCCL_ASYNC_ERROR_HANDLING", None)  # the launcher's; TorchTitan warns and sets its own
            dist_utils.init_distributed(CommConfig(trace_buf_size=0))
        else:  # no launcher: a group of one needs neither a port nor environment variables
            backend = "gloo" if ON_CPU else "nccl"
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
    torch.autograd.set_multithreading_enabled(False)  # as TorchTitan's init_distributed does
    shape = parallelism(training)
    dist_utils.set_spmd_backend(shape.spmd_backend)
    return ParallelDims.from_config(shape, dist.get_world_size())
