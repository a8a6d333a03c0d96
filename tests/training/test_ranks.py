"""Several ranks against one: the same scores, losses, metrics and weights, for every way to share the work.

    python tests/training/test_ranks.py FOLDER

This file is also what the ranks run: the same function that the test calls in its own process, a group of one. They are
forked by torchrun's agent from a process that has imported what they need.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from objectives import objective, optimizer_steps
from tasks.config import AlgorithmConfig, LoraConfig, TrainingConfig
from tasks.launcher import world_size
from tasks.policy.checkpoint import write_manifest
from tasks.training import titan
from tasks.training.packing import flat_samples
from tasks.training.ranks import atomic_directory_of_ranks
from tasks.training.train import batch_loss
from tasks.training.trainer import Trainer

LENGTHS = (12, 9, 16, 14, 15)  # no two of them fit in a row of 16
STEPS = ([0, 1, 2, 3, 4], [1], [4, 2, 0])  # 5, 1 and 3 rows: the second rank's last row is empty, once its only one
# Adam divides a gradient by its own size: where it is only rounding, 1e-8 beside 1e-2 elsewhere, rounding decides the
# step, which is up to the learning rate, here that of a run.
TRAINING = TrainingConfig(seq_len=16, rows=2, score_rows=2, learning_rate=5e-4, warmup_iterations=0)
LORA = LoraConfig(rank=3, alpha=48.0)  # not divisible by two ranks
GRPO = objective(entropy_coefficient=0.01)
TRUNCATED = objective(importance_sampling="truncate", importance_sampling_level="sequence")
CASES: dict[str, tuple[str, AlgorithmConfig, dict[str, Any]]] = {  # which policy, its loss, and how it is trained
    "grpo": ("untied", GRPO, {}),
    "gspo": ("tied", objective("gspo"), {}),
    "biased": ("qwen2", objective("gspo"), {}),
    "importance sampling": ("untied", TRUNCATED, {}),
    "adapters": ("qwen2", GRPO, {"lora": LORA}),
    "bfloat16": ("untied", GRPO, {"dtype": "bfloat16"}),
    "tensor": ("untied", GRPO, {"tensor_parallel": 2}),
    "tensor tied": ("tied", objective("gspo"), {"tensor_parallel": 2}),
    "tensor llama": ("llama", GRPO, {"tensor_parallel": 2}),
    "tensor adapters": ("qwen2", GRPO, {"lora": LORA, "tensor_parallel": 2}),
    "tensor bfloat16": ("untied", GRPO, {"dtype": "bfloat16", "tensor_parallel": 2}),
    "context": ("untied", GRPO, {"context_parallel": 2}),
    "context tied": ("tied", objective("gspo"), {"context_parallel": 2}),
    "context llama": ("llama", GRPO, {"context_parallel": 2}),
    "context adapters": ("qwen2", GRPO, {"lora": LORA, "context_parallel": 2}),
    "context bfloat16": ("untied", GRPO, {"dtype": "bfloat16", "context_parallel": 2}),
}
ON_FOUR: dict[str, tuple[str, AlgorithmConfig, dict[str, Any]]] = {
    "data and tensor": ("untied", GRPO, {"tensor_parallel": 2}),
    "data and context": ("tied", GRPO, {"context_parallel": 2}),
    "tensor and context": ("qwen2", GRPO, {"tensor_parallel": 2, "context_parallel": 2}),
    "data and tensor, adapters": ("qwen2", GRPO, {"lora": LORA, "tensor_parallel": 2}),
}
ALL = CASES | ON_FOUR


def three_steps(folder: Path, case: str, target: Path) -> dict[str, Any]:
    """Train a policy on the training batch, both in `folder`, export it to `target`; returns what was measured."""
    name, algorithm, training = ALL[case]
    training_batch, trainer = feather.read_table(folder / "training_batch"), open_trainer(folder / name, **training)
    data = flat_samples(training_batch)
    before, loss = trainer.score(data), batch_loss(training_batch, data, trainer, algorithm)
    steps = [trainer.step(data, members, loss) for members in STEPS]
    target.mkdir(exist_ok=True)
    trainer.export(folder / name, target)
    return {"before": before.tolist(), "steps": steps, "after": trainer.score(data).tolist()}


def open_trainer(policy: Path, **training: Any) -> Trainer:
    world = world_size()
    config = TRAINING.replace(ranks=world if world > 1 else 4, **training)
    config = config if world > 1 else config.on_one_rank()
    return Trainer(policy, config, temperature=0.8, schedule_steps=3)


def two_steps(folder: Path, target: Path) -> None:
    """Write the state of a trainer after two steps to `target`."""
    training_batch, trainer = feather.read_table(folder / "training_batch"), open_trainer(folder / "untied")
    data = flat_samples(training_batch)
    for members in STEPS[:2]:
        trainer.step(data, members, batch_loss(training_batch, data, trainer, GRPO))
    with atomic_directory_of_ranks(target) as made:
        trainer.save_state(made)


def the_third(folder: Path, state: Path, **training: Any) -> dict[str, Any]:
    """The third step, from `state`."""
    training_batch, trainer = feather.read_table(folder / "training_batch"), open_trainer(folder / "untied", **training)
    trainer.load_state(state)
    data = flat_samples(training_batch)
    step = trainer.step(data, STEPS[2], batch_loss(training_batch, data, trainer, GRPO))
    return {"steps": [optimizer_steps(trainer), step], "after": trainer.score(data).tolist()}


def masks_are_equal(ranks: int) -> bool:
    """Whether the BlockMask for GPUs has the same entries as the dense mask, for this rank's queries."""
    T = ranks * 128
    subtree_end_BT = torch.arange(T) + torch.randint(1, 60, (2, T), generator=torch.Generator().manual_seed(0))
    mesh = init_device_mesh("cpu", (ranks,))
    dense = titan.attention_masks(subtree_end_BT, mesh)
    titan.ON_CPU = False
    with torch.compiler.set_stance("force_eager"):
        sparse = titan.attention_masks(subtree_end_BT, mesh)
    titan.ON_CPU = True
    b, q, k = torch.arange(2)[:, None, None], torch.arange(T // ranks)[None, :, None], torch.arange(T)[None, None, :]
    return sparse.seq_lengths == (T // ranks, T) and torch.equal(sparse.mask_mod(b, 0, q, k), dense[:, 0])


def a_rank(folder: Path) -> None:
    """The work of one process, in a folder of its own, like the disk of a node."""
    rank, world = int(os.environ["RANK"]), world_size()
    (folder / f"node-{rank}").mkdir(exist_ok=True)
    os.chdir(folder / f"node-{rank}")
    for case in CASES if world == 2 else ON_FOUR:
        found = three_steps(folder, case, folder / case)
        assert torch.distributed.get_world_size() == world
        (folder / f"{case}-{rank}.json").write_text(json.dumps(found))
    if world == 2:
        two_steps(folder, Path("state"))
        thirds = [the_third(folder, folder / "state", **shape) for shape in ({}, {"tensor_parallel": 2})]
        found = {"thirds": thirds, "masks": masks_are_equal(world)}
        (folder / f"found-{rank}.json").write_text(json.dumps(found))


def start_ranks(folder: Path) -> None:
    """Two ranks, and when they have ended four: real processes over the loopback interface."""
    for ranks in (2, 4):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=f"{ranks} ranks",
            max_restarts=0,
            start_method="fork",
        )
        elastic_launch(config, a_rank)(folder)


def make_training_batch(policy: Path) -> pa.Table:
    """Five trajectories, sampled by a policy near `policy`: some of the ratios are clipped."""
    draw, offsets = np.random.default_rng(0), np.cumsum([0, *LENGTHS])
    mask = draw.random(offsets[-1]) < 0.6
    mask[offsets[:-1]] = False

    def column(values: np.ndarray) -> list[np.ndarray]:
        return np.split(values, offsets[1:-1])

    tokens = {
        "trajectory_id": list("abcde"),
        "token_ids": column(draw.integers(3, 300, offsets[-1])),
        "loss_mask": column(mask),
    }
    scores = open_trainer(policy).score(flat_samples(pa.table(tokens)))
    shift = np.repeat(np.float32([0.1, -0.3, 0.3, -0.1, 0.0]), LENGTHS) * mask
    columns = {**tokens, "logprobs": column(scores + shift), "reference_logprobs": column(scores - 2 * shift)}
    return pa.table({**columns, "advantage": np.float32([0.5, 1.0, -1.0, -0.5, 0.25])})


@pytest.fixture(scope="module")
def folder(newborn_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policies, a training batch, and the state of a trainer on one rank."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from checkpoints import make_checkpoint  # not at the top: the ranks do not need it

    folder = tmp_path_factory.mktemp("ranks")
    for name in ("untied", "tied"):
        shutil.copytree(newborn_policy, folder / name)
    shape = {**json.loads((folder / "tied" / "config.json").read_text()), "tie_word_embeddings": True}
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(folder / "tied")
    write_manifest(folder / "tied", version=0, parent="")
    for name in ("qwen2", "llama"):
        make_checkpoint(newborn_policy, folder / name, {"model_type": name})
    feather.write_feather(make_training_batch(newborn_policy), folder / "training_batch")
    two_steps(folder, folder / "state")
    return folder


@pytest.fixture(scope="module")
def by_ranks(folder: Path) -> Path:
    """The folder with the results of two ranks, and of four."""
    # Modules of these tests, and where torchrun writes its logs.
    paths = {"PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **paths},
    ) as process:
        try:
            said, _ = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its ranks
            raise
    assert process.returncode == 0, said
    return folder


# How far several ranks may be from one: the rounding of float32; in bfloat16, that of the gradients of each microbatch.
NEAR = {"bfloat16": 5e-3}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one_does(by_ranks: Path, tmp_path: Path, case: str) -> None:
    compare(by_ranks, tmp_path, case, ranks=2)


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks_train_as_one_does(by_ranks: Path, tmp_path: Path, case: str) -> None:
    compare(by_ranks, tmp_path, case, ranks=4)


def test_a_training_continues_with_more_ranks_and_with_fewer(by_ranks: Path) -> None:
    expected = the_third(by_ranks, by_ranks / "state")
    steps, step = expected["steps"]
    by_two = [json.loads((by_ranks / f"found-{rank}.json").read_text())["thirds"] for rank in (0, 1)]
    for found in (*by_two[0], *by_two[1], the_third(by_ranks, by_ranks / "node-0" / "state")):
        assert found["steps"] == [steps, pytest.approx(step, rel=1e-5, abs=1e-6)]
        assert found["after"] == pytest.approx(expected["after"], abs=1e-5)
    assert steps == 3
    whole = three_steps(by_ranks, "grpo", by_ranks / "whole")
    assert expected == {"steps": [3, whole["steps"][2]], "after": whole["after"]}


def test_files_of_another_node_are_sent_to_the_first(by_ranks: Path) -> None:
    (written,) = (by_ranks / "node-0" / "state").iterdir()
    assert {".metadata", "__0_0.distcp", "__1_0.distcp"} == {path.name for path in written.iterdir()}
    assert not (by_ranks / "node-1" / "state").exists()


def test_the_mask_of_a_gpu_is_divided_as_that_of_a_cpu(by_ranks: Path) -> None:
    assert [json.loads((by_ranks / f"found-{rank}.json").read_text())["masks"] for rank in (0, 1)] == [True, True]


def compare(folder: Path, tmp_path: Path, case: str, ranks: int) -> None:
    expected, near = three_steps(folder, case, tmp_path), NEAR.get(ALL[case][2].get("dtype"), 1e-5)
    assert all(step["grad_norm"] > 0.01 for step in expected["steps"])
    if case != "importance sampling":  # its ratio starts at 1
        assert 0 < expected["steps"][0]["clip_share"] < 1
    for rank in range(ranks):
        found = json.loads((folder / f"{case}-{rank}.json").read_text())
        assert found["before"] == pytest.approx(expected["before"], abs=near)
        for step, wanted in zip(found["steps"], expected["steps"], strict=True):
            assert step == pytest.approx(wanted, rel=near, abs=near / 10)
        assert found["after"] == pytest.approx(expected["after"], abs=near)
    apart = np.subtract(expected["after"], expected["before"])
    assert np.abs(apart).max() > 1e-2

    by_all, by_one, untrained = (
        load_file(policy / "model.safetensors") for policy in (folder / case, tmp_path, folder / ALL[case][0])
    )
    assert by_all.keys() == by_one.keys() == untrained.keys()
    for name, weight in by_one.items():
        if "adapters" in case and not name.endswith("_proj.weight"):
            assert torch.equal(by_all[name], untrained[name]) and torch.equal(weight, untrained[name]), name
            continue
        assert (weight - untrained[name]).abs().max() > 5e-4, name
        if "bfloat16" in case:  # as a whole, as single weights may go either way
            assert (by_all[name] - weight).norm() <= 0.3 * (weight - untrained[name]).norm(), name
        else:
            assert (by_all[name] - weight).abs().max() <= 1e-5, name


if __name__ == "__main__":
    start_ranks(Path(sys.argv[1]))
