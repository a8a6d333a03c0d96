"""What a whole training leaves for people, in an environment that has no metrics, baselines or figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from flytekit.types.directory import FlyteDirectory

from tasks.config import Run
from tasks.evaluation.records import EVALUATION, Evaluation, Mean, each_evaluation, read_evaluation
from tasks.evaluation.report import write_report
from tasks.evaluation.task import gather_evaluations
from tasks.history import HISTORY, Distribution, Iteration
from tasks.policy.checkpoint import write_manifest
from tasks.tracking import mlflow_run
from tasks.tracking.mlflow_store import client

AFTER = Evaluation(
    reward=Mean(0.75, 0.03),
    metrics={"invalid": Mean(0.125, 0.02), "truncated": Mean(0.0, 0.0), "error": Mean(0.0, 0.0)},
    policy_version=2,
    environment="evaluation.counting",
    tasks=512,
    seed=0,
    sampled_reward=Mean(0.5, 0.04),
    pass_at={"1": 0.5, "4": 0.625, "8": 0.6875},
)
BEFORE = replace(AFTER, policy_version=0, reward=Mean(0.25, 0.03))
FEW = Distribution(mean=0.5, quantiles=[0.0, 0.0, 0.5, 1.0, 1.0], counts=[(0.0, 32), (1.0, 32)])
HALF = Iteration(0, 64, 64, 0.5, 0.0, 0.0, {"rollout": 1.0, "train": 3.0}, FEW, FEW, FEW, {"finished": 64})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    Path("runs").mkdir()
    run_id = mlflow_run.open_run(uri=uri, name="monday", token="6f9c", parameters={"policy": "tiny"}, tags={})
    return Run(
        name="monday",
        token="6f9c",
        seed=0,
        environment="evaluation.counting",
        environment_url="",
        mlflow_run_id=run_id,
        tracking_uri=uri,
        iterations=2,
        policy="tiny",
    )


def evaluated(evaluation: Evaluation) -> Path:
    folder = Path(f"evaluations/{evaluation.policy_version}")
    folder.mkdir(parents=True)
    (folder / EVALUATION).write_text(json.dumps(evaluation.to_dict()))
    assert read_evaluation(folder) == evaluation
    return folder


def test_a_training_is_reported(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    policy = Path("policies/00002")
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    digest = write_manifest(policy, version=2, parent="aa").digest
    history = [HALF, replace(HALF, iteration=1, played=128)]
    (policy / HISTORY).write_text("".join(f"{line.to_json()}\n" for line in history))
    path = write_report(run, [evaluated(BEFORE), evaluated(AFTER)], policy, "s3://bucket/00002", 2)

    found = json.loads(path.read_text())
    assert found.pop("seconds") >= 0
    shares = {name: {"mean": mean, "ci95": ci} for name, mean, ci in (("truncated", 0, 0), ("error", 0, 0))}
    metrics = {"invalid": {"mean": 0.125, "ci95": 0.02}, **shares}
    assert found == {
        "environment": "evaluation.counting",
        "policy": "s3://bucket/00002",
        "iterations": 2,
        "episodes": 128,
        "mlflow_run_id": run.mlflow_run_id,
        "reward": 0.75,
        "reward_ci95": 0.03,
        "metrics": metrics,
        "pass_at": {"1": 0.5, "4": 0.625, "8": 0.6875},
        "baselines": {},
        "tasks": 512,
        "before": {
            "reward": 0.25,
            "reward_ci95": 0.03,
            "metrics": metrics,
            "pass_at": {"1": 0.5, "4": 0.625, "8": 0.6875},
        },
    }
    page = path.with_name("report.html").read_text()
    assert digest in page and "128 episodes, 2 policy versions" in page and "62.5%" in page
    pictures = {"learning_curve.png", "distributions.png", "stage_times.png"}
    assert {picture.name for picture in path.with_name("pictures").iterdir()} == pictures
    assert page.count("data:image/png;base64,") == 2 * len(pictures)

    mlflow = client(run.tracking_uri)
    artifacts = {artifact.path for artifact in mlflow.list_artifacts(run.mlflow_run_id)}
    assert {"summary.json", "report.html", "pictures"} <= artifacts
    known = mlflow.get_run(run.mlflow_run_id)
    assert known.info.status == "FINISHED"
    assert (
        "**Expected reward +0.750 ±0.030** an episode of evaluation.counting" in known.data.tags["mlflow.note.content"]
    )
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines() if "│" in line]
    assert ["expected reward", "+0.250 ±0.030", "+0.750 ±0.030"] in rows
    assert ["pass@8, sampled", "68.8%", "68.8%"] in rows and "errors" not in shown
    assert "policy  policies/00002" in shown and "report  runs/monday/report.html" in shown


def test_evaluations_of_a_graph_are_kept_in_one_folder_and_read_one_by_one(run: Run) -> None:
    first, *others = [evaluated(replace(AFTER, policy_version=version)) for version in (0, 1, 2, 3)]
    given = [FlyteDirectory(str(folder)) for folder in others]
    gathered = Path(gather_evaluations.task_function(run=run, evaluations=given, until=3).path)
    found = [read_evaluation(folder).policy_version for folder in each_evaluation([first, gathered])]
    assert found == [0, 1, 2, 3]
    for made, folder in zip(sorted(gathered.iterdir()), others, strict=True):
        assert (made / EVALUATION).read_bytes() == (folder / EVALUATION).read_bytes()
