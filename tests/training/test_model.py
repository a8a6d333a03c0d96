"""TorchTitan's forward and files against transformers, on the same checkpoints."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.config import TrainingConfig
from tasks.policy.checkpoint import read_info, seal
from tasks.training.cold_start import imitation
from tasks.training.model import build_model, load_weights, qwen3_spec
from tasks.training.packing import Ragged
from tasks.training.titan import attention_masks
from tasks.training.trainer import Trainer

SHAPES: dict[str, dict[str, Any]] = {
    "as the tiny policy": {},
    "grouped queries": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "heads wider than the model": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24},
    "tied embeddings": {"tie_word_embeddings": True},
    "three layers, other base and epsilon": {
        "num_hidden_layers": 3,
        "layer_types": None,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
}

Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tiny_policy: Path, tmp_path: Path) -> Checkpoint:
    """Makes checkpoints of other shapes, by transformers, with weights that differ everywhere."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def make(shape: dict[str, Any], **save_options: Any) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(tiny_policy, folder, ignore=shutil.ignore_patterns("*.safetensors", "policy.json"))
        known = json.loads((folder / "config.json").read_text())
        torch.manual_seed(5)
        model = Qwen3ForCausalLM(Qwen3Config(**{**known, **shape, "initializer_range": 0.2}))
        for weight in model.parameters():
            if weight.ndim == 1:  # norms are born as ones: mistaken for one another, nobody would notice
                torch.nn.init.uniform_(weight, 0.5, 1.5)
        model.save_pretrained(folder, **save_options)
        seal(folder, version=0, parent="")
        return folder

    return make


