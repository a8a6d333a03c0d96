"""Policy directories: what is refused in one sentence, and what a manifest guarantees."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tasks.policy.architectures import check_head_size
from tasks.policy.checkpoint import check_checkpoint, digest, import_checkpoint, read_manifest, write_manifest
from tasks.policy.contents import tokens
from tasks.run.create import check_policy


@pytest.fixture
def policy(tiny_policy: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(tiny_policy, tmp_path / "policy")


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def shard(folder: Path, missing: int = 0) -> None:
    """Weights in three files instead of one, of which one may be missing."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: f"model-{1 + i % 3:05}-of-00003.safetensors" for i, name in enumerate(weights)}
    for file in set(where.values()):
        save_file({name: weights[name] for name in weights if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for file in folder.glob(f"model-{missing:05}-*"):
        file.unlink()


def remove(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return change


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (shutil.rmtree, ", which is no directory; allowed: "),
        (remove("config.json"), ", which has no config.json; allowed: "),
        (change_config(model_type="gemma3_text"), " of architecture gemma3_text; allowed: "),
        (change_config(model_type="qwen3_moe"), " of architecture qwen3_moe; allowed: "),
        (change_config(model_type=None), " of architecture None; allowed: "),
        (remove("tokenizer.json"), ", which has no tokenizer.json; allowed: "),
        (remove("chat_template.jinja"), ", whose tokenizer has no chat template; allowed: "),
        (remove("*.safetensors"), ", which has no *.safetensors weights; allowed: "),
        (
            lambda folder: shard(folder, missing=2),
            ", whose model.safetensors.index.json names model-00002-of-00003.safetensors, which is not there; allowed",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(
    policy: Path, tmp_path: Path, spoil: Callable[[Path], None], complaint: str
) -> None:
    assert check_checkpoint(policy)["model_type"] == "qwen3"
    spoil(policy)
    with pytest.raises(ValueError) as caught:
        import_checkpoint(policy, tmp_path / "imported")
    sentence = str(caught.value)
    assert sentence.startswith(f'policy is "{policy}"{complaint}')
    assert '"tiny" or a directory with a Hugging Face checkpoint of qwen3 or qwen2 or llama' in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert not (tmp_path / "imported").exists()


def test_weights_in_several_files_and_no_generation_config(policy: Path, tmp_path: Path) -> None:
    shard(policy)
    remove("generation_config.json")(policy)
    import_checkpoint(policy, tmp_path / "imported")
    assert len(list((tmp_path / "imported").glob("*.safetensors"))) == 3


def add_token(folder: Path, id: int) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": id, "content": "<|new|>"})
    path.write_text(json.dumps(tokenizer))


def test_a_token_beyond_the_embeddings(policy: Path, tmp_path: Path) -> None:
    rows = check_checkpoint(policy)["vocab_size"]
    add_token(policy, rows - 1)
    check_checkpoint(policy)
    add_token(policy, rows)
    with pytest.raises(ValueError) as caught:
        import_checkpoint(policy, tmp_path / "imported")
    assert str(caught.value) == (
        f'policy is "{policy}", whose tokenizer has {rows + 1} tokens and whose config.json has vocab_size {rows}; '
        f"allowed: at most as many tokens as vocab_size."
    )
    change_config(vocab_size=rows + 1)(policy)
    check_checkpoint(policy)


def test_the_tokens_that_a_tokenizer_has_are_those_that_transformers_counts(policy: Path) -> None:
    from transformers import AutoTokenizer

    found = tokens(json.loads((policy / "tokenizer.json").read_text()))
    assert found == AutoTokenizer.from_pretrained(policy).get_vocab()
    assert tokens({"model": {"vocab": [["a", -1.0], ["b", -2.5]]}}) == {"a": 0, "b": 1}


def set_end(value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": value}))

    return change


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "names no eos_token"), ("<|over|>", "names <|over|> as its eos_token, which is none of its tokens")],
)
def test_a_tokenizer_that_cannot_end_a_turn(policy: Path, value: object, told: str) -> None:
    set_end(value)(policy)
    with pytest.raises(ValueError) as caught:
        check_checkpoint(policy)
    assert str(caught.value) == (
        f'policy is "{policy}", whose tokenizer {told}; allowed: a tokenizer with a token to end a turn.'
    )


def test_an_end_token_written_at_length_or_in_the_older_file(policy: Path) -> None:
    set_end({"content": "<|im_end|>", "lstrip": False})(policy)
    check_checkpoint(policy)
    set_end(None)(policy)
    (policy / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    check_checkpoint(policy)


SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 384,
    "max_position_embeddings": 1024,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def set_config(**config: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**SIZES, **config}))

    return change


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
        {"model_type": "qwen3", "use_sliding_window": False, "sliding_window": None, "rope_scaling": None},
        {"model_type": "qwen3", "layer_types": ["full_attention", "full_attention"], "head_dim": 128},
        {"model_type": "llama", "rope_scaling": LLAMA3, "rope_theta": 500000.0, "mlp_bias": False, "head_dim": 48},
        {"model_type": "llama", "rope_scaling": None, "rope_interleaved": False, "pretraining_tp": 1},
        {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 500000.0, "partial_rotary_factor": 1.0}},
    ],
)
def test_the_settings_of_real_checkpoints_are_accepted(policy: Path, config: dict[str, object]) -> None:
    set_config(**config)(policy)
    assert check_checkpoint(policy) == {**SIZES, **config}
    check_head_size(check_checkpoint(policy))


