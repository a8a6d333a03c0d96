"""Forward and backward in bfloat16, and how far generator and trainer then differ."""

from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import PROMPTS, SERVED, in_bfloat16, make_checkpoint, sample
from tasks.config import LoraConfig, RolloutConfig, TrainingConfig
from tasks.policy.checkpoint import write_manifest
from tasks.rollout.engine import open_engine
from tasks.training.losses import supervised_loss
from tasks.training.model import export_weights, full_tensor
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

CONFIG = TrainingConfig(seq_len=64, learning_rate=1e-4, warmup_iterations=0, max_norm=1e6, dtype="bfloat16")


def open_trainer(policy: Path, **changes: object) -> Trainer:
    return Trainer(policy, CONFIG.replace(**changes), temperature=1.0, schedule_steps=2)


def some_tokens() -> FlatSamples:
    return FlatSamples(np.array([0, 60]), np.random.default_rng(9).integers(3, 300, 60), np.arange(60) > 0)


def gradients_of_a_step(trainer: Trainer) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """What the optimizer sees, by name, and what the step measured."""
    seen: dict[str, torch.Tensor] = {}
    (optimizer,) = trainer.optimizers.optimizers
    optimizer.register_step_pre_hook(
        lambda *_: seen.update({n: full_tensor(w.grad).clone() for n, w in trainer.model.named_parameters()})
    )
    return seen, trainer.step(some_tokens(), [0], supervised_loss)


def test_layers_compute_in_bfloat16_and_everything_kept_is_float32(newborn_policy: Path) -> None:
    trainer, computed = open_trainer(newborn_policy), {}
    for name, module in trainer.model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.RMSNorm):
            module.register_forward_hook(
                lambda module, inputs, output, name=name: computed.update(
                    {name: (inputs[0].dtype, module.weight.dtype, output.dtype)}
                )
            )
    gradients, _ = gradients_of_a_step(trainer)
    assert "lm_head" in computed and "norm" in computed and len(computed) == 11
    assert {dtype for dtypes in computed.values() for dtype in dtypes} == {torch.bfloat16}
    (optimizer,) = trainer.optimizers.optimizers
    moments = [moment for of_one in optimizer.state.values() for moment in of_one.values()]
    for kept in (trainer.model.state_dict().values(), gradients.values(), moments):
        assert {tensor.dtype for tensor in kept} == {torch.float32}
    assert trainer.score(some_tokens()).dtype == np.float32


def test_a_step_is_near_that_of_float32(newborn_policy: Path) -> None:
    coarse, fine = open_trainer(newborn_policy), open_trainer(newborn_policy, dtype="float32")
    before = {name: full_tensor(weight).clone() for name, weight in coarse.model.state_dict().items()}
    (rough, found), (exact, expected) = gradients_of_a_step(coarse), gradients_of_a_step(fine)
    assert found["loss"] != expected["loss"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)
    for name, slope in exact.items():
        cosine = torch.nn.functional.cosine_similarity(rough[name].flatten(), slope.flatten(), dim=0)
        assert cosine > 0.995, name
    # Adam's first step is the learning rate in each weight: less than bfloat16 tells apart, of norms that are near 1.
    moved = full_tensor(coarse.model.state_dict()["norm.weight"]) - before["norm.weight"]
    assert moved.abs().numpy() == pytest.approx(1e-4, rel=1e-2)


def test_the_same_steps_in_bfloat16_give_the_same_bits(newborn_policy: Path) -> None:
    for lora in (LoraConfig(), LoraConfig(rank=4)):
        first, second = (open_trainer(newborn_policy, lora=lora) for _ in range(2))
        for one in (first, second):
            one.step(some_tokens(), [0], supervised_loss)
            one.step(some_tokens(), [0], supervised_loss)
        assert np.array_equal(first.score(some_tokens()), second.score(some_tokens()))


# Mean |trainer - generator| in nats a token that is tolerated. Random weights of this size, whose logits have a
# standard deviation of several nats, differed by 0.02 to 0.06 wherever bfloat16 was used.
LIMITS = {
    ("float32", "float32"): 1e-4,
    ("float32", "bfloat16"): 0.1,
    ("bfloat16", "float32"): 0.1,
    ("bfloat16", "bfloat16"): 0.1,
}


def test_generator_and_trainer_in_all_precisions(newborn_policy: Path, tmp_path: Path) -> None:
    # On a checkpoint in several files that an export wrote, tied, in bfloat16: vLLM reads them all.
    source = make_checkpoint(newborn_policy, tmp_path / "source", SERVED["qwen2, tied"])
    kept, policy = in_bfloat16(source, tmp_path / "kept"), tmp_path / "policy"
    policy.mkdir()
    trainers = {
        dtype: Trainer(kept, TrainingConfig(seq_len=512, dtype=dtype), temperature=1.0, schedule_steps=1)
        for dtype in ("float32", "bfloat16")
    }
    exact = trainers["float32"]
    export_weights(exact.model, exact.adapter, kept, policy, lora=LoraConfig(), max_shard_size="60KB")
    write_manifest(policy, version=0, parent="")
    assert len(list(policy.glob("*.safetensors"))) > 3

    prompts, found = PROMPTS * 4, {}
    for rollout in ("float32", "bfloat16"):
        completions = sample(open_engine(policy, RolloutConfig(dtype=rollout)), prompts)
        whole = [prompt + c.token_ids for prompt, c in zip(prompts, completions, strict=True)]
        mask = np.concatenate(
            [[False] * len(p) + [True] * len(c.token_ids) for p, c in zip(prompts, completions, strict=True)]
        )
        data = FlatSamples(np.cumsum([0, *map(len, whole)]), np.concatenate(whole), mask)
        generators = np.concatenate([c.logprobs for c in completions])
        for training, trainer in trainers.items():
            found[rollout, training] = float(np.abs(trainer.score(data)[mask] - generators).mean())
    assert all(found[combination] <= limit for combination, limit in LIMITS.items()), found
    assert min(mean for combination, mean in found.items() if "bfloat16" in combination) > 1e-3, found
