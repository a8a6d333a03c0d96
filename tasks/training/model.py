"""A Hugging Face config.json as a TorchTitan ModelSpec, and the model it describes with its weights in and out.

All sizes come from config.json, none from TorchTitan's list of flavours.
"""

import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tasks.policy.checkpoint import check_checkpoint, copy_all_but
from tasks.training import titan  # first: it tells torchtitan the device

from torchtitan.components.checkpoint import ModelWrapper
from torchtitan.config import CompileConfig
from torchtitan.config import TrainingConfig as TitanTrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.qwen3 import parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

_NORMAL: dict[str, Any] = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
_ONES: dict[str, Any] = {"weight": nn.init.ones_}


def refuse(config: dict[str, Any], key: str, allowed: tuple[object, ...]) -> None:
    """Raise ValueError when config.json asks for something that this ModelSpec would silently leave out."""
    if key in config and config[key] not in allowed:
        raise ValueError(f"policy has {key} {config[key]} in its config.json; allowed: {', '.join(map(str, allowed))}.")


def qwen3_spec(config: dict[str, Any], seq_len: int) -> ModelSpec:
    """The ModelSpec of a dense Qwen3 checkpoint, from its parsed config.json."""
    refuse(config, "use_sliding_window", (False, None))
    refuse(config, "attention_bias", (False, None))
    refuse(config, "hidden_act", ("silu",))
    refuse(config, "quantization_config", (None,))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    refuse({"rope_type": rope.get("rope_type", rope.get("type", "default"))}, "rope_type", ("default",))
    dim, n_heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or dim // n_heads
    eps = config["rms_norm_eps"]

    def norm(size: int) -> RMSNorm.Config:
        return RMSNorm.Config(normalized_shape=size, eps=eps, param_init=_ONES)

    def block() -> Qwen3TransformerBlock.Config:
        return Qwen3TransformerBlock.Config(
            attention_norm=norm(dim),
            ffn_norm=norm(dim),
            attention=make_gqa_config(
                dim=dim,
                n_heads=n_heads,
                n_kv_heads=config.get("num_key_value_heads", n_heads),
                head_dim=head_dim,
                wqkv_param_init=_NORMAL,
                wo_param_init=_NORMAL,
                inner_attention=titan.inner_attention(),
                rope=CosSinRoPE.Config(
                    dim=head_dim,
                    max_seq_len=seq_len,
                    theta=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
                ),
                fuse_qkv=True,
                qk_norm=norm(head_dim),
            ),
            feed_forward=make_ffn_config(
                dim=dim, hidden_dim=config["intermediate_size"], w1_param_init=_NORMAL, w2w3_param_init=_NORMAL
            ),
        )

    model = Qwen3Model.Config(
        dim=dim,
        vocab_size=config["vocab_size"],
        tok_embeddings=Embedding.Config(
            num_embeddings=config["vocab_size"], embedding_dim=dim, param_init={"weight": _NORMAL["weight"]}
        ),
        layers=[block() for _ in range(config["num_hidden_layers"])],
        norm=norm(dim),
        lm_head=Linear.Config(in_features=dim, out_features=config["vocab_size"], param_init=_NORMAL),
        enable_weight_tying=bool(config.get("tie_word_embeddings", False)),
    )
    return ModelSpec(
        name="qwen3",
        flavor="",
        model=model,
        parallelize_fn=parallelize_qwen3,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=Qwen3StateDictAdapter,
    )


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
    spec = qwen3_spec(config, seq_len)
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