QWENS, ALL = ("qwen3", "qwen2"), ("qwen3", "qwen2", "llama")
NO = "allowed: False, None."


@pytest.mark.parametrize(
    ("architectures", "key", "value", "sentence"),
    [
        (QWENS, "use_sliding_window", True, f"policy has use_sliding_window True in its config.json; {NO}"),
        (("qwen3", "llama"), "attention_bias", True, f"policy has attention_bias True in its config.json; {NO}"),
        (("llama",), "mlp_bias", True, f"policy has mlp_bias True in its config.json; {NO}"),
        (("llama",), "bias", True, f"policy has bias True in its config.json; {NO}"),
        (("llama",), "qkv_bias", True, f"policy has qkv_bias True in its config.json; {NO}"),
        (("qwen2",), "qk_norm", True, f"policy has qk_norm True in its config.json; {NO}"),
        (ALL, "is_causal", False, "policy has is_causal False in its config.json; allowed: True, None."),
        (ALL, "hidden_act", "gelu", "policy has hidden_act gelu in its config.json; allowed: silu."),
        (
            ALL,
            "quantization_config",
            {"bits": 4},
            "policy has quantization_config {'bits': 4} in its config.json; allowed: None.",
        ),
        (
            QWENS,
            "dual_chunk_attention_config",
            {"chunk_size": 262144},
            "policy has dual_chunk_attention_config {'chunk_size': 262144} in its config.json; allowed: None.",
        ),
        (
            ALL,
            "layer_types",
            ["full_attention", "sliding_attention"],
            "policy has layer_types sliding_attention in its config.json; allowed: full_attention.",
        ),
        (
            ALL,
            "num_key_value_heads",
            4,
            "policy has num_key_value_heads 4 in its config.json; allowed: a divisor of 2, its num_attention_heads.",
        ),
        (
            ("qwen2",),
            "head_dim",
            64,
            "policy has head_dim 64 in its config.json; allowed: 32, hidden_size / num_attention_heads.",
        ),
        (("qwen3", "llama"), "head_dim", 33, "policy has head_dim 33 in its config.json; allowed: an even number."),
        (ALL, "hidden_size", None, "policy has hidden_size None in its config.json; allowed: 1 or more."),
        (ALL, "vocab_size", 0, "policy has vocab_size 0 in its config.json; allowed: 1 or more."),
        (
            QWENS,
            "rope_scaling",
            LLAMA3,
            "policy has rope_type llama3 in its config.json; allowed: default.",
        ),
        (
            QWENS,
            "rope_parameters",
            {"rope_type": "yarn", "factor": 4.0},
            "policy has rope_type yarn in its config.json; allowed: default.",
        ),
        (
            ("llama",),
            "rope_parameters",
            {"rope_type": "yarn", "factor": 4.0},
            "policy has rope_type yarn in its config.json; allowed: default, llama3.",
        ),
        (
            ("llama",),
            "rope_scaling",  # as checkpoints had it before transformers 5
            {"type": "linear", "factor": 2.0},
            "policy has rope_type linear in its config.json; allowed: default, llama3.",
        ),
        (
            ("llama",),
            "rope_scaling",
            {**LLAMA3, "factor": None},
            "policy has factor None in its config.json; allowed: more than 0, with rope_type llama3.",
        ),
        (
            ALL,
            "partial_rotary_factor",
            0.5,
            "policy has partial_rotary_factor 0.5 in its config.json; allowed: 1.0.",
        ),
    ],
)
def test_what_the_model_would_leave_out_silently_is_refused_by_name(
    policy: Path, tmp_path: Path, architectures: tuple[str, ...], key: str, value: object, sentence: str
) -> None:
    for architecture in architectures:
        set_config(model_type=architecture)(policy)
        check_checkpoint(policy)
        set_config(model_type=architecture, **{key: value})(policy)
        with pytest.raises(ValueError) as caught:
            import_checkpoint(policy, tmp_path / "imported")
        assert str(caught.value) == sentence
        assert not (tmp_path / "imported").exists()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator takes other sizes")
