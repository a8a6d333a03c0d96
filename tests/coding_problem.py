"""A small problem and an interpreter, for tests of grading."""

import asyncio

from tasks.environments.coding.grading import Outcome, grade
from tasks.environments.coding.problems import Case, Problem
from tasks.interpreter.open import open_interpreter


def problem(name: str, *cases: tuple, **more: str) -> Problem:
    """A problem of which only the tests matter; a case is its arguments and what is expected."""
    found = tuple(Case(tuple(arguments), expected) for *arguments, expected in cases)
    return Problem("own-1", "own", "own", 1, name, f"Write {name}.", found, **more)


DOUBLE = problem("double", *((n, 2 * n) for n in (0, 17, -4, 250, 8, -1, 33, 64)))


def graded(of: Problem, code: str, timeout_s: float = 1.0) -> list[Outcome]:
    return asyncio.run(grade(open_interpreter("local"), of, code, timeout_s))
