"""Small checkpoints of every architecture, and the same tokens through transformers, TorchTitan and vLLM.

For the tests and for `benchmarks/parity.py`. Axes: B sequences, T tokens, V vocabulary.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.config import TrainingConfig
from tasks.policy.checkpoint import read_manifest, write_manifest
from tasks.rollout.engine import Completion, Engine
from tasks.training.losses import supervised_loss
from tasks.training.model import build_model
from tasks.training.packing import FlatSamples
from tasks.training.titan import attention_masks
from tasks.training.trainer import Trainer

PLAIN = {
    "vocab_size": 384,  # more than the 341 tokens of its tokenizer, as padded vocabularies have
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Heads of 16 and of 24 dimensions, which TorchTitan takes and vLLM on a CPU does not.
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
WIDE = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24}
DEEPER = {
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
# As Llama 3.2 scales its frequencies, but from 32 tokens on: a test's sequence has low, middle and high ones.
STRETCHED = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
TIED = {"tie_word_embeddings": True}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {"model_type": "qwen3"},
    "qwen3, grouped queries": {"model_type": "qwen3", **GROUPED},
    "qwen3, heads wider than the model": {"model_type": "qwen3", **WIDE},
    "qwen3, tied": {"model_type": "qwen3", **TIED},
    "qwen3, three layers, other base and epsilon": {"model_type": "qwen3", **DEEPER},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, grouped queries, tied": {"model_type": "qwen2", **GROUPED, **TIED},
    "qwen2, three layers, other base and epsilon": {"model_type": "qwen2", **DEEPER},
    "llama": {"model_type": "llama"},
    "llama, grouped queries, tied": {"model_type": "llama", **GROUPED, **TIED},
    "llama, heads wider than the model": {"model_type": "llama", **WIDE},
    "llama, three layers, other base and epsilon": {"model_type": "llama", **DEEPER},
    "llama, Llama 3's frequencies": {"model_type": "llama", **STRETCHED},
}

QWEN25_INSTRUCT = {  # config.json of Qwen/Qwen2.5-1.5B-Instruct
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 21,
}

# Those that vLLM can sample from: grouped queries and, except for Qwen2, heads wider than the model.
SERVED: dict[str, dict[str, Any]] = {
    f"{architecture}, {'tied' if tied else 'untied'}": {
        "model_type": architecture,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": tied,
        **({"hidden_size": 128} if architecture == "qwen2" else {}),
        **(STRETCHED if architecture == "llama" else {}),
    }
    for architecture in ("qwen3", "qwen2", "llama")
    for tied in (False, True)
}


def random_model(sizes: Mapping[str, Any], **options: Any) -> torch.nn.Module:
    """A model of transformers with these sizes, a config.json; the same random weights each time. `options` are those
    of from_config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    others = {name: value for name, value in sizes.items() if name != "model_type"}
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(sizes["model_type"], **others), **options)


def copy_tokenizer(template: Path, folder: Path) -> None:
    """Make `folder` with all of a policy but its weights."""
    shutil.copytree(template, folder, ignore=shutil.ignore_patterns("*.safetensors*", "policy.json"))


def make_checkpoint(template: Path, folder: Path, shape: dict[str, Any], **save_options: Any) -> Path:
    """A policy of that shape with the tokenizer of `template`, made by transformers; no two weights are equal."""
    copy_tokenizer(template, folder)
    model = random_model({**PLAIN, **shape, "initializer_range": 0.2}, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):  # they are zeros at first, and could be left out unnoticed
            torch.nn.init.normal_(weight, std=0.5)
        elif weight.ndim == 1:  # norms are ones at first, and could be confused unnoticed
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(folder, **save_options)
    write_manifest(folder, version=0, parent="")
    return folder


def in_bfloat16(source: Path, folder: Path, **save_options: Any) -> Path:
    """The same checkpoint, kept in bfloat16."""
    from transformers import AutoModelForCausalLM

    copy_tokenizer(source, folder)
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(folder, **save_options)
    write_manifest(folder, version=0, parent="")
    return folder


@torch.no_grad()
def by_transformers(folder: Path, token_ids_BT: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, V] of a checkpoint as transformers runs it, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(token_ids_BT).logits


@torch.no_grad()
def by_torchtitan(folder: Path, token_ids_BT: torch.Tensor) -> torch.Tensor:
    """The same by TorchTitan, as it is trained."""
    model, _, _ = build_model(folder, TrainingConfig(seq_len=64))
    positions_BT = torch.arange(token_ids_BT.shape[1]).expand_as(token_ids_BT)
    masks = attention_masks(torch.full_like(token_ids_BT, token_ids_BT.shape[1]))
    return model(token_ids_BT, positions=positions_BT, attention_masks=masks)


def by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """The weights of `base`, float32, with an adapter merged by PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()


TRAINING = TrainingConfig(seq_len=512, learning_rate=1e-2, warmup_iterations=0)
PROMPTS = [
    [1, *np.random.default_rng(length).integers(3, 300, length).tolist()]
    for length in (5, 17, 40, 200, 300)  # the last are longer than one block of the prefix cache
]


def sample(
    engine: Engine, prompts: Sequence[list[int]] = PROMPTS, *, temperature: float = 1.0, first_seed: int = 0
) -> list[Completion]:
    """At most eight tokens for each prompt, with a seed for each."""
    seeds = [first_seed + i for i in range(len(prompts))]
    return completions(engine, prompts, seeds, temperature=temperature, max_tokens=8, end_ids=[2])


def gap(trainer: Trainer, completions: Sequence[Completion]) -> float:
    """The largest difference between vLLM's log-probabilities of its tokens and the trainer's."""
    whole = [prompt + c.token_ids for prompt, c in zip(PROMPTS, completions, strict=True)]
    mask = [[False] * len(p) + [True] * len(c.token_ids) for p, c in zip(PROMPTS, completions, strict=True)]
    data = FlatSamples(np.cumsum([0, *map(len, whole)]), np.concatenate(whole), np.concatenate(mask))
    generators = np.concatenate([c.logprobs for c in completions])
    return float(np.abs(generators - trainer.score(data)[data.loss_mask_N]).max())


def trained(policy: Path, folder: Path, *, temperature: float = 1.0) -> tuple[Path, Trainer]:
    """The next version of `policy`, with quite different weights, and the trainer that holds it."""
    trainer = Trainer(policy, TRAINING, temperature=temperature, schedule_steps=5)
    tokens = np.random.default_rng(9).integers(3, 300, 60)
    for _ in range(5):
        trainer.step(FlatSamples(np.array([0, 60]), tokens, np.arange(60) > 0), [0], supervised_loss)
    folder.mkdir()
    trainer.export(policy, folder)
    write_manifest(folder, version=1, parent=read_manifest(policy).digest)
    return folder, trainer


def is_tied(folder: Path) -> bool:
    """Whether a checkpoint's output head is its embeddings."""
    return bool(json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False))


def completions(
    engine: Engine, prompts: Sequence[Sequence[int]], seeds: Sequence[int], **options: Any
) -> list[Completion]:
    """What the engine samples for all of them at once."""
    requests = [engine.add(prompt, seed=seed, **options) for prompt, seed in zip(prompts, seeds, strict=True)]
    found: dict[str, Completion] = {}
    while engine.busy:
        found.update(engine.step())
    return [found[request] for request in requests]
