"""The generator's problems, HumanEval and a user's own: their tests accept what is right and nothing else."""

import asyncio
import copy
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from coding_problem import graded, problem
from tasks.environments.coding import grading
from tasks.environments.coding.families import FAMILIES
from tasks.environments.coding.grading import grade, same
from tasks.environments.coding.humaneval import humaneval
from tasks.environments.coding.own import read_problems
from tasks.environments.coding.problems import Problem, build, find_variant
from tasks.environments.coding.source import ProblemSource
from tasks.interpreter.open import open_interpreter


def variants(family: str, count: int, split: str = "train") -> list[Problem]:
    found = [build(family, find_variant(family, split, seed)[0]) for seed in range(count)]  # type: ignore[arg-type]
    return list({problem.id: problem for problem in found}.values())


def all_graded(given: list[tuple[Problem, str]]) -> list[list[str]]:
    async def run() -> list[list[str]]:
        return [list(await grade(open_interpreter("local"), of, code, 5.0)) for of, code in given]

    return asyncio.run(run())


def passes(of: Problem, code: str) -> bool:
    """Whether our own code, which may run here, passes."""
    space: dict = {}
    exec(code, space)
    try:
        return all(space[of.name](*copy.deepcopy(case.arguments)) == case.expected for case in of.cases)
    except ValueError:  # a word that another stack machine does not know
        return False


def test_there_are_many_problems() -> None:
    assert len(FAMILIES) >= 20
    assert {family.kind for family in FAMILIES.values()} == {"lists", "strings", "numbers", "recursion", "simulation"}
    for family in FAMILIES:
        assert len(variants(family, 20)) >= 12, family
        for of in variants(family, 2) + variants(family, 1, "test"):
            assert len(of.cases) == 10
            assert max(Counter(repr(case.expected) for case in of.cases).values()) <= 5
            assert f"def {family}(" in of.reference and of.question.count(f"{family}(") >= 3


def test_training_and_test_share_no_problem() -> None:
    source = ProblemSource("generated", None, None, "")
    train, test = ([source.task(split, index) for index in range(300)] for split in ("train", "test"))  # type: ignore
    assert len({task.id for task in train}) > 280
    texts = [{source.problem(task).question for task in tasks} for tasks in (train, test)]
    code = [{source.problem(task).reference for task in tasks} for tasks in (train, test)]
    assert not {task.id for task in train} & {task.id for task in test}
    assert not texts[0] & texts[1] and not code[0] & code[1]
    assert {task.data["family"] for task in test} == {task.data["family"] for task in train} == set(FAMILIES)


def test_every_reference_passes_and_another_variant_does_not() -> None:
    for family in FAMILIES:
        first, other, *_ = variants(family, 8)
        right, wrong, nothing = all_graded([(first, first.reference), (first, other.reference), (first, "pass")])
        assert right == ["passed"] * 10, (family, right)
        assert wrong != ["passed"] * 10, (family, first.reference, other.reference)
        assert nothing == ["error"] * 10


def test_tests_tell_variants_apart() -> None:
    # 22 of 6,116 pairs were not, such as a product less than 35 or less than 30.
    alike = pairs = 0
    for family in FAMILIES:
        for of, other in itertools.permutations(variants(family, 6), 2):
            pairs += 1
            alike += passes(of, other.reference)
    assert pairs > 800 and alike <= 0.02 * pairs


def test_humanevals_own_solutions_pass() -> None:
    found = all_graded([(of, of.reference) for of in humaneval()])
    assert Counter(map(tuple, found)) == {("passed",): 164}


def test_humaneval_is_never_trained_on() -> None:
    source = ProblemSource("humaneval", None, None, "")
    assert (source.test_tasks, source.task("test", 163).id) == (164, "HumanEval/163")
    with pytest.raises(
        ValueError, match=r'^problems is "humaneval"; allowed: generated, file in training: HumanEval is'
    ):
        source.task("train", 0)
    names = {of.name for of in humaneval()}
    assert not names & set(FAMILIES)  # not even by name


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (1, [1], [1.0, True, "1", None, 2]),
        (True, [True], [1, 1.0]),
        (0.3, [0.1 + 0.2], [0.31, 3]),
        (float("nan"), [float("nan")], [0.0]),
        ([1, (2,)], [[1, (2,)]], [[1, [2]], (1, (2,)), [1, (2,), 3], [1, (2.0,)]]),
        ({1, 2}, [{2, 1}], [{1.0, 2}, {True, 2}, frozenset({1, 2}), {1}]),
        (
            {"a": 1, 2: [3]},
            [{2: [3], "a": 1}],
            [{"a": 1, 2.0: [3]}, {"a": 1}, {"a": 1, 2: [True]}, {"a": 1, 2: [3], 4: 5}],
        ),
        (None, [None], [0, False, ""]),
        ("a", ["a"], [b"a", ["a"]]),
    ],
)
def test_values_are_compared_by_exact_type(expected: object, right: list, wrong: list) -> None:
    assert all(same(expected, found) for found in right)
    assert not any(same(expected, found) for found in wrong)


