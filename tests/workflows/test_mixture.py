"""Two environments at once, one of them a user's prompts and reward functions, through training and report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.records import read_batch
from tasks.tracking.mlflow_store import client

NUMBERS = Path(__file__).parents[1] / "odd_even" / "numbers.jsonl"
OPTIONS = {"data": str(NUMBERS), "reward": {"odd_even:exact": 1.0, "odd_even:brief": 0.5}, "answer": "answer"}
SETTINGS = {
    "rollout": {"environment_options": {"numbers": OPTIONS}, "max_tokens": 8, "max_turns": 4},
    "evaluation": {"tasks": 64},
}


def test_each_is_trained_evaluated_and_reported(
    train: Callable[..., Path], home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train("mixed", environment="lights=traffic_lights:2,numbers=prompts", config=SETTINGS)
    found = json.loads((run / "summary.json").read_text())
    parts = found["parts"]
    assert set(parts) == {"lights", "numbers"} == set(found["before"]["parts"])
    assert {"exact", "brief", "invalid"} <= parts["numbers"]["metrics"].keys() and "right" not in parts["numbers"][
        "metrics"
    ]
    exact, brief = (parts["numbers"]["metrics"][name]["mean"] for name in ("exact", "brief"))
    assert parts["numbers"]["reward"] == pytest.approx(exact + brief / 2)
    assert 0 <= parts["lights"]["metrics"]["right"]["mean"] <= 1
    low, high = sorted(of["reward"] for of in parts.values())
    assert low <= found["reward"] <= high

    rows = read_batch(run / "trajectories" / "00000").to_pylist()
    groups = {row["group_id"]: row["parts"] for row in rows}
    assert sorted({part for of in groups.values() for part in of}) == ["lights", "numbers"]
    assert all(row["parts"] == groups[row["group_id"]] for row in rows)  # a group is of one environment
    for part in ("lights", "numbers"):
        assert {row["outcome"].split(":")[0] for row in rows if row["parts"] == [part]} == {part}

    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    names = mlflow.get_run(found["mlflow_run_id"]).data.metrics
    assert {
        "eval.lights/reward",
        "eval.numbers/exact",
        "rollout.lights/raw_reward",
        "rollout.numbers/share",
    } <= names.keys()
    (version, *_) = mlflow.search_model_versions("name = 'grpo-lights-traffic_lights-2-numbers-prompts'")
    assert {"lights.reward", "numbers.reward"} <= version.tags.keys()

    page = (run / "report.html").read_text()
    assert "By part" in page and "numbers" in page and (run / "pictures" / "parts.png").is_file()
    shown = capfd.readouterr().out
    lines = [line.split("│")[0].strip() for line in shown.splitlines() if "│" in line]
    assert lines.index("lights") < lines.index("numbers") and lines.index("lights") > lines.index("invalid replies")
