"""Adapters beside frozen weights: what is trained, what is written, and a training that goes on from its state."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from checkpoints import SHAPES, by_peft, in_bfloat16, make_checkpoint
from conftest import TINY
from tasks.config import LoraConfig, TrainingConfig
from tasks.policy.checkpoint import import_checkpoint, read_manifest, write_manifest
from tasks.training.cold_start import make_tiny
from tasks.training.lora import ADAPTER, is_factor, merged
from tasks.training.losses import supervised_loss
from tasks.training.model import full_tensor
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer
from tasks.training.warm import open_scorer

LORA = LoraConfig(rank=4, alpha=16.0)
CONFIG = TrainingConfig(learning_rate=1e-2, warmup_iterations=0, seq_len=64, lora=LORA)
FULL = CONFIG.replace(lora=LoraConfig())
LAYERS = {
    "attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "feed_forward": {"gate_proj", "up_proj", "down_proj"},
}
LAYERS["all"] = LAYERS["attention"] | LAYERS["feed_forward"]


def open_trainer(policy: Path, config: TrainingConfig = CONFIG, seed: int = 0) -> Trainer:
    return Trainer(policy, config, temperature=1.0, schedule_steps=10, seed=seed)


def some_tokens() -> FlatSamples:
    return FlatSamples(np.array([0, 60]), np.random.default_rng(9).integers(3, 300, 60), np.arange(60) > 0)


def trained(policy: Path, folder: Path, config: TrainingConfig = CONFIG, steps: int = 3) -> tuple[Path, Trainer]:
    """The policy after some steps, and the trainer that holds it."""
    trainer = open_trainer(policy, config)
    for _ in range(steps):
        trainer.step(some_tokens(), [0], supervised_loss)
    folder.mkdir()
    trainer.export(policy, folder)
    return folder, trainer


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: full_tensor(weight).clone() for name, weight in of.model.state_dict().items()}


def gradients_that_the_optimizer_sees(of: Trainer) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}
    (optimizer,) = of.optimizers.optimizers

    def look(*_: object) -> None:
        named = of.model.named_parameters()
        seen.update({name: full_tensor(w.grad).clone() for name, w in named if w.grad is not None})

    optimizer.register_step_pre_hook(look)
    return seen


def adapter_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / ADAPTER / "adapter_model.safetensors")


def test_a_merge_by_hand() -> None:
    # alpha / rank = 6 / 2 = 3; B A = [[1, 0], [2, 1]] [[1, 2], [0, -1]] = [[1, 2], [2, 3]].
    weight = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    factors = {
        "x.lora_a.weight": torch.tensor([[1.0, 2.0], [0.0, -1.0]]),
        "x.lora_b.weight": torch.tensor([[1.0, 0.0], [2.0, 1.0]]),
    }
    lora = LoraConfig(rank=2, alpha=6.0)
    assert merged("x.weight", weight, factors, lora).tolist() == [[3.5, 6.0], [6.0, 10.0]]
    assert weight.tolist() == [[0.5, 0.0], [0.0, 1.0]]
    assert merged("y.weight", weight, factors, lora) is weight
    assert is_factor("x.lora_a.weight") and is_factor("x.lora_b.weight") and not is_factor("x.weight")


def test_adapters_start_as_nothing_and_are_the_seeds_own(newborn_policy: Path) -> None:
    torch.manual_seed(1)
    first = weights(open_trainer(newborn_policy, seed=7))
    torch.manual_seed(2)
    again, other = weights(open_trainer(newborn_policy, seed=7)), weights(open_trainer(newborn_policy, seed=8))
    assert all(torch.equal(again[name], first[name]) for name in first)
    downs = [name for name in first if name.endswith("lora_a.weight")]
    assert len(downs) == 7
    for name in downs:
        assert not torch.equal(other[name], first[name])
        bound = first[name].shape[1] ** -0.5
        assert 0.9 * bound < first[name].abs().max() <= bound
        assert not first[name.replace("lora_a", "lora_b")].any()
    assert len({float(first[name][0, 0]) for name in downs}) == 7
    one, plain = open_trainer(newborn_policy), open_trainer(newborn_policy, FULL)
    assert np.abs(one.score(some_tokens()) - plain.score(some_tokens())).max() <= 1e-5


@pytest.mark.parametrize("targets", LAYERS)
def test_only_adapters_are_trained(newborn_policy: Path, tmp_path: Path, targets: str) -> None:
    config = CONFIG.replace(lora=LORA.replace(targets=targets))
    folder, trainer = trained(newborn_policy, tmp_path / "next", config)
    names = set(LAYERS[targets])
    (optimizer,) = trainer.optimizers.optimizers
    held = {weight for group in optimizer.param_groups for weight in group["params"]}
    free = {weight for weight in trainer.model.parameters() if weight.requires_grad}
    assert held == free == set(optimizer.state) and len(free) == 2 * len(names)
    numbers = sum(weight.numel() for weight in free)
    moments = [m for of_one in optimizer.state.values() for m in of_one.values() if m.ndim]
    assert sum(m.numel() for m in moments) == 2 * numbers < sum(w.numel() for w in trainer.model.parameters()) / 2

    before, after = load_file(newborn_policy / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and changed == names
    assert {name.split(".")[-3] for name in adapter_of(folder)} == names
    assert set(json.loads((folder / ADAPTER / "adapter_config.json").read_text())["target_modules"]) == names


def test_frozen_weights_get_no_gradient_and_are_not_in_its_norm(newborn_policy: Path) -> None:
    trainer = open_trainer(newborn_policy, CONFIG.replace(max_norm=0.1))
    trainer.step(some_tokens(), [0], supervised_loss)  # from here on B is not zero, without which A has no gradient
    seen = gradients_that_the_optimizer_sees(trainer)
    assert trainer.step(some_tokens(), [0], supervised_loss)["grad_norm"] > 0.2
    assert len(seen) == 14 and all(".lora_" in name for name in seen)
    assert float(torch.cat([grad.flatten() for grad in seen.values()]).norm()) == pytest.approx(0.1, rel=1e-4)


def test_the_gradient_of_an_adapter_by_the_chain_rule(newborn_policy: Path, tmp_path: Path) -> None:
    # With D the gradient of the merged weight, by transformers: that of B is s D A^T, that of A is s B^T D.
    from transformers import AutoModelForCausalLM

    folder, trainer = trained(newborn_policy, tmp_path / "next", CONFIG.replace(max_norm=1e6))
    seen: dict[str, torch.Tensor] = {}
    (optimizer,) = trainer.optimizers.optimizers
    optimizer.register_step_pre_hook(
        lambda *_: seen.update(
            {n: full_tensor(w.grad).clone() for n, w in trainer.model.named_parameters() if ".lora_" in n}
        )
    )
    state = weights(trainer)
    trainer.step(some_tokens(), [0], supervised_loss)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.from_numpy(some_tokens().token_ids_N)[None]
    torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:]).backward()
    slopes = dict(model.named_parameters())
    for name in (name for name in seen if name.endswith("lora_a.weight")):
        base = name.removesuffix(".lora_a.weight")
        (theirs,) = trainer.adapter.to_hf({f"{base}.weight": state[f"{base}.weight"]})
        slope = slopes[theirs].grad
        a, b, s = state[name], state[f"{base}.lora_b.weight"], LORA.alpha / LORA.rank
        assert (seen[f"{base}.lora_b.weight"] - s * slope @ a.T).abs().max() <= 1e-4, name
        assert (seen[name] - s * b.T @ slope).abs().max() <= 1e-4, name
        assert seen[name].abs().max() > 1e-2


@pytest.mark.parametrize(
    "shape",
    ["qwen3, grouped queries", "qwen2, grouped queries, tied", "llama, heads wider than the model"],
)
def test_a_policy_is_its_base_with_the_adapter_merged_by_peft(tiny_policy: Path, tmp_path: Path, shape: str) -> None:
    base = make_checkpoint(tiny_policy, tmp_path / "base", SHAPES[shape])
    folder, trainer = trained(base, tmp_path / "next")
    scores, start = trainer.score(some_tokens()), open_trainer(base).score(some_tokens())
    assert np.abs(scores - start).max() > 1
    assert np.abs(open_trainer(folder, FULL).score(some_tokens()) - scores).max() <= 1e-4

    theirs, ours = by_peft(base, folder / ADAPTER), load_file(folder / "model.safetensors")
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-6, atol=1e-6, msg=name)
    assert set(theirs) - set(ours) <= {"lm_head.weight"}


def test_a_bfloat16_policy_is_merged_in_float32_and_rounded_once(newborn_policy: Path, tmp_path: Path) -> None:
    base = in_bfloat16(newborn_policy, tmp_path / "base")
    folder, _ = trained(base, tmp_path / "next")
    assert {weight.dtype for weight in adapter_of(folder).values()} == {torch.float32}
    theirs, ours = by_peft(base, folder / ADAPTER), load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in ours.values()} == {torch.bfloat16}
    for name, weight in ours.items():  # half of bfloat16's step is 2^-8 of a number at most
        torch.testing.assert_close(weight.float(), theirs[name], rtol=2**-8 + 1e-6, atol=1e-6, msg=name)


def test_a_merged_policy_is_a_base_like_any_other(newborn_policy: Path, tmp_path: Path) -> None:
    merged_policy, trainer = trained(newborn_policy, tmp_path / "merged")
    write_manifest(merged_policy, version=5, parent="")
    import_checkpoint(merged_policy, tmp_path / "policy")
    assert not (tmp_path / "policy" / ADAPTER).exists()
    again = open_trainer(tmp_path / "policy")
    assert np.abs(again.score(some_tokens()) - trainer.score(some_tokens())).max() <= 1e-4
    again.step(some_tokens(), [0], supervised_loss)
    target = tmp_path / "target"
    target.mkdir()
    again.export(tmp_path / "policy", target)
    theirs = by_peft(tmp_path / "policy", target / ADAPTER)
    for name, weight in load_file(target / "model.safetensors").items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-6, atol=1e-6, msg=name)


def test_a_policy_that_only_scores_has_no_adapters(newborn_policy: Path) -> None:
    scorer = open_scorer(newborn_policy, CONFIG, temperature=1.0)
    assert not any(".lora_" in name for name, _ in scorer.model.named_parameters())


def test_the_policy_tiny_is_the_same_with_lora(tmp_path: Path) -> None:
    short = TINY.replace(cold_start_demonstrations=64, cold_start_steps=3)
    for name, training in (("with", CONFIG.replace(seq_len=256)), ("without", FULL.replace(seq_len=256))):
        make_tiny(tmp_path / name, short, training, "blackjack", seed=0)
    assert read_manifest(tmp_path / "with").digest == read_manifest(tmp_path / "without").digest