def test_a_slow_case_costs_itself_and_slow_code_does_not_run_for_ever() -> None:
    of = problem("f", *((n, n) for n in range(10)))
    slow_once = "import time\ndef f(n):\n    time.sleep(60 * (n == 3))\n    return n"
    assert graded(of, slow_once, 0.3) == ["passed"] * 3 + ["timeout"] + ["passed"] * 6
    sleeps = "import time\ndef f(n):\n    time.sleep(60)"
    assert graded(of, sleeps, 0.2) == ["timeout"] * 10
    ends = "import os\ndef f(n):\n    if n == 3: os._exit(0)\n    return n"
    assert graded(of, ends) == ["passed"] * 3 + ["killed"] + ["passed"] * 6
    assert graded(
        problem("f", (1, None), ([float("inf")], [float("inf")])), "def f(v):\n    return v if v != 1 else None"
    ) == (["passed"] * 2)


def test_all_runs_of_a_grading_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each new session runs the definition again: without a limit it could hold up the whole call, nobody's fault.
    monkeypatch.setattr(grading, "BUDGET_S", 1.5)
    of = problem("f", *((n, n) for n in range(30)))
    outcomes = graded(of, "import os, time\ntime.sleep(0.4)\ndef f(n):\n    os._exit(0)", 0.5)
    assert outcomes[0] == "killed" and outcomes[-20:] == ["timeout"] * 20


ADD = {"prompt": "Add two numbers.", "function": "add", "tests": [{"arguments": [1, 2], "expected": 3}]}
PAIR = {
    "prompt": "Make a pair.",
    "tests": ["assert pair(1, -2) == (1, -2)"],
    "reference": "def pair(a, b): return a, b",
}


def written(folder: Path, *rows: object) -> str:
    path = folder / "own.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_a_users_own_problems(tmp_path: Path) -> None:
    rows = [{**ADD, "prompt": f"Add two numbers, and {n}."} for n in range(40)]
    found = read_problems(written(tmp_path, *rows, "", PAIR, PAIR))
    assert len(found["train"]) + len(found["test"]) == 41 and len(found["test"]) >= 2
    assert not {of.id for of in found["train"]} & {of.id for of in found["test"]}
    pair = next(of for of in found["train"] + found["test"] if of.name == "pair")
    assert graded(pair, "def pair(a, b):\n    return a, b") == ["passed"]
    assert graded(pair, "def pair(a, b):\n    return [a, b]") == ["wrong"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2 is no JSON: "),
        ([], 'line 2 has no "prompt"; allowed: a JSON object with prompt and tests.'),
        ({"prompt": "x"}, 'line 2 has no "tests"; allowed: a list of objects or asserts.'),
        ({**ADD, "tests": []}, 'line 2 has no "tests"'),
        (
            {**ADD, "tests": [ADD["tests"][0], "assert add(1, open) == 3"]},
            'line 2, test 2 is "assert add(1, open) == 3"; allowed',
        ),
        (
            {**ADD, "tests": [{"arguments": 1, "expected": 2}]},
            'line 2, test 1 is {"arguments": 1, "expected": 2}; allowed',
        ),
        ({**ADD, "function": None}, "line 2 names the functions []; allowed: one"),
        ({**PAIR, "function": "other"}, "line 2 names the functions ['other', 'pair']; allowed: one"),
        ({**ADD, "reference": 3}, 'line 2 has a "reference" that is no text.'),
    ],
)
def test_a_line_that_is_no_problem(tmp_path: Path, row: object, said: str) -> None:
    path = written(tmp_path, PAIR, row)
    with pytest.raises(ValueError) as caught:
        read_problems(path)
    assert str(caught.value).startswith(f"{path}, {said}") and "\n" not in str(caught.value)


def test_a_file_needs_problems_for_both(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has 1 different problems; allowed: 2 or more"):
        read_problems(written(tmp_path, PAIR, PAIR))
    with pytest.raises(ValueError, match=r'^path is "nowhere.jsonl"; allowed: a JSONL file'):
        read_problems("nowhere.jsonl")
