"""One training stage on a window: what it refuses, what it leaves, what it writes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.buffer.window import take
from tasks.config import AlgorithmConfig, GrpoConfig, TrainingConfig
from tasks.policy.checkpoint import digest, read_info
from tasks.records import ADVANTAGE, REFERENCE, Trajectory, to_table, with_column
from tasks.training.packing import ragged
from tasks.training.train import next_policy, train_on
from tasks.training.trainer import Trainer

TRAINING = TrainingConfig(epochs=2, minibatch_size=4, learning_rate=1e-2, warmup_iterations=0, rows=2, seq_len=32)
CONFIG = GrpoConfig.from_dict({"training": TRAINING.to_dict(), "rollout": {"max_turns": 4, "max_tokens": 4}})
ALGORITHM = AlgorithmConfig()


def open_trainer(policy: Path) -> Trainer:
    return Trainer(policy, TRAINING, temperature=1.0, schedule_steps=10)


def window(policy: Path, versions: Sequence[int] = (0,) * 8, shift: float = 0.0, seed: int = 0) -> pa.Table:
    """Eight trajectories of 4 to 11 tokens in groups of two; the generator's log-probabilities are the policy's own,
    plus `shift`.
    """
    draw = np.random.default_rng(seed)
    rows = []
    for i, version in enumerate(versions):
        length, prompt = 4 + i, 2
        rows.append(
            Trajectory(
                trajectory_id=f"{i // 2}-{i % 2}",
                group_id=str(i // 2),
                policy_version=version,
                seed=i // 2,
                token_ids=draw.integers(3, 300, length).tolist(),
                action_mask=[False] * prompt + [True] * (length - prompt),
                logprobs=[0.0] * length,
                reward=float(i % 2),
                turns=1,
                invalid=False,
                finish_reason="finished",
                messages=[],
            )
        )
    table = to_table(rows)
    data = ragged(table)
    scores = open_trainer(policy).score(data)
    scores[data.action_mask_N] += shift
    columns = np.split(scores, data.offsets_R[1:-1])
    place = table.column_names.index("logprobs")
    table = table.set_column(place, "logprobs", pa.array(columns, table["logprobs"].type))
    table = with_column(table, REFERENCE, columns)
    return with_column(table, ADVANTAGE, [-0.5, 0.5] * 4)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    held = trainer.model.state_dict().values()  # which, unlike parameters(), also gathers after a mere forward
    return [weight.full_tensor().clone() if hasattr(weight, "full_tensor") else weight.clone() for weight in held]


def unchanged(trainer: Trainer, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(weights(trainer), before, strict=True))


def test_a_fresh_window_is_trained_on(newborn_policy: Path) -> None:
    trainer = open_trainer(newborn_policy)
    before = weights(trainer)
    metrics = train_on(window(newborn_policy), trainer, ALGORITHM, policy_version=0, seed=0)
    assert metrics["train/steps"] == trainer.steps == 4  # 2 epochs of 8 trajectories in minibatches of 4
    assert metrics["train/mismatch_mean"] < 1e-6
    assert metrics["train/learning_rate"] == pytest.approx(1e-2)
    assert trainer.learning_rate < 1e-2  # one step of the schedule an iteration
    assert not unchanged(trainer, before)


def test_training_raises_what_was_better_than_its_group(newborn_policy: Path) -> None:
    trainer, table = open_trainer(newborn_policy), window(newborn_policy)
    data = ragged(table)
    before = trainer.score(data)
    train_on(table, trainer, AlgorithmConfig(kl_coefficient=0), policy_version=0, seed=0)
    gains = [float(part.sum()) for part in np.split(trainer.score(data) - before, data.offsets_R[1:-1])]
    assert all(gains[i + 1] > gains[i] for i in range(0, 8, 2))


def test_a_generator_of_other_weights_stops_the_run(newborn_policy: Path) -> None:
    trainer = open_trainer(newborn_policy)
    before = weights(trainer)
    shifted = window(newborn_policy, versions=[3] * 8, shift=0.1)
    with pytest.raises(ValueError) as caught:
        train_on(shifted, trainer, ALGORITHM, policy_version=3, seed=0)
    assert str(caught.value) == (
        "mismatch between generator and trainer on policy version 3 is 0.1 nats a token; "
        "allowed: at most algorithm.max_mismatch = 0.02."
    )
    assert unchanged(trainer, before) and trainer.steps == 0
    metrics = train_on(shifted, trainer, AlgorithmConfig(max_mismatch=0.11), policy_version=3, seed=0)
    assert metrics["train/mismatch_mean"] == pytest.approx(0.1, abs=1e-5)


def test_trajectories_of_older_policies_are_allowed_to_differ(newborn_policy: Path) -> None:
    old = window(newborn_policy, versions=[2] * 8, shift=0.1)
    metrics = train_on(old, open_trainer(newborn_policy), ALGORITHM, policy_version=3, seed=0)
    assert "train/mismatch_mean" not in metrics
    # In a mixed window the mean is over the fresh ones only; half of it is old and off by 0.1.
    mixed = pa.concat_tables([window(newborn_policy, versions=[3] * 8), old])
    metrics = train_on(mixed, open_trainer(newborn_policy), ALGORITHM, policy_version=3, seed=0)
    assert metrics["train/mismatch_mean"] < 1e-6


@pytest.mark.parametrize("empty", [lambda table: table.slice(0, 0), lambda table: take([table, table], [])])
def test_a_window_without_rows_takes_no_step(newborn_policy: Path, empty: Callable[[pa.Table], pa.Table]) -> None:
    trainer = open_trainer(newborn_policy)
    before, rate = weights(trainer), trainer.learning_rate
    metrics = train_on(empty(window(newborn_policy)), trainer, ALGORITHM, policy_version=0, seed=0)
    assert unchanged(trainer, before)
    assert metrics["train/steps"] == trainer.steps == 0
    assert "train/loss" not in metrics and "train/mismatch_mean" not in metrics
    assert trainer.learning_rate < rate  # the iteration counts all the same


@pytest.mark.parametrize(("version", "error"), [(3, ValueError), (2, FloatingPointError)])
def test_a_nan_from_the_generator_stops_before_anything_is_written(
    newborn: Callable[[int], Path], tmp_path: Path, version: int, error: type[Exception]
) -> None:
    policy = newborn(3)  # its version is 3: rows of version 3 are fresh, those of 2 are not checked for a mismatch
    before = digest(policy)
    with pytest.raises(error, match="policy version 3"):
        next_policy(
            window(policy, versions=[version] * 8, shift=float("nan")),
            policy,
            None,
            CONFIG,
            run_token="nan",
            seed=0,
            iterations=2,
            target=tmp_path / "policy",
            target_state=tmp_path / "state",
        )
    assert list(tmp_path.iterdir()) == []
    assert digest(policy) == before


def two_stages(first: Path, folder: Path, tokens: tuple[str, str]) -> Path:
    policy, state = first, None
    for version, token in enumerate(tokens):
        target, target_state = folder / f"policy-{version + 1}", folder / f"state-{version + 1}"
        next_policy(
            window(policy, versions=[version] * 8, seed=version),
            policy,
            state,
            CONFIG,
            run_token=token,
            seed=0,
            iterations=3,
            target=target,
            target_state=target_state,
        )
        policy, state = target, target_state
    return policy


def test_a_run_that_went_on_from_its_files_writes_the_same_bytes(tiny_policy: Path, tmp_path: Path) -> None:
    in_one_go = two_stages(tiny_policy, tmp_path / "one", ("a", "a"))  # the second finds the trainer of the first
    from_files = two_stages(tiny_policy, tmp_path / "two", ("b", "c"))  # no trainer of the run "c" is at hand
    assert (in_one_go / "model.safetensors").read_bytes() == (from_files / "model.safetensors").read_bytes()
    assert (in_one_go / "policy.json").read_bytes() == (from_files / "policy.json").read_bytes()


def test_the_next_policy_names_its_parent(tiny_policy: Path, tmp_path: Path) -> None:
    last = read_info(two_stages(tiny_policy, tmp_path, ("d", "d")))
    middle = read_info(tmp_path / "policy-1")
    assert (middle.version, middle.parent) == (1, read_info(tiny_policy).digest)
    assert (last.version, last.parent) == (2, middle.digest)
    assert len({read_info(tiny_policy).digest, middle.digest, last.digest}) == 3


def test_the_seed_decides_the_minibatches(tiny_policy: Path) -> None:
    def trained(seed: int) -> list[torch.Tensor]:
        trainer = open_trainer(tiny_policy)
        train_on(window(tiny_policy), trainer, ALGORITHM, policy_version=0, seed=seed)
        return weights(trainer)

    first, again, other = trained(0), trained(0), trained(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
