"""Whether a candidate's function is right, without trusting anything that its code can reach.

    fresh session: setup, candidate's code ──► one run a case: name(*inputs) ──► value, as text ──► compared out here

What a test expects never enters a session that runs the candidate's code: only inputs do, one case at a time, and all
that counts is the value that comes back, compared by exact type. A candidate that forges the reply of its session must
forge the right value, for which it has to compute it. What it prints, raises, patches or leaves running changes nothing
but its own values; a case without a value has failed.

The cases of one grading share a session, as calls in one program do: inputs of earlier cases tell nothing about what a
later one expects. A case that ends its session (a time limit, memory, an exit) costs that case: the next has a new one.
All code of a grading has a limit too, so that no candidate can make the whole call late, which would be nobody's fault.
"""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.environments.coding.problems import Problem
from tasks.environments.tool_use import SandboxUnavailable
from tasks.interpreter.interface import Execution, Interpreter, Session
from tasks.interpreter.values import decode
from tasks.seeds import derived_seed

Outcome = Literal["passed", "wrong", "error", "timeout", "killed"]
RELATIVE, ABSOLUTE = 1e-9, 1e-12  # by which floats may differ
LIMITS_A_GRADING = 3  # cases that may run into the time limit; the rest is not tried
BUDGET_S = 20.0  # of all runs of a grading together, or as long as these cases where that is more


@dataclass(frozen=True)
class Called:
    """What came of one call: a value, or the reason why there is none."""

    failure: Outcome | None
    value: Any = None


async def grade(interpreter: Interpreter, problem: Problem, code: str, timeout_s: float) -> list[Outcome]:
    """The outcome of each test; `timeout_s` is for one call. Raises SandboxUnavailable where the sandbox failed."""
    if problem.check:
        return await _grade_by_check(interpreter, problem, code, timeout_s)
    inputs = [case.arguments for case in problem.cases]
    found = await call_all(interpreter, problem, code, inputs, timeout_s)
    return [
        called.failure or ("passed" if same(case.expected, called.value) else "wrong")
        for called, case in zip(found, problem.cases, strict=True)
    ]


def same(expected: Any, found: Any) -> bool:
    """Whether the values agree in each part's exact type; floats but for rounding, NaN with NaN."""
    kind = type(expected)
    if type(found) is not kind:
        return False
    if kind is float:
        if math.isnan(expected):
            return math.isnan(found)
        return math.isclose(expected, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if kind in (list, tuple):
        return len(expected) == len(found) and all(map(same, expected, found))
    if kind is dict:
        others = {_exact(key): value for key, value in found.items()}
        return len(expected) == len(found) and all(
            _exact(key) in others and same(value, others[_exact(key)]) for key, value in expected.items()
        )
    return _exact(expected) == _exact(found)


def _exact(value: Any) -> Any:
    """A key that tells 1, 1.0 and True apart, also within tuples and sets."""
    if isinstance(value, tuple):
        return tuple, tuple(map(_exact, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_exact, value))
    return type(value), repr(value) if isinstance(value, float) else value


async def call_all(
    interpreter: Interpreter, problem: Problem, code: str, inputs: Sequence[tuple[Any, ...]], timeout_s: float
) -> list[Called]:
    """What the candidate's function gives for each of the inputs."""
    found: list[Called] = []
    session: Session | None = None
    late, left = 0, max(BUDGET_S, LIMITS_A_GRADING * timeout_s)
    try:
        for arguments in inputs:
            if left <= 0 or late >= LIMITS_A_GRADING:
                found.append(Called("timeout"))
                continue
            if session is None:
                session = await interpreter.open()
                defined = await _define(session, problem, code, timeout_s)
                left -= defined.seconds
                if defined.status != "ok":  # where it does now, it most likely does each time
                    failed = _called(defined)
                    return found + [failed] * (len(inputs) - len(found))
            # In a tuple, since None by itself is no value.
            done = await _run(session, f"({problem.name}(*{literal(arguments)}),)", timeout_s)
            found.append(_called(done))
            left -= done.seconds
            late += done.status == "timeout"
            if done.status not in ("ok", "error"):
                await session.close()
                session = None
    finally:
        if session is not None:
            await session.close()
    return found


def literal(value: Any) -> str:
    """Python text of a value, for a session in which `_define` has run, or `_CONSTANTS`."""
    return repr(value)


_CONSTANTS = "from math import inf, nan\n"  # which repr writes


async def _define(session: Session, problem: Problem, code: str, timeout_s: float) -> Execution:
    """Run the candidate's code."""
    await _run(session, _CONSTANTS + problem.setup, timeout_s)
    return await _run(session, code, timeout_s)


async def _run(session: Session, code: str, timeout_s: float) -> Execution:
    done = await session.run(code, timeout_s)
    if done.status == "unavailable":
        raise SandboxUnavailable(f"the sandbox was unavailable: {done.error}")
    return done


def _called(done: Execution) -> Called:
    if done.status != "ok":
        return Called(done.status)  # type: ignore[arg-type]  # unavailable was raised
    try:
        (value,) = decode(done.value)
    except (ValueError, TypeError):  # no value of a plain type, or a forged text
        return Called("wrong")
    return Called(None, value)


_recorded: dict[str, list[tuple[Any, ...]]] = {}  # by problem


async def _grade_by_check(interpreter: Interpreter, problem: Problem, code: str, timeout_s: float) -> list[Outcome]:
    """The outcome of a test that is a function: `check(candidate)`, full of asserts.

    The reference solution shows which calls it makes; the candidate answers those in its own session; its answers,
    plain values by now, are checked in a third session that has never seen its code.
    """
    inputs = await recorded_calls(interpreter, problem, timeout_s)
    found = await call_all(interpreter, problem, code, inputs, timeout_s)
    failures: list[Outcome] = [called.failure for called in found if called.failure]
    if failures:
        return failures[:1]
    answers = literal([called.value for called in found])
    replay = f"answers = iter({answers})\ndef candidate(*arguments):\n    return next(answers)\ncheck(candidate)"
    done = await _in_fresh_session(interpreter, [_CONSTANTS + problem.reference, problem.check, replay], timeout_s)
    passed: Outcome = "passed" if done.status == "ok" else "wrong"
    return [passed]


async def recorded_calls(interpreter: Interpreter, problem: Problem, timeout_s: float) -> list[tuple[Any, ...]]:
    """The arguments with which `problem.check` calls the reference solution. Raises ValueError where that fails."""
    if problem.id not in _recorded:
        name = f"recorder_{derived_seed(problem.id)}"
        record = (
            f"import copy\n{name} = []\ndef candidate(*arguments):\n    {name}.append(copy.deepcopy(arguments))\n"
            f"    return {problem.name}(*arguments)\ncheck(candidate)\nrepr({name})"
        )
        parts = [_CONSTANTS + problem.setup, problem.reference, problem.check, record]
        done = await _in_fresh_session(interpreter, parts, timeout_s)
        if done.status != "ok":
            raise ValueError(f"the reference solution of {problem.id} does not pass its own tests: {done.error}.")
        # As text, in which the items of a dict keep their order.
        _recorded[problem.id] = ast.literal_eval(decode(done.value))
    return _recorded[problem.id]


async def _in_fresh_session(interpreter: Interpreter, parts: Sequence[str], timeout_s: float) -> Execution:
    """The last execution of these parts, or the first one that failed."""
    session = await interpreter.open()
    try:
        for part in parts[:-1]:
            done = await _run(session, part, timeout_s)
            if done.status != "ok":
                return done
        return await _run(session, parts[-1], timeout_s)
    finally:
        await session.close()
