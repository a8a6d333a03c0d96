"""Files of a checkpoint that are broken, and files that no policy needs."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TINY
from tasks.policy.architectures import check_architecture, check_head_size
from tasks.policy.checkpoint import Manifest, check_checkpoint, import_checkpoint, read_manifest
from tasks.policy.contents import taken
from tasks.policy.tiny import make_weights, shape

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of random weights."""
    from tasks.policy.tiny import make_tokenizer

    folder = tmp_path_factory.mktemp("checkpoint") / "small"
    vocabulary = make_tokenizer(["Cards 2 3, hard 5."], folder)
    make_weights(TINY, vocabulary, end_id=2, pad_id=0, seed=0, folder=folder)
    return folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "policy.json"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (LFS, "is a pointer of Git LFS, not the file"),
        ('{"model_type": "qwen3", "hid', "is no JSON ("),
        ("", "is no JSON ("),
        ("\x00\x00", "is no JSON ("),
        ("[1, 2]", "holds [1, 2]"),
        ("null", "holds null"),
        ("[" * 100_000, "is no JSON ("),
    ],
)
def test_a_broken_file_is_named_with_what_was_found(
    checkpoint: Path, tmp_path: Path, name: str, content: str, why: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(checkpoint, folder)
    (folder / name).write_text(content)
    with pytest.raises(ValueError) as caught:
        read_manifest(folder) if name == "policy.json" else check_checkpoint(folder)
    said = str(caught.value)
    assert name in said and why in said and str(folder) in said and "; allowed: " in said and "\n" not in said


@pytest.mark.parametrize("content", ["{}", '{"version": "x", "digest": 3, "parent": ""}', '{"version": 1, "other": 2}'])
def test_a_policy_json_of_another_kind_is_named(checkpoint: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "p")
    (tmp_path / "p" / "policy.json").write_text(content)
    with pytest.raises(ValueError, match=r"p/policy.json is no Manifest \(.*; allowed: a file as this version writes"):
        read_manifest(tmp_path / "p")


@pytest.mark.parametrize("content", ['{"model": null}', '{"model": {"vocab": [1]}}', '{"added_tokens": [{}]}'])
def test_a_tokenizer_of_another_kind_is_named(checkpoint: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "p")
    (tmp_path / "p" / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"whose tokenizer.json is no tokenizer; allowed: "):
        check_checkpoint(tmp_path / "p")


def test_only_what_a_policy_needs_is_taken_over(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    needed = {path.name for path in source.iterdir()}
    others = ["optimizer.pt", "flax_model.msgpack", "consolidated.00.pth", "model-Q4.gguf", "pytorch_model.bin"]
    others += ["pytorch_model.bin.index.json", "scheduler.pt", "training_args.bin", "README.md", "trainer_state.json"]
    for name in [*others, "_history.jsonl", "policy.json"]:
        (source / name).write_text("{}")
    (source / "runs").mkdir()
    kept = import_checkpoint(source, tmp_path / "policy")
    assert isinstance(kept, Manifest)
    assert {path.name for path in (tmp_path / "policy").iterdir()} == {*needed, "policy.json"}
    assert [path.name for path in taken(source)[1]] == sorted(others)


def test_weights_that_the_index_does_not_name_are_left(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint, source)
    shutil.copy(source / "model.safetensors", source / "consolidated.safetensors")  # each tensor twice
    index = {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    import_checkpoint(source, tmp_path / "policy")
    assert [path.name for path in (tmp_path / "policy").glob("*.safetensors")] == ["model.safetensors"]


PLAIN = shape(TINY) | {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(key=st.sampled_from([*PLAIN, "layer_types", "rope_scaling", "quantization_config"]), value=JSON)
def test_any_value_in_a_config_is_taken_or_refused_in_one_sentence(key: str, value: Any) -> None:
    config = {**copy.deepcopy(PLAIN), key: value}
    if key == "model_type":
        return  # checked before
    try:
        check_architecture(config)
        check_head_size(config)
    except ValueError as error:
        assert str(error).startswith("policy has ") and "; allowed: " in str(error)
