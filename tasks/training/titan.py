"""TorchTitan on whatever this machine has: one place for what it assumes of its surroundings.

Import this module before any other of torchtitan's. Without an accelerator `torchtitan.tools.utils` takes the device
type for "cuda"; setting it to the CPU there, first, is enough. Only `tasks/training/` imports torchtitan.
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.flex_attention import _DEFAULT_SPARSE_BLOCK_SIZE

from tasks.config import TrainingConfig

import torchtitan.tools.utils as titan_utils

if not torch.accelerator.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu


@contextlib.contextmanager
def _triton_or_placeholder() -> Iterator[None]:
    """Let torchtitan define its expert-parallel GPU kernels where Triton, which only a GPU build of torch brings, is
    absent. They are never called there; the placeholder is gone afterwards, lest others take it for Triton."""
    if importlib.util.find_spec("triton") is not None:
        yield
        return

    def anything(name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function=None, **_options: function or (lambda decorated: decorated)

    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    vars(triton).update(__getattr__=anything, language=language)
    vars(language).update(__getattr__=anything)
    sys.modules.update({"triton": triton, "triton.language": language})
    yield
    del sys.modules["triton"], sys.modules["triton.language"]


with _triton_or_placeholder():
    importlib.import_module("torchtitan.distributed.minimal_async_ep")
from torchtitan.config import CommConfig, ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.context_parallel import cp_shard
from torchtitan.models.common.attention import FlexAttention, create_attention_mask

logging.getLogger("torchtitan").setLevel(logging.WARNING)
logging.getLogger().setLevel(logging.WARNING)

ON_CPU = titan_utils.device_type == "cpu"


class DenseMaskAttention(FlexAttention):
    """FlexAttention's place taken by scaled-dot-product attention with a dense mask, for the CPU.

    FlexAttention has no backward there. `attention_masks` is a bool tensor [B, 1, T, T], true where a query (third
    axis) may look at a key (fourth axis). The parameters keep TorchTitan's names: sharding is looked up by name.
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


def inner_attention() -> FlexAttention.Config:
    """The attention kernel for this machine."""
    return DenseMaskAttention.Config() if ON_CPU else FlexAttention.Config()


def attention_rule(ends_BT: torch.Tensor):
    """Which token sees which: those before it whose end is behind it (see `rows.py`).

    A function of a row, a head, and the places of two tokens, as FlexAttention takes it.
    """

    def sees(b, _head, q, k):
        return (q >= k) & (q < ends_BT[b, k])

    return sees


def attention_masks(ends_BT: torch.Tensor, cp_mesh: DeviceMesh | None = None):
    """`attention_rule` for all places: evaluated densely on the CPU, bool [B, 1, T, T], as a BlockMask elsewhere.

    With `cp_mesh`, of the ranks that share each row, only for the queries of this one.
    """
    (B, T), sees = ends_BT.shape, attention_rule(ends_BT)
    if not ON_CPU:
        mask = create_attention_mask(sees, B, None, T, T)
        return mask if cp_mesh is None else cp_shard(cp_mesh, (ends_BT,), mask, load_balancer_type=None)[1]
    b, q, k = torch.arange(B)[:, None, None], torch.arange(T)[None, :, None], torch.arange(T)[None, None, :]
    mask = sees(b, None, q, k)[:, None]
    return mask if cp_mesh is None else mask.chunk(cp_mesh.size(), dim=2)[cp_mesh.get_local_rank()]


def row_multiple(training: TrainingConfig) -> int:
    """What the length of a row is a multiple of, so that the ranks that share it have as many tokens each; of which
    FlexAttention wants whole blocks."""
    ranks = training.context_parallel
    return ranks if ON_CPU or ranks == 1 else ranks * _DEFAULT_SPARSE_BLOCK_SIZE


def parallelism(training: TrainingConfig) -> ParallelismConfig:
    """How the ranks share the work, as TorchTitan is told: FSDP over all of them, tensor and context parallel degrees.

    Gloo reduces FSDP's gradients only without the SPMD types. Activations between the layers are whole on each rank of
    a tensor group, for without sequence parallelism a row may have any length.
    """
    return ParallelismConfig(
        spmd_backend="partial_dtensor",
        data_parallel_shard_degree=-1,
        tensor_parallel_degree=training.tensor_parallel,
        context_parallel_degree=training.context_parallel,
        enable_sequence_parallel=False,
    )


def join_process_group(training: TrainingConfig) -> ParallelDims:
    """Join the ranks that torchrun (or Flyte's Elastic) started, or be the only one; returns TorchTitan's mesh.

    An in-process vLLM engine may have made the group before: both use the default group of one.
    """
    if not dist.is_initialized():
        if "WORLD_SIZE" in os.environ:
            if not ON_CPU:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # each its own
            os.environ.pop(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", None
            )  # the launcher's; TorchTitan has its own, and says so
            dist_utils.init_distributed(CommConfig(trace_buf_size=0))
        else:  # no launcher: a group of one needs neither a port nor environment variables
            backend = "gloo" if ON_CPU else "nccl"
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
    torch.autograd.set_multithreading_enabled(False)  # as TorchTitan's init_distributed does
    shape = parallelism(training)
    dist_utils.set_spmd_backend(shape.spmd_backend)
    return ParallelDims.from_config(shape, dist.get_world_size())
