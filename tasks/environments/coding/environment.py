"""One episode of coding: a problem, calls of the interpreter if there is one, an answer that hidden tests grade."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from tasks.environments.coding.answer import answer
from tasks.environments.coding.grading import Outcome, grade
from tasks.environments.coding.problems import Problem
from tasks.environments.coding.source import ProblemSource
from tasks.environments.interface import Step, Task
from tasks.environments.tool_use import Exercise, ToolOptions, ToolUse
from tasks.interpreter.open import open_interpreter

SYSTEM = """You write Python. Answer with the whole function in one block, which is tested as it stands:
```python
def name(...):
    ...
```"""
_REFERENCES_AT_ONCE = 16


class Coding(ToolUse):
    """An environment (see `tasks/environments/interface.py`) whose task is a function to be written."""

    def __init__(self, source: ProblemSource, options: ToolOptions, all_or_nothing: bool) -> None:
        super().__init__(self._exercise, options, lambda: open_interpreter(options.interpreter))
        self.source, self.all_or_nothing = source, all_or_nothing
        self.problem: Problem | None = None

    async def reset(self, task: Task) -> Step:
        """The problem. Raises ValueError where a reference solution of the user's problems fails their tests."""
        self.interpreter()  # it grades, also where the policy has no tool
        await self._check_references()
        return await super().reset(task)

    def _exercise(self, task: Task) -> Exercise:
        self.problem = self.source.problem(task)
        return Exercise(question=self.problem.question, grade=self._grade, system=SYSTEM)

    async def _grade(self, reply: str) -> Step:
        code = answer(reply)
        if code is None:
            return Step(done=True, valid=False, metrics=_metrics([]), note="no code")
        assert self.problem is not None
        outcomes = await grade(self.interpreter(), self.problem, code, self.options.timeout_s)
        passed = outcomes.count("passed") / len(outcomes)
        reward = float(passed == 1) if self.all_or_nothing else passed
        return Step(reward=reward, done=True, metrics=_metrics(outcomes), note=_note(outcomes))

    async def _check_references(self) -> None:
        """Grade what the user says is right, once in a process."""
        if self.source.references_checked:
            return
        at_once = asyncio.Semaphore(_REFERENCES_AT_ONCE)

        async def check(problem: Problem) -> None:
            async with at_once:
                outcomes = await grade(self.interpreter(), problem, problem.reference, self.options.timeout_s)
            failed = [place for place, outcome in enumerate(outcomes, 1) if outcome != "passed"]
            if failed:
                why = outcomes[failed[0] - 1]
                raise ValueError(
                    f"{problem.where}: the reference fails test {failed[0]} ({why}); allowed: one that passes."
                )

        await asyncio.gather(*map(check, self.source.with_references()))
        self.source.references_checked = True


def _metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    count, tests = Counter(outcomes), max(len(outcomes), 1)
    return {
        "success": float(count["passed"] == tests),
        "tests_passed": count["passed"] / tests,
        "tests_timed_out": count["timeout"] / tests,
    }


def _note(outcomes: Sequence[Outcome]) -> str:
    """For people: "7 of 10 tests passed; 2 wrong, 1 timeout"."""
    count = Counter(outcomes)
    failed = ", ".join(f"{number} {outcome}" for outcome, number in count.items() if outcome != "passed")
    return f"{count['passed']} of {len(outcomes)} tests passed" + (f"; {failed}" if failed else "")
