"""An environment with a tool goes through a training: rows, summary, report and traces have the calls."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.evaluation.compare import FILE, Comparison
from tasks.records import read_batch
from tasks.rollout.curriculum import Curriculum
from tasks.stages import read_metrics
from tasks.tracking.mlflow_store import client
from workflows.evaluation import compare

SETTINGS = {
    "rollout": {"environment_options": {"numbers": 3, "maximum": 9}, "max_tokens": 12, "curriculum": True},
    "evaluation": {"tasks": 64},
    "tiny": {"cold_start_steps": 80, "drill_steps": 0},
}


def test_its_calls_are_in_rows_report_and_traces(train: Callable[..., Path], home: Path) -> None:
    run = train("tools", environment="calculator", config=SETTINGS)
    found = json.loads((run / "summary.json").read_text())
    assert {"success", "tool_calls", "sandbox_seconds"} <= found["metrics"].keys()
    assert found["metrics"]["success"]["mean"] == found["reward"]
    assert found["baselines"]["exact"]["reward"] == 1 == found["baselines"]["exact"]["metrics"]["tool_calls"]["mean"]
    assert "tool calls" in (run / "report.html").read_text()
    called = 0
    for row in read_batch(run / "trajectories" / "00000").to_pylist():
        calls = [call for message in row["messages"] for call in message["tool_calls"] or ()]
        called += len(calls)
        assert dict(row["metrics"]).get("tool_calls", 0.0) == len(calls) or row["finish_reason"] == "truncated"
        assert all(json.loads(call["arguments"])["code"] or call["name"] for call in calls)
    assert called > 10
    # The second batch has the tasks that the record beside the first policy decides, and says so.
    batch, metrics = run / "trajectories" / "00001", read_metrics(run / "rollouts" / "00001")
    spec = get_environment("calculator", SETTINGS["rollout"]["environment_options"])  # type: ignore[arg-type]
    curriculum = Curriculum.read(run / "policies" / "00001")
    assert curriculum.weights.keys() <= {"2 numbers", "3 numbers"} and curriculum.weights
    assert curriculum.metrics == {name: metrics[name] for name in curriculum.metrics}
    rows = read_batch(batch).to_pylist()
    expected = {row["group_id"]: curriculum.task(spec, 0, 1, int(row["group_id"][-5:])).id for row in rows}
    assert {row["group_id"]: row["task_id"] for row in rows} == expected
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    experiment = mlflow.get_run(found["mlflow_run_id"]).info.experiment_id
    spans = [span for trace in mlflow.search_traces([experiment], "tags.run = 'tools'") for span in trace.data.spans]
    tools = [span for span in spans if span.span_type == "TOOL"]
    assert tools and all(span.name == "python" and span.outputs for span in tools)


def test_one_policy_is_compared_with_itself_without_the_tool(
    train: Callable[..., Path], home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = home / "runs" / "tools"
    if not run.exists():
        train("tools", environment="calculator", config=SETTINGS)
    policy, without = str(run / "policies" / "00002"), {"environment_options": {"tool": False}}
    given = {"policy": policy, "other": policy, "tasks": 64, "environment": "calculator"}
    longer = {"environment_options": {"numbers": 3, "maximum": 999}}  # of which none comes twice
    config = RolloutConfig.from_dict({**SETTINGS["rollout"], **longer, "max_tokens": 24})
    folder = Path(compare(**given, config=config, other_config=RolloutConfig.from_dict(without)))
    found = Comparison.from_json((folder / FILE).read_text())
    assert found.policy == found.other and found.tasks == 64
    ours, other = found.results["policy"], found.results["other"]
    assert "tool_calls" in ours.metrics and "tool_calls" not in other.metrics
    assert found.difference == pytest.approx(ours.reward.mean - other.reward.mean)
    assert found.in_words in " ".join(capfd.readouterr().out.split())
    assert Path(compare(**given, config=config)) != folder  # both with the tool
    with pytest.raises(ValueError, match="other_config makes other tasks; allowed: settings that change how the same"):
        compare(**given, config=config, other_config=RolloutConfig(environment_options={"numbers": 2}))
