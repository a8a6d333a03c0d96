"""What a real small training left of its lineage: on disk, in MLflow, and as a person asks for it."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.lineage.records import LINEAGE, BatchLineage, PolicyLineage, batch_digest, read
from tasks.policy.checkpoint import read_manifest
from tasks.records import read_batch

ROOT = Path(__file__).parents[2]
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(here: Callable[..., tuple[int, str]]) -> Ask:
    """`pyflyte run workflows/lineage.py lineage`, from where the trainings were started."""
    return functools.partial(here, "run", str(ROOT / "workflows/lineage.py"), "lineage")


def mlflow_of(run: Path) -> tuple[Any, Any]:
    """The client, and the MLflow run of a training."""
    from tasks.tracking.mlflow_store import client

    mlflow = client(f"sqlite:///{run.parent / 'mlflow.db'}")
    return mlflow, mlflow.get_run(json.loads((run / "summary.json").read_text())["mlflow_run_id"])


def has_reward_variance(run: Path, iteration: int) -> set[str]:
    """Groups of a batch whose rewards differ."""
    rows = read_batch(run / "trajectories" / f"{iteration:05d}", ["group_id", "reward"]).to_pandas()
    return set(rows.groupby("group_id").filter(lambda group: group["reward"].nunique() > 1)["group_id"])


def test_batches_and_policies_name_each_other(reference_run: Path):
    infos = [read_manifest(reference_run / "policies" / f"{v:05d}") for v in range(3)]
    for iteration in range(2):
        for stage in ("rollouts", "scored", "trajectories"):
            batch = read(reference_run / stage / f"{iteration:05d}", BatchLineage)
            assert batch.iteration == iteration
            by = batch.sampled_by
            assert (by.version, by.digest, by.uri) == (iteration, infos[iteration].digest, f"policies/{iteration:05d}")
        made = read(reference_run / "policies" / f"{iteration + 1:05d}", PolicyLineage)
        assert (made.version, made.digest) == (iteration + 1, infos[iteration + 1].digest)
        assert made.parent == batch.sampled_by
        # Groups with reward variance are fewer than a training batch takes: none is left for the next stage.
        (use,) = made.batches
        assert (use.uri, use.iteration, use.age) == (f"trajectories/{iteration:05d}", iteration, 0)
        assert (use.episodes, use.groups, set(use.used)) == (24 * 4, 24, has_reward_variance(reference_run, iteration))
        assert use.digest == batch_digest(reference_run / "trajectories" / f"{iteration:05d}")
        assert use.sampled_by == batch.sampled_by
    first = read(reference_run / "policies" / "00000", PolicyLineage)
    assert (first.digest, first.origin, first.parent) == (infos[0].digest, "made on the spot: tiny, seed 0", None)
    for path in reference_run.rglob(LINEAGE):
        assert str(reference_run) not in path.read_text(), "a run folder may be moved"


def test_the_batches_are_datasets_of_the_mlflow_run(reference_run: Path):
    _, run = mlflow_of(reference_run)
    found = {}
    for given in run.inputs.dataset_inputs:
        tags = {tag.key: tag.value for tag in given.tags}
        assert tags["mlflow.data.context"] == "training"
        found[int(tags["iteration"])] = (given.dataset, tags["trained_policy"])
    assert sorted(found) == [0, 1]
    for iteration, (dataset, trained) in found.items():
        folder = reference_run / "trajectories" / f"{iteration:05d}"
        assert dataset.name == f"reference/trajectories/{iteration:05d}"
        assert dataset.digest == batch_digest(folder)[:36]
        assert json.loads(dataset.source) == {"uri": str(folder)}
        assert trained == str(iteration + 1)
        assert json.loads(dataset.profile)["episodes"] == 96


def test_episodes_of_groups_with_reward_variance_are_traces_of_the_mlflow_run(reference_run: Path):
    mlflow, run = mlflow_of(reference_run)
    traces = mlflow.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id)
    assert len(traces) == 2 * 2 * 4  # iterations, groups, episodes
    rows = {
        row["trajectory_id"]: row
        for iteration in range(2)
        for row in read_batch(reference_run / "trajectories" / f"{iteration:05d}").to_pylist()
    }
    for trace in traces:
        row = rows[trace.info.client_request_id]
        assert row["group_id"] in has_reward_variance(reference_run, int(trace.info.tags["iteration"]))
        feedback = {a.name: a.feedback.value for a in trace.info.assessments}
        expected = {"reward": row["raw_reward"], "advantage": row["advantage"], "age": 0, **dict(row["metrics"])}
        expected.pop("partial_format", None)
        assert feedback == pytest.approx(expected, abs=1e-6)
        assert len(trace.data.spans) == 1 + row["turns"]
        assert run.info.start_time <= trace.info.request_time <= run.info.end_time


def test_a_person_sees_the_chain_and_gets_it_as_json(reference_run: Path, ask: Ask):
    status, shown = ask("--policy", "runs/reference/policies/00002")
    assert status == 0, shown[-3000:]
    assert "\x1b" not in shown
    infos = [read_manifest(reference_run / "policies" / f"{v:05d}") for v in range(3)]
    used = [len(has_reward_variance(reference_run, iteration)) for iteration in range(2)]
    lines = [line for line in shown.splitlines() if line.startswith(("policy", "    from"))]
    assert [" ".join(line.split()) for line in lines] == [
        f"policy 2 {infos[2].digest[:12]} runs/reference/policies/00002",
        f"from {used[1]} of 24 groups (96 episodes) that policy 1 sampled, age 0 "
        f"{batch_digest(reference_run / 'trajectories' / '00001')[:12]} runs/reference/trajectories/00001",
        f"policy 1 {infos[1].digest[:12]} runs/reference/policies/00001",
        f"from {used[0]} of 24 groups (96 episodes) that policy 0 sampled, age 0 "
        f"{batch_digest(reference_run / 'trajectories' / '00000')[:12]} runs/reference/trajectories/00000",
        f"policy 0 {infos[0].digest[:12]} runs/reference/policies/00000 made on the spot: tiny, seed 0",
    ]
    found = json.loads((reference_run.parent / "lineage" / f"{infos[2].digest[:12]}.json").read_text())
    assert [policy["digest"] for policy in found["policies"]] == [info.digest for info in reversed(infos)]
    assert found["trajectory"] is None


def test_a_person_asks_where_one_trajectory_comes_from(reference_run: Path, ask: Ask):
    group = min(has_reward_variance(reference_run, 1))
    rows = read_batch(reference_run / "trajectories" / "00001").to_pylist()
    row = next(row for row in rows if row["trajectory_id"] == f"{group}-2")
    digest = read_manifest(reference_run / "policies" / "00002").digest
    (version,) = mlflow_of(reference_run)[0].search_model_versions(f"tags.digest = '{digest}'")
    status, text = ask("--policy", f"models:/grpo-blackjack/{version.version}", "--trajectory", f"{group}-2")
    assert status == 0, text[-3000:]
    shown = " ".join(text.split())
    sampler = read_manifest(reference_run / "policies" / "00001")
    for line in (
        f"trajectory {group}-2",
        f"sampled by policy 1, {sampler.digest[:12]}, runs/reference/policies/00001",
        f"task {row['task_id']}, seed {row['seed']}",
        f"reward {row['reward']:+g}, {row['finish_reason']}",
        f"advantage {row['advantage']:+g}",
        "learned by policy 2",
        *(" ".join(f"{message['role']} {message['content']}".split()) for message in row["messages"]),
    ):
        assert line in shown
    status, wrong = ask("--policy", "runs/reference/policies/00001", "--trajectory", f"{group}-2")
    assert status != 0
    last = wrong.strip().splitlines()[-1]
    assert f'trajectory is "{group}-2"; allowed: one of the iterations that this policy comes from, 0 to 0.' in last


def test_with_reuse_a_policy_names_older_batches_and_removed_versions(train, ask: Ask):
    config = {
        "buffer": {"groups": 6, "reuse": 2},
        "retention": {"last": 3, "every": 9},
        "tracking": {"trace_groups": 0},
    }
    run = train("reused", iterations=4, config=config, policy="tiny", lag=1)
    ages = {v: [use.age for use in read(run / "policies" / f"{v:05d}", PolicyLineage).batches] for v in range(1, 5)}
    assert all(ages.values())
    assert ages[1] == [0] and max(ages[4]) >= 1  # with lag 1 a batch is a version old when it is trained on
    for version in range(1, 5):
        made = read(run / "policies" / f"{version:05d}", PolicyLineage)
        assert sum(len(use.used) for use in made.batches) == 6
        for use in made.batches:
            assert use.sampled_by.version == max(0, use.iteration - 1)
            assert use.age == version - 1 - use.sampled_by.version
    mlflow, record = mlflow_of(run)
    assert len(record.inputs.dataset_inputs) == 4
    assert mlflow.search_traces(locations=[record.info.experiment_id], run_id=record.info.run_id) == []
    _, shown = ask("--policy", "runs/reused/policies/00004")
    states = [line.endswith("(weights removed by its run)") for line in shown.splitlines() if line.startswith("policy")]
    assert states == [False, False, False, True, False]


def test_a_run_that_begins_with_a_policy_of_another_says_so(reference_run: Path, train):
    run = train(
        "onward", iterations=1, policy="runs/reference/policies/00002", config={"tracking": {"trace_groups": 1}}
    )
    first = read(run / "policies" / "00000", PolicyLineage)
    source = read_manifest(reference_run / "policies" / "00002")
    assert first.origin == "a copy of runs/reference/policies/00002"
    assert first.parent is not None and first.parent.digest == source.digest and first.parent.version == 2
    assert first.parent.uri == "../reference/policies/00002"
    assert sorted(path.name for path in (run / "policies" / "00000").glob("_*")) == [LINEAGE]
