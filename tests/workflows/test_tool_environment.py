"""An environment with a tool goes through a training: rows, summary, report and traces have the calls."""

import json
from collections.abc import Callable
from pathlib import Path

from tasks.records import read_batch
from tasks.tracking.mlflow_store import client

SETTINGS = {
    "rollout": {"environment_options": {"numbers": 2, "maximum": 9}, "max_tokens": 12},
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
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    experiment = mlflow.get_run(found["mlflow_run_id"]).info.experiment_id
    spans = [span for trace in mlflow.search_traces([experiment], "tags.run = 'tools'") for span in trace.data.spans]
    tools = [span for span in spans if span.span_type == "TOOL"]
    assert tools and all(span.name == "python" and span.outputs for span in tools)
