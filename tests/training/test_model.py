"""TorchTitan's forward and files against transformers, on the same checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import QWEN25_INSTRUCT, SHAPES, by_torchtitan, by_transformers, is_tied, make_checkpoint, random_model
from tasks.config import TrainingConfig
from tasks.policy.architectures import check_architecture
from tasks.policy.checkpoint import read_manifest
from tasks.training.architectures import SPECS
from tasks.training.losses import supervised_loss
from tasks.training.model import build_model, load_weights
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tiny_policy: Path, tmp_path: Path) -> Checkpoint:
    """Makes checkpoints of one of the shapes, by transformers, with weights that differ everywhere."""

    def make(shape: str, **save_options: Any) -> Path:
        return make_checkpoint(tiny_policy, tmp_path / "checkpoint", SHAPES[shape], **save_options)

    return make


def some_tokens() -> torch.Tensor:
    return torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_forward_is_that_of_transformers(shape: str, checkpoint: Checkpoint) -> None:
    folder, tokens = checkpoint(shape), some_tokens()
    theirs = by_transformers(folder, tokens)
    assert theirs.std() > 0.5  # logits that say something
    assert (by_torchtitan(folder, tokens) - theirs).abs().max() <= 1e-4


def test_the_forward_of_a_checkpoint_in_several_files(checkpoint: Checkpoint) -> None:
    folder, tokens = checkpoint("qwen3", max_shard_size="60KB"), some_tokens()
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert (by_torchtitan(folder, tokens) - by_transformers(folder, tokens)).abs().max() <= 1e-4


def some_trajectories() -> FlatSamples:
    lengths = [20, 1, 13, 30]
    token_ids = np.random.default_rng(0).integers(3, 300, sum(lengths))
    mask = np.random.default_rng(1).random(sum(lengths)) < 0.5
    offsets = np.cumsum([0, *lengths])
    mask[offsets[:-1]] = False
    return FlatSamples(offsets, token_ids, mask)


@pytest.mark.parametrize("shape", ["qwen3", "qwen3, grouped queries", "qwen2", "llama, Llama 3's frequencies"])
def test_what_shares_a_row_does_not_change_a_log_probability(shape: str, checkpoint: Checkpoint) -> None:
    folder, data = checkpoint(shape), some_trajectories()
    together = Trainer(folder, TrainingConfig(seq_len=64), temperature=1.0, schedule_steps=1).score(data)
    alone = Trainer(folder, TrainingConfig(seq_len=30, score_rows=1), temperature=1.0, schedule_steps=1).score(data)
    assert np.abs(together - alone).max() <= 1e-5
    assert (together[data.loss_mask_N] < 0).all() and (together[~data.loss_mask_N] == 0).all()

    for first, last in zip(data.offsets_R, data.offsets_R[1:], strict=False):
        tokens = torch.from_numpy(data.token_ids_N[first:last])[None]
        theirs = torch.log_softmax(by_transformers(folder, tokens)[0], -1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
        mask = data.loss_mask_N[first + 1 : last]
        assert np.allclose(together[first + 1 : last][mask], theirs.numpy()[mask], rtol=0, atol=1e-4)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_what_was_not_trained_is_the_same_files(
    shape: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    source, target = checkpoint(shape), tmp_path / "target"
    target.mkdir()
    Trainer(source, TrainingConfig(), temperature=1.0, schedule_steps=1).export(source, target)
    before, after = contents(source), contents(target)
    assert set(after) == set(before) - {"policy.json"}
    assert all(after[name] == before[name] for name in after)
    assert ("lm_head.weight" in load_file(target / "model.safetensors")) == (not is_tied(source))


@pytest.mark.parametrize(
    "shape",
    [
        "qwen3, grouped queries",
        "qwen3, tied",
        "qwen2",
        "qwen2, grouped queries, tied",
        "llama, heads wider than the model",
        "llama, grouped queries, tied",
    ],
)
def test_an_export_opens_with_transformers_and_holds_what_was_trained(
    shape: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, target, data = checkpoint(shape), tmp_path / "target", some_trajectories()
    target.mkdir()
    config = TrainingConfig(learning_rate=1e-2, warmup_iterations=0)
    trainer = Trainer(source, config, temperature=1.0, schedule_steps=2)
    before = trainer.score(data)
    for _ in range(2):
        trainer.step(data, range(4), supervised_loss)
    trainer.export(source, target)

    model, tied = AutoModelForCausalLM.from_pretrained(target), is_tied(source)
    assert is_tied(target) is tied is ("tied" in shape)
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
    mask = data.loss_mask_N[first + 1 : last]
    assert np.allclose(after[first + 1 : last][mask], theirs.numpy()[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_transformers(shape: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    source, target, data = checkpoint(shape), tmp_path / "gradient", some_trajectories()
    target.mkdir()
    trainer = Trainer(source, TrainingConfig(max_norm=1e6), temperature=0.7, schedule_steps=1)
    (optimizer,) = trainer.optimizers.optimizers

    @torch.no_grad()
    def export_the_gradient(*_: object) -> None:  # in the weights' place, for the names that a checkpoint has
        for weight in trainer.model.parameters():
            weight.copy_(weight.grad)
        trainer.export(source, target)

    optimizer.register_step_pre_hook(export_the_gradient)
    loss = trainer.step(data, range(len(data)), supervised_loss)["loss"]

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    total = torch.zeros(())
    for first, last in zip(data.offsets_R, data.offsets_R[1:], strict=False):
        tokens = torch.from_numpy(data.token_ids_N[first:last])[None]
        all_logprobs = torch.log_softmax(model(tokens).logits[0] / 0.7, -1)[:-1]
        total = total - all_logprobs.gather(-1, tokens[0, 1:, None])[data.loss_mask_N[first + 1 : last], 0].sum()
    mean = total / data.loss_mask_N.sum()
    mean.backward()
    assert loss == pytest.approx(float(mean.detach()), rel=1e-5)
    found, theirs = load_file(target / "model.safetensors"), dict(model.named_parameters())  # a tied one only once
    assert found.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert weight.grad.abs().max() > 1e-2, name
        assert (found[name] - weight.grad).abs().max() <= 1e-5, name


def test_a_checkpoint_in_several_files_becomes_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source, target, tokens = checkpoint("qwen3", max_shard_size="60KB"), tmp_path / "target", some_tokens()
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


LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
REAL: dict[str, dict[str, Any]] = {  # as their config.json has them
    "Qwen2.5-1.5B-Instruct": QWEN25_INSTRUCT,
    "Llama-3.2-1B": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    "SmolLM2-1.7B, untied": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 130000,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("name", REAL)
def test_every_tensor_of_a_real_checkpoint_has_its_name_and_shape(name: str) -> None:
    sizes = REAL[name]
    check_architecture(sizes)
    spec = SPECS[sizes["model_type"]](sizes, 512)
    with torch.device("meta"):  # no weights: nothing but names and shapes
        ours = spec.model.build()
        theirs = random_model(sizes)
    adapter = spec.state_dict_adapter(spec.model, None)
    found = {key: tuple(weight.shape) for key, weight in adapter.to_hf(ours.state_dict()).items()}
    assert found == {key: tuple(weight.shape) for key, weight in theirs.named_parameters()}  # a tied one only once
    assert ("lm_head.weight" in found) is not sizes["tie_word_embeddings"]


def test_rows_longer_than_the_policy_can_read(tiny_policy: Path) -> None:
    assert read_manifest(tiny_policy).version == 0
    with pytest.raises(ValueError, match=r"^training.seq_len is 1025; allowed: at most 1024, the max_position_emb"):
        build_model(tiny_policy, TrainingConfig(seq_len=1025))
