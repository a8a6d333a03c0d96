"""A training with a curriculum that is interrupted and started again draws the tasks that it would have drawn."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import interrupted_lights
from small import SMALL
from tasks.records import read_batch
from tasks.rollout.curriculum import FILE, Curriculum
from tasks.seeds import training_index

ROOT = Path(__file__).parents[2]
SETTINGS = {**SMALL, "rollout": {**SMALL["rollout"], "curriculum": True}, "evaluation": {"tasks": 16}}


def test_a_resumed_training_draws_the_same_tasks(
    here: Callable[..., tuple[int, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(name: str) -> tuple[int, str]:
        words = ["--environment", "interrupted_lights", "--run_name", name, "--iterations", "3"]
        return here("run", str(ROOT / "workflows" / "grpo.py"), "grpo", *words, "--config", json.dumps(SETTINGS))

    whole, stopped = home / "runs" / "whole", home / "runs" / "stopped"
    status, shown = trained("whole")
    assert status == 0, shown
    monkeypatch.setenv(interrupted_lights.PLACE, str(stopped / "policies" / "00001" / FILE))
    assert trained("stopped")[0] != 0
    assert (stopped / "policies" / "00001").exists() and not (stopped / "rollouts" / "00001").exists()
    status, shown = trained("stopped")
    assert status == 0, shown
    for iteration in range(3):
        one, other = (run / "rollouts" / f"{iteration:05d}" for run in (whole, stopped))
        files = [{p.name: p.read_bytes() for p in batch.rglob("*.arrow")} for batch in (one, other)]
        assert files[0] == files[1] and files[0]
    # They are others than without a curriculum.
    rows = read_batch(stopped / "rollouts" / "00002").to_pylist()
    drawn = {int(row["group_id"][-5:]): row["task_id"] for row in rows}
    assert Curriculum.read(stopped / "policies" / "00002").weights.keys() == {"red", "amber", "green"}
    assert drawn != {n: interrupted_lights.SPEC.task("train", training_index(0, 2, n)).id for n in drawn}