def some_tokens() -> torch.Tensor:
    return torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def by_transformers(folder: Path, token_ids_BT: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(token_ids_BT).logits


@torch.no_grad()
def by_torchtitan(folder: Path, token_ids_BT: torch.Tensor) -> torch.Tensor:
    model, _, _ = build_model(folder, seq_len=64)
    positions_BT = torch.arange(token_ids_BT.shape[1]).expand_as(token_ids_BT)
    return model(token_ids_BT, positions=positions_BT, attention_masks=attention_masks(model, positions_BT))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_forward_is_that_of_transformers(shape: str, checkpoint: Checkpoint) -> None:
    folder, tokens = checkpoint(SHAPES[shape]), some_tokens()
    theirs = by_transformers(folder, tokens)
    assert theirs.std() > 0.5  # logits that say something
    assert (by_torchtitan(folder, tokens) - theirs).abs().max() <= 1e-4


def test_the_forward_of_a_checkpoint_in_several_files(checkpoint: Checkpoint) -> None:
    folder, tokens = checkpoint({}, max_shard_size="60KB"), some_tokens()
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert (by_torchtitan(folder, tokens) - by_transformers(folder, tokens)).abs().max() <= 1e-4


def some_trajectories() -> Ragged:
    lengths = [20, 1, 13, 30]
    token_ids = np.random.default_rng(0).integers(3, 300, sum(lengths))
    mask = np.random.default_rng(1).random(sum(lengths)) < 0.5
    offsets = np.cumsum([0, *lengths])
    mask[offsets[:-1]] = False
    return Ragged(offsets, token_ids, mask)


@pytest.mark.parametrize("shape", ["as the tiny policy", "grouped queries"])
def test_what_shares_a_row_does_not_change_a_log_probability(shape: str, checkpoint: Checkpoint) -> None:
    folder, data = checkpoint(SHAPES[shape]), some_trajectories()
    together = Trainer(folder, TrainingConfig(seq_len=64), temperature=1.0, schedule_steps=1).score(data)
    alone = Trainer(folder, TrainingConfig(seq_len=30, score_rows=1), temperature=1.0, schedule_steps=1).score(data)
    assert np.abs(together - alone).max() <= 1e-5
    assert (together[data.action_mask_N] < 0).all() and (together[~data.action_mask_N] == 0).all()

    for first, last in zip(data.offsets_R, data.offsets_R[1:], strict=False):
        tokens = torch.from_numpy(data.token_ids_N[first:last])[None]
        theirs = torch.log_softmax(by_transformers(folder, tokens)[0], -1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
        mask = data.action_mask_N[first + 1 : last]
        assert np.allclose(together[first + 1 : last][mask], theirs.numpy()[mask], rtol=0, atol=1e-4)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_what_was_not_trained_is_the_same_files(
    shape: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    source, target = checkpoint(SHAPES[shape]), tmp_path / "target"
    target.mkdir()
    Trainer(source, TrainingConfig(), temperature=1.0, schedule_steps=1).export(source, target)
    before, after = contents(source), contents(target)
    assert set(after) == set(before) - {"policy.json"}
    assert all(after[name] == before[name] for name in after)
    assert ("lm_head.weight" in load_file(target / "model.safetensors")) == (shape != "tied embeddings")


@pytest.mark.parametrize("shape", ["grouped queries", "tied embeddings"])
def test_an_export_opens_with_transformers_and_holds_what_was_trained(
    shape: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, target, data = checkpoint(SHAPES[shape]), tmp_path / "target", some_trajectories()
    target.mkdir()
    config = TrainingConfig(learning_rate=1e-2, warmup_iterations=0)
    trainer = Trainer(source, config, temperature=1.0, schedule_steps=2)
    before = trainer.score(data)
    for _ in range(2):
        trainer.step(data, range(4), imitation)
    trainer.export(source, target)

    model, tied = AutoModelForCausalLM.from_pretrained(target), shape == "tied embeddings"
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    untrained, trained = (load_file(folder / "model.safetensors") for folder in (source, target))
    assert ("lm_head.weight" in trained) is not tied
    assert trained.keys() == untrained.keys()
    for name in trained:
        assert (trained[name] - untrained[name]).abs().max() > 1e-3, name
    assert AutoTokenizer.from_pretrained(target).chat_template == AutoTokenizer.from_pretrained(source).chat_template

    after = trainer.score(data)
    assert np.abs(after - before).max() > 0.1
    assert np.array_equal(Trainer(target, config, temperature=1.0, schedule_steps=1).score(data), after)
    assert (by_torchtitan(target, some_tokens()) - by_transformers(target, some_tokens())).abs().max() <= 1e-4
    first, last = data.offsets_R[3:5]
    tokens = torch.from_numpy(data.token_ids_N[first:last])[None]
    theirs = torch.log_softmax(by_transformers(target, tokens)[0], -1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
    mask = data.action_mask_N[first + 1 : last]
    assert np.allclose(after[first + 1 : last][mask], theirs.numpy()[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_transformers(shape: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    source, target, data = checkpoint(SHAPES[shape]), tmp_path / "gradient", some_trajectories()
    target.mkdir()
    trainer = Trainer(source, TrainingConfig(max_norm=1e6), temperature=0.7, schedule_steps=1)
    (optimizer,) = trainer.optimizers.optimizers

    @torch.no_grad()
    def export_the_gradient(*_: object) -> None:  # in the weights' place, for the names that a checkpoint has
        for weight in trainer.model.parameters():
            weight.copy_(weight.grad)
        trainer.export(source, target)

    optimizer.register_step_pre_hook(export_the_gradient)
    loss = trainer.step(data, range(len(data)), imitation)["loss"]

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    total = torch.zeros(())
    for first, last in zip(data.offsets_R, data.offsets_R[1:], strict=False):
        tokens = torch.from_numpy(data.token_ids_N[first:last])[None]
        all_logprobs = torch.log_softmax(model(tokens).logits[0] / 0.7, -1)[:-1]
        total = total - all_logprobs.gather(-1, tokens[0, 1:, None])[data.action_mask_N[first + 1 : last], 0].sum()
    mean = total / data.action_mask_N.sum()
    mean.backward()
    assert loss == pytest.approx(float(mean.detach()), rel=1e-5)
    found, theirs = load_file(target / "model.safetensors"), dict(model.named_parameters())  # a tied one only once
    assert found.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert weight.grad.abs().max() > 1e-2, name
        assert (found[name] - weight.grad).abs().max() <= 1e-5, name


def test_a_checkpoint_in_several_files_becomes_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source, target, tokens = checkpoint({}, max_shard_size="60KB"), tmp_path / "target", some_tokens()
    target.mkdir()
    Trainer(source, TrainingConfig(), temperature=1.0, schedule_steps=1).export(source, target)
    assert [path.name for path in target.glob("*.safetensors*")] == ["model.safetensors"]
    assert torch.equal(by_transformers(target, tokens), by_transformers(source, tokens))


def test_the_weights_of_another_version_are_loaded_in_place(tiny_policy: Path, newborn: Callable[[int], Path]) -> None:
    other, data = newborn(1), some_trajectories()
    trainer = Trainer(tiny_policy, TrainingConfig(), temperature=1.0, schedule_steps=1)
    load_weights(trainer.model, trainer.adapter, other)
    fresh = Trainer(other, TrainingConfig(), temperature=1.0, schedule_steps=1)
    assert np.array_equal(trainer.score(data), fresh.score(data))


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("use_sliding_window", True, "policy has use_sliding_window True in its config.json; allowed: False"),
        ("attention_bias", True, "policy has attention_bias True in its config.json; allowed: False"),
        ("hidden_act", "gelu", "policy has hidden_act gelu in its config.json; allowed: silu"),
        ("quantization_config", {"bits": 4}, "policy has quantization_config {'bits': 4} in its config.json; allowed"),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}, "policy has rope_type yarn in its config.json"),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}, "policy has rope_type linear in its config.json"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "policy has rope_type linear in its config.json"),
    ],
)
def test_what_the_model_would_silently_leave_out_is_refused_by_name(
    tiny_policy: Path, key: str, value: object, sentence: str
) -> None:
    config = json.loads((tiny_policy / "config.json").read_text())
    qwen3_spec(config, seq_len=64)
    if key == "rope_scaling":  # as checkpoints had it before transformers 5
        config.pop("rope_parameters", None)
    with pytest.raises(ValueError) as caught:
        qwen3_spec({**config, key: value}, seq_len=64)
    assert str(caught.value).startswith(sentence)


def test_rows_longer_than_the_policy_can_read(tiny_policy: Path) -> None:
    assert read_info(tiny_policy).version == 0
    with pytest.raises(ValueError, match=r"^training.seq_len is 1025; allowed: at most 1024, the max_position_emb"):
        build_model(tiny_policy, seq_len=1025)