def test_heads_that_vllm_cannot_take_on_a_cpu(policy: Path) -> None:
    set_config(model_type="llama", head_dim=24)(policy)
    check_checkpoint(policy)
    with pytest.raises(
        ValueError, match=r"^policy has head_dim 24 in its config.json; allowed: 32, 48, 64, .* a CPU\.$"
    ):
        check_policy(str(policy))
    # On a cluster the generator's pod has the GPU, not the one that checks the inputs.
    check_policy(str(policy), here=False)


def test_the_check_imports_neither_torch_nor_transformers(policy: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks.policy.checkpoint import check_checkpoint; "
        f"check_checkpoint(Path({str(policy)!r})); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr


def test_a_template_within_the_tokenizers_config_will_do(policy: Path) -> None:
    template = (policy / "chat_template.jinja").read_text()
    remove("chat_template.jinja")(policy)
    path = policy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    check_checkpoint(policy)


def flip_a_bit_of_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        flip_a_bit_of_the_weights,
        change_config(rope_theta=1.0),
        lambda folder: shutil.copy(folder / "model.safetensors", folder / "more.safetensors"),
    ],
)
def test_weights_that_were_changed_are_found(policy: Path, spoil: Callable[[Path], None]) -> None:
    assert read_manifest(policy).version == 0
    spoil(policy)
    with pytest.raises(ValueError, match=r"allowed: weights that fit its policy.json, these were changed\.$"):
        read_manifest(policy)


def test_a_directory_without_its_manifest_is_unfinished(policy: Path) -> None:
    remove("policy.json")(policy)
    with pytest.raises(ValueError, match=r"allowed: a finished policy directory, this one has no policy.json\.$"):
        read_manifest(policy)


def test_a_manifest_with_an_unknown_key(policy: Path) -> None:
    (policy / "policy.json").write_text('{"version": 0, "digest": "d", "parent": "", "owner": "me"}')
    with pytest.raises(ValueError, match='unknown key "owner"; allowed: version, digest, parent'):
        read_manifest(policy)


def test_the_manifest_has_version_and_parent(policy: Path) -> None:
    info = write_manifest(policy, version=7, parent="b2a1")
    assert read_manifest(policy) == info
    assert (info.version, info.parent, info.digest) == (7, "b2a1", digest(policy))


def test_an_import_copies_and_does_not_change_the_source(policy: Path, tmp_path: Path) -> None:
    write_manifest(policy, version=7, parent="b2a1")
    before = {path.name: path.read_bytes() for path in policy.iterdir()}
    (policy / "_pending.json").write_text("[]")  # what another run noted beside it is not copied
    info = import_checkpoint(policy, tmp_path / "run" / "policy-0")
    assert (info.version, info.parent) == (0, "")
    assert {path.name: path.read_bytes() for path in policy.iterdir()} == before | {"_pending.json": b"[]"}
    imported = {path.name: path.read_bytes() for path in (tmp_path / "run" / "policy-0").iterdir()}
    assert imported.keys() == before.keys()
    assert all(imported[name] == before[name] for name in before if name != "policy.json")


def test_the_digest_is_of_contents_and_not_of_places_or_times(policy: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(policy, tmp_path / "moved", copy_function=shutil.copyfile)
    assert digest(moved) == digest(policy)


def written_long_ago(folder: Path) -> Path:
    """Weights that were not changed for a while; the wait is for their time of change."""
    time.sleep(2.1)
    return folder / "model.safetensors"


def read_bytes_of(path: Path) -> int:
    """How many bytes of this process's reads a `read_manifest` takes, as the kernel counts them."""

    def so_far() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    before = so_far()
    read_manifest(path)
    return so_far() - before


def test_weights_are_read_once_in_a_process_and_again_when_they_change(policy: Path, tmp_path: Path) -> None:
    weights = written_long_ago(policy)
    assert read_bytes_of(policy) > weights.stat().st_size
    assert read_bytes_of(policy) < 20_000 < weights.stat().st_size
    moved = policy.rename(tmp_path / "moved")
    assert read_bytes_of(moved) < 20_000
    stat = (moved / "model.safetensors").stat()
    flip_a_bit_of_the_weights(moved)
    os.utime(moved / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # its ctime differs still
    with pytest.raises(ValueError, match="these were changed"):
        read_manifest(moved)


def test_the_hash_of_weights_written_a_moment_ago_is_not_cached(policy: Path) -> None:
    (policy / "model.safetensors").touch()
    read_manifest(policy)
    assert read_bytes_of(policy) > (policy / "model.safetensors").stat().st_size
