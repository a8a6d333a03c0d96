"""What an export writes: precision, files, everything beside the weights; and which checkpoints are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import SHAPES, by_torchtitan, by_transformers, in_bfloat16, make_checkpoint
from tasks.config import LoraConfig, TrainingConfig
from tasks.policy.checkpoint import check_checkpoint, digest
from tasks.policy.contents import INDEX, stored_tensors, weights_dtype
from tasks.training.losses import supervised_loss
from tasks.training.model import export_weights, full_tensor
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

SMALL = "60KB"  # of a shard: the checkpoints here are of some 300


@pytest.fixture
def plain(tiny_policy: Path, tmp_path: Path) -> Path:
    """A float32 checkpoint in one file."""
    return make_checkpoint(tiny_policy, tmp_path / "plain", SHAPES["qwen2, grouped queries, tied"])


def exported(source: Path, target: Path, max_shard_size: str = "5GB") -> Path:
    """A checkpoint that was loaded and written again."""
    trainer = Trainer(source, TrainingConfig(), temperature=1.0, schedule_steps=1)
    target.mkdir()
    export_weights(trainer.model, trainer.adapter, source, target, lora=LoraConfig(), max_shard_size=max_shard_size)
    return target


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors by name; each must be in one file only, the one that the index names."""
    found = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    if (folder / INDEX).is_file():
        index = json.loads((folder / INDEX).read_text())
        assert index["weight_map"] == {name: file for file, part in found.items() for name in part}
        total = sum(weight.nbytes for part in found.values() for weight in part.values())
        assert index["metadata"]["total_size"] == total
    return {name: weight for part in found.values() for name, weight in part.items()}


def same_bytes(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    def raw(weight: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
        return weight.dtype, tuple(weight.shape), weight.contiguous().view(torch.uint8).numpy().tobytes()

    return one.keys() == other.keys() and all(raw(one[name]) == raw(other[name]) for name in one)


def beside_the_weights(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.iterdir() if ".safetensors" not in path.name and path.name != "policy.json")
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
@pytest.mark.parametrize(("read", "written"), [("5GB", "5GB"), (SMALL, SMALL), (SMALL, "5GB"), ("5GB", SMALL)])
def test_an_untouched_export_has_the_same_bytes_in_every_tensor(
    plain: Path, tmp_path: Path, kept: str, read: str, written: str
) -> None:
    source = tmp_path / "source"
    if kept == "bfloat16":
        in_bfloat16(plain, source, max_shard_size=read)
    else:
        make_checkpoint(plain, source, SHAPES["qwen2, grouped queries, tied"], max_shard_size=read)
    (source / "LICENSE").write_text("as you like\n")
    (source / "pytorch_model.bin").write_bytes(b"the same weights once more, which training leaves behind")
    target = exported(source, tmp_path / "target", written)
    assert {weight.dtype for weight in tensors(source).values()} == {getattr(torch, kept)}
    assert same_bytes(tensors(target), tensors(source))
    files = sorted(path.name for path in target.glob("*.safetensors*"))
    if written == "5GB":
        assert files == ["model.safetensors"]
    else:
        assert len(files) > 3 and INDEX in files and "model.safetensors" not in files
    others = beside_the_weights(source)
    others.pop("pytorch_model.bin")
    assert beside_the_weights(target) == others
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "LICENSE"} <= set(others)


def test_a_policy_of_other_shards_leaves_none_behind(plain: Path, tmp_path: Path) -> None:
    source = in_bfloat16(plain, tmp_path / "source", max_shard_size="20KB")
    many = len(list(source.glob("*.safetensors")))
    target = exported(source, tmp_path / "target", SMALL)
    assert 1 < len(list(target.glob("*.safetensors"))) < many
    assert same_bytes(tensors(target), tensors(source))  # which also checks the index
    again = exported(target, tmp_path / "again", "20KB")
    assert same_bytes(tensors(again), tensors(source))


def test_transformers_and_the_trainer_open_a_sharded_bfloat16_export(plain: Path, tmp_path: Path) -> None:
    target = exported(in_bfloat16(plain, tmp_path / "source"), tmp_path / "target", SMALL)
    tokens = torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))
    assert (by_torchtitan(target, tokens) - by_transformers(target, tokens)).abs().max() <= 1e-4
    assert (by_transformers(target, tokens) - by_transformers(plain, tokens)).abs().max() > 1e-3  # it was rounded

    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(target).dtype == torch.bfloat16


