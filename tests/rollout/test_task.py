"""The rollout's tasks, run by Flyte on this machine: what becomes of shards that fail, and of those that did not."""

import json
from pathlib import Path

import pytest

from small import SMALL
from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.records import read_batch
from tasks.rollout.worker import RolloutWorker
from tasks.tracking.mlflow_store import client

INPUTS = {"environment": "blackjack", "environment_url": "", "iterations": 1, "seed": 0}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An opened training in an empty folder."""
    from tasks.policy.named import Source
    from tasks.run.create import open_run

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    source = Source(given="tiny", uri="tiny")
    config = GrpoConfig().resolved(get_environment("blackjack").defaults)
    return open_run({**INPUTS, "run_name": "monday"}, GrpoConfig(), config, {}, source, {})


def sampled(run: Run, policy: Path, iteration: int = 0, **settings: object) -> Path:
    """The batch of a rollout by three workers."""
    from flytekit.types.directory import FlyteDirectory

    from tasks.rollout import task

    given = RolloutConfig(**{**SMALL["rollout"], "workers": 3, **settings})
    config = given.resolved(get_environment("blackjack").defaults)
    return Path(task.sampled(run, config, FlyteDirectory(str(policy)), iteration))


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The shards that fail when they have played."""
    from tasks.rollout import shards

    numbers: set[int] = set()
    sample_shard = shards.sample_shard

    def sample(worker: RolloutWorker, shard: int) -> object:
        played = sample_shard(worker, shard)
        if shard in numbers:
            raise OSError(f"no space left for shard {shard}")
        return played

    monkeypatch.setattr(shards, "sample_shard", sample)
    return numbers


def record(run: Run):
    return client(run.tracking_uri).get_run(run.mlflow_run_id)


def lost(run: Run) -> dict[str, str]:
    return {tag: why for tag, why in record(run).data.tags.items() if tag.startswith("lost.")}


def test_a_lost_shard_is_done_without_and_counted_where_it_may_be_lost(
    run: Run, tiny_policy: Path, spoiled: set[int], capfd
) -> None:
    spoiled.add(1)
    batch = sampled(run, tiny_policy, workers_needed=0.6)  # two of three
    spoiled.clear()
    groups = [int(group[-5:]) for group in read_batch(batch)["group_id"].unique().to_pylist()]
    assert groups == [number for number in range(24) if number % 3 != 1]
    metrics = json.loads((batch / "_metrics.json").read_text())
    assert (metrics["rollout/lost_shards"], metrics["rollout/lost_groups"]) == (1, 8)
    assert record(run).data.metrics["rollout/lost_shards"] == 1
    assert record(run).info.status == "RUNNING" and "failure" not in record(run).data.tags
    assert list(lost(run)) == ["lost.rollout.0.1"] and lost(run)["lost.rollout.0.1"] == "no space left for shard 1"
    assert "rollout 0: shard 1 of 3 is lost: " in capfd.readouterr().out
    # Only the join logs metrics: each number once.
    history = client(run.tracking_uri).get_metric_history(run.mlflow_run_id, "rollout/episodes")
    assert [(point.step, point.value) for point in history] == [(0, 16 * 4)]

    whole = json.loads((sampled(run, tiny_policy, 1, workers_needed=0.6) / "_metrics.json").read_text())
    assert (whole["rollout/lost_shards"], whole["rollout/episodes"]) == (0, 24 * 4)
    starts = [
        json.loads((s / "_metrics.json").read_text())["started"] for s in Path("runs/monday/shards/00001").iterdir()
    ]
    assert whole["started"] == min(starts) < max(starts)


def test_too_many_lost_shards_end_the_training_with_one_sentence(
    run: Run, tiny_policy: Path, spoiled: set[int]
) -> None:
    spoiled |= {0, 2}
    with pytest.raises(RuntimeError) as caught:
        sampled(run, tiny_policy, workers_needed=0.6)
    said = str(caught.value)
    assert (
        "rollout 0 lost 2 of 3 shards; allowed: 1. The last, shard 2: " in said and "no space left for shard 2" in said
    )
    assert "\n" not in record(run).data.tags["failure"] and record(run).data.tags["failure"] in said
    assert record(run).info.status == "FAILED"
    assert set(lost(run)) == {"lost.rollout.0.0", "lost.rollout.0.2"}

    spoiled.remove(0)  # what was lost once, and is no more, does not count
    batch = sampled(run, tiny_policy, workers_needed=0.6)
    assert set(lost(run)) == {"lost.rollout.0.2"}
    assert json.loads((batch / "_metrics.json").read_text())["rollout/lost_shards"] == 1


def test_a_rollout_that_failed_goes_on_and_one_that_is_done_is_found_again(
    run: Run, tiny_policy: Path, spoiled: set[int]
) -> None:
    spoiled.add(1)
    with pytest.raises(OSError, match="no space left for shard 1"):
        sampled(run, tiny_policy)
    assert record(run).info.status == "FAILED" and record(run).data.tags["failure"] == "no space left for shard 1"
    assert lost(run) == {}  # that is for those who may be lost
    assert not Path("runs/monday/rollouts").exists()
    spoiled.clear()
    batch = sampled(run, tiny_policy)
    written = {path: path.stat().st_mtime_ns for path in Path("runs/monday").rglob("*.arrow")}
    assert len(written) == 4  # three shards and the batch
    assert sampled(run, tiny_policy) == batch
    assert {path: path.stat().st_mtime_ns for path in Path("runs/monday").rglob("*.arrow")} == written
