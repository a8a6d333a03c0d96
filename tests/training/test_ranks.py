"""Two ranks against one: the same scores, losses, metrics and weights.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tests/training/test_ranks.py FOLDER

This file is also what the two ranks run: the same function that the test calls in its own process, a group of one.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather
from safetensors.torch import load_file

from tasks.config import AlgorithmConfig, LoraConfig, TrainingConfig
from tasks.policy.checkpoint import seal
from tasks.training.packing import ragged
from tasks.training.train import window_loss
from tasks.training.trainer import Trainer

LENGTHS = (12, 9, 16, 14, 15)  # no two fit in a row of 16
STEPS = ([0, 1, 2, 3, 4], [1], [4, 2, 0])  # 5, 1 and 3 rows: the second rank's last is empty, once all that it has
# Adam divides a gradient by its own size: where the parts of one cancel out, to 1e-8 beside 1e-2 elsewhere, what
# rounding leaves of it decides the step. How far that goes is a share of the learning rate, here that of a run.
TRAINING = TrainingConfig(seq_len=16, rows=2, score_rows=2, warmup_iterations=0)
LORA = LoraConfig(rank=3, alpha=48.0)  # a rank that two ranks do not divide
GRPO = AlgorithmConfig(entropy_coefficient=0.01)
CASES: dict[str, tuple[str, AlgorithmConfig, dict[str, Any]]] = {  # which policy, its loss, and how it is trained
    "grpo": ("untied", GRPO, {}),
    "gspo": ("tied", AlgorithmConfig(name="gspo"), {}),
    "biased": ("qwen2", AlgorithmConfig(name="gspo"), {}),
    "corrected": ("untied", AlgorithmConfig(correction="truncate", correction_level="sequence"), {}),
    "adapters": ("qwen2", GRPO, {"lora": LORA}),
    "bfloat16": ("untied", GRPO, {"dtype": "bfloat16"}),
    "tensor": ("untied", GRPO, {"tensor_parallel": 2}),
    "tensor tied": ("tied", AlgorithmConfig(name="gspo"), {"tensor_parallel": 2}),
    "tensor biased": ("qwen2", GRPO, {"tensor_parallel": 2}),
    "tensor llama": ("llama", GRPO, {"tensor_parallel": 2}),
    "tensor adapters": ("qwen2", GRPO, {"lora": LORA, "tensor_parallel": 2}),
    "context": ("untied", GRPO, {"context_parallel": 2}),
    "context tied": ("tied", AlgorithmConfig(name="gspo"), {"context_parallel": 2}),
    "context biased": ("qwen2", GRPO, {"context_parallel": 2}),
    "context llama": ("llama", GRPO, {"context_parallel": 2}),
    "context adapters": ("qwen2", GRPO, {"lora": LORA, "context_parallel": 2}),
    "context bfloat16": ("untied", GRPO, {"dtype": "bfloat16", "context_parallel": 2}),
    "tensor bfloat16": ("untied", GRPO, {"dtype": "bfloat16", "tensor_parallel": 2}),
}


def three_steps(folder: Path, case: str, target: Path) -> dict[str, Any]:
    """Train a policy on the window, both in `folder`, and export it to `target`; what was measured on the way."""
    name, algorithm, training = CASES[case]
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        training = {key: value for key, value in training.items() if not key.endswith("_parallel")}
    window, trainer = feather.read_table(folder / "window"), open_trainer(folder / name, **training)
    data = ragged(window)
    before, loss = trainer.score(data), window_loss(window, data, trainer, algorithm)
    steps = [trainer.step(data, members, loss) for members in STEPS]
    target.mkdir(exist_ok=True)
    trainer.export(folder / name, target)
    return {"before": before.tolist(), "steps": steps, "after": trainer.score(data).tolist()}


def open_trainer(policy: Path, **training: Any) -> Trainer:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return Trainer(policy, replace(TRAINING, ranks=ranks, **training), temperature=0.8, schedule_steps=3)


def a_rank(folder: Path) -> None:
    """What each of the two processes does."""
    for case in CASES:
        found = three_steps(folder, case, folder / case)
        assert torch.distributed.get_world_size() == 2
        (folder / f"{case}-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    os._exit(0)  # all is written, and a thread of gloo's now and then aborts an orderly exit


def a_window(policy: Path) -> pa.Table:
    """Five trajectories, sampled by a policy near `policy`: some of the ratios are clipped."""
    draw, offsets = np.random.default_rng(0), np.cumsum([0, *LENGTHS])
    mask = draw.random(offsets[-1]) < 0.6
    mask[offsets[:-1]] = False

    def column(values: np.ndarray) -> list[np.ndarray]:
        return np.split(values, offsets[1:-1])

    tokens = {
        "trajectory_id": list("abcde"),
        "token_ids": column(draw.integers(3, 300, offsets[-1])),
        "action_mask": column(mask),
    }
    scores = open_trainer(policy).score(ragged(pa.table(tokens)))
    shift = np.repeat(np.float32([0.1, -0.3, 0.3, -0.1, 0.0]), LENGTHS) * mask
    columns = {**tokens, "logprobs": column(scores + shift), "reference_logprobs": column(scores - 2 * shift)}
    return pa.table({**columns, "advantage": np.float32([0.5, 1.0, -1.0, -0.5, 0.25])})


@pytest.fixture(scope="module")
def two_ranks(newborn_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two ranks, real processes over the loopback interface, left what they found."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from checkpoints import make_checkpoint  # not at the top: the ranks do without

    folder = tmp_path_factory.mktemp("ranks")
    for name in ("untied", "tied"):
        shutil.copytree(newborn_policy, folder / name)
    shape = {**json.loads((folder / "tied" / "config.json").read_text()), "tie_word_embeddings": True}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(folder / "tied")
    seal(folder / "tied", version=0, parent="")
    for name in ("qwen2", "llama"):
        make_checkpoint(newborn_policy, folder / name, {"model_type": name})
    feather.write_feather(a_window(newborn_policy), folder / "window")

    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}  # where torchrun leaves its logs
    with subprocess.Popen(
        [*line, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            said, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun takes its ranks along
            raise
    assert process.returncode == 0, said
    return folder


# How far two ranks may be from one: what float32 rounds; in bfloat16, the gradients that each part of a step adds up.
NEAR = {"bfloat16": 5e-3}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one_does(two_ranks: Path, tmp_path: Path, case: str) -> None:
    expected, near = three_steps(two_ranks, case, tmp_path), NEAR.get(CASES[case][2].get("dtype"), 1e-5)
    assert all(step["grad_norm"] > 0.01 for step in expected["steps"])
    if case != "corrected":  # whose ratio starts at 1
        assert 0 < expected["steps"][0]["clip_share"] < 1
    for rank in (0, 1):
        found = json.loads((two_ranks / f"{case}-{rank}.json").read_text())
        assert found["before"] == pytest.approx(expected["before"], abs=near)
        for step, wanted in zip(found["steps"], expected["steps"], strict=True):
            assert step == pytest.approx(wanted, rel=near, abs=near / 10)
        assert found["after"] == pytest.approx(expected["after"], abs=near)
    apart = np.subtract(expected["after"], expected["before"])
    assert np.abs(apart).max() > 1e-2

    by_two, by_one, untrained = (
        load_file(policy / "model.safetensors") for policy in (two_ranks / case, tmp_path, two_ranks / CASES[case][0])
    )
    assert by_two.keys() == by_one.keys() == untrained.keys()
    for name, weight in by_one.items():
        if "adapters" in case and not name.endswith("_proj.weight"):
            assert torch.equal(by_two[name], untrained[name]) and torch.equal(weight, untrained[name]), name
            continue
        assert (weight - untrained[name]).abs().max() > 5e-4, name
        if "bfloat16" in case:  # of what was learned, for single weights may go either way
            assert (by_two[name] - weight).norm() <= 0.3 * (weight - untrained[name]).norm(), name
        else:
            assert (by_two[name] - weight).abs().max() <= 1e-5, name


if __name__ == "__main__":
    a_rank(Path(sys.argv[1]))