def test_a_bfloat16_policy_is_trained_in_float32_and_rounded_once(plain: Path, tmp_path: Path) -> None:
    # Beside a weight of 1 bfloat16 has no number closer than 0.004. Steps of 1e-4 only count if the trainer keeps them.
    source = in_bfloat16(plain, tmp_path / "source")
    config = TrainingConfig(learning_rate=1e-4, warmup_iterations=0)
    trainer = Trainer(source, config, temperature=1.0, schedule_steps=1)
    start = {name: full_tensor(weight).clone() for name, weight in trainer.model.state_dict().items()}
    data = FlatSamples(np.array([0, 40]), np.random.default_rng(0).integers(3, 300, 40), np.arange(40) > 0)
    for _ in range(3):
        trainer.step(data, [0], supervised_loss)
    norm = "layers.0.attention_norm.weight"
    moved = (full_tensor(trainer.model.state_dict()[norm]) - start[norm]).abs()
    assert {weight.dtype for weight in start.values()} == {torch.float32}
    assert 1e-4 < moved.max() < 4e-4
    target = tmp_path / "target"
    target.mkdir()
    trainer.export(source, target)
    written, found = tensors(target), trainer.adapter.to_hf(dict(trainer.model.state_dict()))
    assert same_bytes(written, {name: full_tensor(weight).to(torch.bfloat16) for name, weight in found.items()})


def with_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_where_the_precision_is_named(plain: Path, tmp_path: Path) -> None:
    half = in_bfloat16(plain, tmp_path / "half")
    assert (weights_dtype(plain, check_checkpoint(plain)), weights_dtype(half, check_checkpoint(half))) == (
        "float32",
        "bfloat16",
    )
    with_config(half, dtype=None, torch_dtype="float32")  # as before transformers 5; it says what an export is
    assert {weight.dtype for weight in tensors(exported(half, tmp_path / "wide")).values()} == {torch.float32}
    with_config(half, torch_dtype=None)
    assert weights_dtype(half, check_checkpoint(half)) == "bfloat16"  # as the tensors are
    assert same_bytes(tensors(exported(half, tmp_path / "target")), tensors(half))


def test_a_precision_that_is_refused(plain: Path) -> None:
    for key in ("dtype", "torch_dtype"):
        with_config(plain, dtype=None)
        with_config(plain, **{key: "float16"})
        with pytest.raises(ValueError) as caught:
            check_checkpoint(plain)
        assert str(caught.value) == ("policy has dtype float16 in its config.json; allowed: float32 or bfloat16.")
    with_config(plain, dtype=None, torch_dtype=None)
    save_file({name: weight.half() for name, weight in tensors(plain).items()}, plain / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        check_checkpoint(plain)
    assert str(caught.value) == (
        "policy has no dtype in its config.json and tensors of F16; allowed: a dtype of float32 or bfloat16, or "
        "tensors that are all F32 or all BF16."
    )


SHARD = "model-00002-of-00004.safetensors"
Q = "model.layers.0.self_attn.q_proj.weight"


def without_a_shard(folder: Path) -> None:
    (folder / SHARD).unlink()


def without_a_tensor(folder: Path) -> None:
    path = folder / stored_tensors(folder)[Q].file
    save_file({name: weight for name, weight in load_file(path).items() if name != Q}, path)


def with_a_narrower_tensor(folder: Path) -> None:
    path = folder / stored_tensors(folder)[Q].file
    save_file({n: w[:, :63].contiguous() if n == Q else w for n, w in load_file(path).items()}, path)


def with_a_tensor_twice(folder: Path) -> None:
    save_file({Q: tensors(folder)[Q]}, folder / "model.safetensors")


def with_half_a_shard(folder: Path) -> None:
    whole = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            without_a_shard,
            f"whose {INDEX} names {SHARD}, which is not there; allowed: REASON, with all of its weights.",
        ),
        (
            without_a_tensor,
            f"whose weights lack {Q}; allowed: all tensors that its config.json asks for, this one of 64 x 64.",
        ),
        (with_a_narrower_tensor, f"whose {Q} in FILE is 64 x 63; allowed: 64 x 64, as its config.json says."),
        (with_a_tensor_twice, f"which has {Q} in FILE and in model.safetensors; allowed: each tensor in one file."),
        (with_half_a_shard, f"whose {SHARD} cannot be read (REASON); allowed: whole safetensors files."),
    ],
)
def test_weights_that_are_not_all_there(
    plain: Path, tmp_path: Path, newborn_policy: Path, spoil: Callable[[Path], None], message: str
) -> None:
    source = in_bfloat16(plain, tmp_path / "source", max_shard_size="42KB")
    message = message.replace("FILE", stored_tensors(source)[Q].file)
    spoil(source)
    with pytest.raises(ValueError) as caught:
        Trainer(source, TrainingConfig(), temperature=1.0, schedule_steps=1)
    start, _, end = message.partition("REASON")
    assert str(caught.value).startswith(f'policy is "{source}", {start}') and str(caught.value).endswith(end)


def test_the_digest_is_of_all_shards(plain: Path, tmp_path: Path) -> None:
    source = in_bfloat16(plain, tmp_path / "source", max_shard_size=SMALL)
    before = digest(source)
    (last,) = sorted(source.glob("*.safetensors"))[-1:]
    name, weight = next(iter(load_file(last).items()))
    save_file({**load_file(last), name: weight + 1}, last)
    assert digest(source) != before
    shutil.rmtree(source)
