"""Which tasks a curriculum draws, by hand: counts of groups, weights of kinds, shares of what is drawn."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.environments.catalog import get_environment
from tasks.rollout.curriculum import FILE, Curriculum, record
from tasks.seeds import training_index

SPEC = get_environment("calculator", {"numbers": 4, "maximum": 9})


def batch(groups: dict[str, tuple[list[str], list[float | None]]]) -> pa.Table:
    rows = [
        {"group_id": group, "parts": parts, "reward": reward}
        for group, (parts, rewards) in groups.items()
        for reward in rewards
    ]
    types = [("group_id", pa.string()), ("parts", pa.list_(pa.string())), ("reward", pa.float32())]
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def test_groups_and_those_with_variance_are_counted_by_kind(tmp_path: Path) -> None:
    first = {"0-0": (["sums", "easy"], [1.0, 1.0]), "0-1": (["sums", "hard"], [0.0, 1.0])}
    second = {"1-0": (["sums", "hard"], [0.0, 0.0]), "1-1": (["sums", "easy"], [1.0, None]), "1-2": ([], [0.0, 1.0])}
    record(tmp_path, [batch(first), batch(second)])
    found = {"": [1, 1], "sums, easy": [2, 0], "sums, hard": [2, 1]}  # a lone reward differs from none
    assert json.loads((tmp_path / FILE).read_text()) == found
    # (k + 1) / (n + 2) each.
    assert Curriculum.read(tmp_path).weights == {"": 2 / 3, "sums, easy": 1 / 4, "sums, hard": 2 / 4}
    assert Curriculum.read(tmp_path).metrics["rollout.sums. hard/weight"] == 0.5


def test_no_kind_is_given_up(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"2 numbers": [998, 0], "3 numbers": [8, 7]}))
    assert Curriculum.read(tmp_path).weights == {"2 numbers": pytest.approx(0.08), "3 numbers": 0.8}


def test_without_a_record_the_tasks_are_those_of_a_run_without_a_curriculum(tmp_path: Path) -> None:
    for number in range(20):
        expected = SPEC.task("train", training_index(3, 5, number))
        assert Curriculum.read(tmp_path).task(SPEC, 3, 5, number) == expected
        only = Curriculum({"of another environment": 0.2})
        assert only.task(SPEC, 3, 5, number) == expected


def test_kinds_are_drawn_by_their_weights() -> None:
    # The environment draws all three equally often; a fourth of the threes and half of the twos are kept.
    curriculum = Curriculum({"2 numbers": 0.4, "3 numbers": 0.2, "4 numbers": 0.8})
    tasks = [curriculum.task(SPEC, 0, 1, number) for number in range(2000)]
    counts = Counter(SPEC.parts(task)[0] for task in tasks)
    for kind, share in {"2 numbers": 4 / 14, "3 numbers": 2 / 14, "4 numbers": 8 / 14}.items():
        assert counts[kind] / 2000 == pytest.approx(share, abs=0.035)  # three standard deviations
    assert tasks == [curriculum.task(SPEC, 0, 1, number) for number in range(2000)]
    assert {task.split for task in tasks} == {"train"}
    assert len({task.seed for task in tasks}) == 2000


def test_a_kind_that_is_never_drawn_any_more_does_not_hang_the_rollout() -> None:
    nearly_none = Curriculum({"2 numbers": 1e-9, "3 numbers": 1e-9, "4 numbers": 1e-9, "5 numbers": 1.0})
    assert nearly_none.task(SPEC, 0, 0, 0).split == "train"
