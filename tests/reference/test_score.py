"""The frozen policy's log-probabilities, only where they are needed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.config import RolloutConfig, TrainingConfig
from tasks.records import SAMPLE, Sample, to_table
from tasks.reference.score import score_batch
from tasks.training.packing import flat_samples
from tasks.training.trainer import Trainer


def batch(rewards: dict[str, list[float]]) -> pa.Table:
    draw = np.random.default_rng(0)
    rows = [
        Sample(
            trajectory_id=f"{group}-{i}",
            sample=0,
            group_id=group,
            policy_version=0,
            task_id="0",
            seed=0,
            token_ids=draw.integers(3, 300, 5 + i).tolist(),
            loss_mask=[False] * 3 + [True] * (2 + i),
            logprobs=[0.0] * (5 + i),
            reward=reward,
            raw_reward=reward,
            turns=1,
            invalid=False,
            finish_reason="finished",
            outcome="",
            error="",
            metrics=[],
            messages=[],
        )
        for group, members in rewards.items()
        for i, reward in enumerate(members)
    ]
    return to_table(rows)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_only_groups_with_reward_variance_are_scored(newborn_policy: Path, temperature: float) -> None:
    table = batch({"a": [1.0, 1.0, 1.0], "b": [1.0, -1.0, 0.0]})
    scored, metrics = score_batch(table, newborn_policy, TrainingConfig(), RolloutConfig(temperature=temperature))
    assert metrics["reference/scored"] == 3
    assert scored.select(SAMPLE.names).equals(table)
    column = scored["reference_logprobs"].to_pylist()
    assert column[:3] == [None] * 3
    alone = Trainer(newborn_policy, TrainingConfig(), temperature=temperature, schedule_steps=1)
    data = flat_samples(table.slice(3))
    expected = np.split(alone.score(data), data.offsets_R[1:-1])
    for values, wanted in zip(column[3:], expected, strict=True):
        assert values[:3] == [0, 0, 0] and max(values[3:]) < 0
        assert values == pytest.approx(wanted, abs=1e-5)


def test_a_trajectory_in_two_samples_is_scored_in_both_and_counts_once(newborn_policy: Path) -> None:
    table = batch({"b": [1.0, 1.0, -1.0]})
    ids = pa.array(["b-0", "b-0", "b-1"])
    table = table.set_column(0, "trajectory_id", ids)
    scored, metrics = score_batch(table, newborn_policy, TrainingConfig(), RolloutConfig())
    assert metrics["reference/scored"] == 2
    assert all(max(values[3:]) < 0 for values in scored["reference_logprobs"].to_pylist())


def test_a_batch_without_reward_variance(newborn_policy: Path) -> None:
    scored, metrics = score_batch(batch({"a": [1.0, 1.0]}), newborn_policy, TrainingConfig(), RolloutConfig())
    assert scored["reference_logprobs"].to_pylist() == [None, None]
    assert metrics["reference/scored"] == 0
