"""An environment that a user could have written goes through every ordinary command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.records import read_batch
from tasks.tracking.mlflow_store import client

# A module on the path, with a SPEC: rewards between 0 and 1 over three steps, no optimum.
NAME = "traffic_lights"
SETTINGS = {"algorithm": {"kl_coefficient": 0}, "evaluation": {"tasks": 64}}


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    return home / "runs" / "lights"


def test_it_is_trained_evaluated_and_reported(train: Callable[..., Path], trained: Path) -> None:
    run = train("lights", environment=NAME, config=SETTINGS)
    assert run == trained
    found = json.loads((run / "summary.json").read_text())
    assert (found["environment"], found["iterations"], found["episodes"]) == (NAME, 2, 2 * 24 * 4)
    assert 0 <= found["reward"] <= 1 and found["reward_ci95"] > 0
    assert set(found["metrics"]) == {"right", "invalid", "truncated", "error"}
    assert found["metrics"]["right"].keys() == {"mean", "ci95"}
    # Guessing is right one time in three, a third of a point each.
    assert found["baselines"]["guess"]["reward"] == pytest.approx(1 / 3, abs=0.1)
    assert found["baselines"]["guess"]["metrics"]["right"]["mean"] == pytest.approx(1 / 3, abs=0.1)
    assert 0 <= found["pass_at"]["1"] <= found["pass_at"]["8"] <= 1
    assert not {"regret", "win_rate", "games"} & found.keys()
    page = (run / "report.html").read_text()
    assert "GRPO in traffic_lights" in page and "right answers" in page and "optimum" not in page
    assert {p.name for p in (run / "pictures").iterdir()} == {
        "learning_curve.png",
        "distributions.png",
        "stage_times.png",
    }
    rows = read_batch(run / "trajectories" / "00000").to_pylist()
    for row in rows:
        steps = [m["reward"] for m in row["messages"] if m["role"] == "assistant" and m["reward"] is not None]
        assert row["raw_reward"] == pytest.approx(sum(steps), abs=1e-6)
        assert row["outcome"] == ("safe" if row["raw_reward"] > 0.99 else "crash") or row["finish_reason"] != "finished"
    assert {0, 1 / 3, 2 / 3} & {round(row["raw_reward"], 6) for row in rows} != set()


def test_its_episodes_and_versions_are_in_mlflow(trained: Path, home: Path) -> None:
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    run_id = json.loads((trained / "summary.json").read_text())["mlflow_run_id"]
    names = mlflow.get_run(run_id).data.metrics
    assert {"eval/reward", "eval/right", "eval/guess", "eval/pass_at_8", "environment/right"} <= names.keys()
    experiment = mlflow.get_run(run_id).info.experiment_id
    traces = mlflow.search_traces([experiment], "tags.run = 'lights'")
    assert {trace.info.tags["outcome"] for trace in traces} <= {"safe", "crash", "invalid", "truncated"}
    assert len(traces) > 0
    (version, *_) = mlflow.search_model_versions(f"name = 'grpo-{NAME}'")
    assert {"reward", "right", "tasks"} <= version.tags.keys()


def test_its_policies_are_compared_and_promoted(trained: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workflows.evaluation import compare
    from workflows.promotion import promote

    monkeypatch.chdir(home)
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
    first, last = (str(trained / "policies" / f"{version:05d}") for version in (0, 2))
    folder = Path(str(compare(policy=last, other=first, tasks=48, environment=NAME)))
    found = json.loads((folder / "comparison.json").read_text())
    assert found["tasks"] == found["better"] + found["worse"] + found["same"] == 48
    assert set(found["baselines"]) == {"guess"}
    assert promote(model=f"grpo-{NAME}", version=1).startswith(f"version 1 of grpo-{NAME} is champion, the first one")
