"""A user's own problems: a JSON line each, with a prompt, tests and maybe a reference solution.

    {"prompt": "Add two numbers.", "function": "add", "reference": "def add(a, b):\\n    return a + b",
     "tests": [{"arguments": [1, 2], "expected": 3}, "assert add((1,), (2,)) == (1, 2)"]}

A test is an object, or an assert of one call with literals, for values that JSON does not have. Further columns are
left alone. "function" may be left out where the tests are asserts.
"""

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tasks.environments.coding.problems import TEST_SHARE, Case, Problem
from tasks.environments.interface import Split
from tasks.settings import require


def read_problems(path: str) -> dict[Split, tuple[Problem, ...]]:
    """The problems of a file by their split: one in eight is a test problem, chosen by its text; at least one of each.

    Raises ValueError, with the number of the line, for what is no problem, and for a file with fewer than two.
    """
    require(Path(path).is_file(), "path", path, "a JSONL file of problems")
    return _read(path, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: str, changed: int) -> dict[Split, tuple[Problem, ...]]:
    found: dict[str, Problem] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            problem = _problem(line, f"{path}, line {number}")
            found.setdefault(problem.id, problem)
    if len(found) < 2:
        raise ValueError(f"{path} has {len(found)} different problems; allowed: 2 or more, to train on and to test.")
    ordered = sorted(found.values(), key=lambda problem: problem.id)
    tests = [p for p in ordered if int(p.id.rpartition("-")[2], 16) % TEST_SHARE == 0][: len(ordered) - 1] or ordered[
        :1
    ]
    chosen = {problem.id for problem in tests}
    return {
        "train": tuple(problem for problem in found.values() if problem.id not in chosen),
        "test": tuple(problem for problem in found.values() if problem.id in chosen),
    }


def _problem(line: str, where: str) -> Problem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON: {error}.") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise ValueError(f'{where} has no "prompt"; allowed: a JSON object with prompt and tests.')
    tests, reference = row.get("tests"), row.get("reference", "")
    if not isinstance(tests, list) or not tests:
        raise ValueError(f'{where} has no "tests"; allowed: a list of objects or asserts.')
    if not isinstance(reference, str):
        raise ValueError(f'{where} has a "reference" that is no text.')
    read = [_case(test, f"{where}, test {place}") for place, test in enumerate(tests, 1)]
    names = {name for name, _ in read if name} | ({row["function"]} if row.get("function") else set())
    if len(names) != 1 or not str(next(iter(names))).isidentifier():
        raise ValueError(
            f'{where} names the functions {sorted(map(str, names))}; allowed: one, as "function" or in asserts.'
        )
    (name,) = names
    digest = hashlib.blake2b(row["prompt"].strip().encode(), digest_size=8).hexdigest()
    return Problem(
        id=f"own-{digest}",
        family=str(row.get("family", "own")),
        kind="own",
        level=2,
        name=name,
        question=f"Write a Python function `{name}`.\n{row['prompt'].strip()}",
        cases=tuple(case for _, case in read),
        reference=reference,
        where=where,
    )


def _case(test: Any, where: str) -> tuple[str, Case]:
    """The name that an assert calls, or "", and the case."""
    if isinstance(test, Mapping) and isinstance(test.get("arguments"), list) and "expected" in test:
        return "", Case(tuple(test["arguments"]), test["expected"])
    allowed = 'an object with "arguments" (a list) and "expected", or "assert f(literals) == literal"'
    try:
        if not isinstance(test, str):
            raise ValueError
        match ast.parse(test.strip()).body:
            case [ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name(id=name)) as call, ops=[ast.Eq()]) as of)]:
                if call.keywords:
                    raise ValueError
                arguments = tuple(ast.literal_eval(argument) for argument in call.args)
                return name, Case(arguments, ast.literal_eval(of.comparators[0]))
        raise ValueError
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{where} is {json.dumps(test)[:80]}; allowed: {allowed}.") from None
