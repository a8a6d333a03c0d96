"""One episode: an expression, calls of the tool, an answer."""

import os
import re
from functools import lru_cache

from tasks.environments.calculator.expressions import refuse, value
from tasks.environments.calculator.players import ANSWER, answer_prefix
from tasks.environments.interface import Message, Step, Task
from tasks.environments.tool_use import Exercise, ToolOptions, ToolUse
from tasks.interpreter.interface import Execution, Interpreter, Session
from tasks.interpreter.open import open_interpreter

_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
SHORT = ("line", "bare")  # formats that the system text itself explains


def system_text(options: ToolOptions) -> str:
    """What the policy is told first; short, for small policies."""
    if options.format == "bare":
        return "Solve."  # the examples show how
    if not options.tool:
        return f"Solve. Use {ANSWER}."
    if options.format == "line":
        return f"Solve. Use PY or {ANSWER}."
    return (
        f"Solve. Use the tool for one expression of whole numbers at a time. Then reply with {ANSWER} and the number."
    )


class Calculator(ToolUse):
    """Rewards 1 for the right number. `outputs` are what the tool has said so far."""

    def __init__(self, options: ToolOptions, examples: list[Message]) -> None:
        prefix = answer_prefix(options.format)

        def exercise(task: Task) -> Exercise:
            expression = task.data["expression"]
            return Exercise(
                question=f"{expression}=?",
                grade=lambda reply: grade(reply, value(expression), prefix),
                system=system_text(options),
                examples=examples,
                refuse=refuse,
            )

        super().__init__(
            exercise, options, lambda: shared(options.interpreter, os.getpid()), explain=options.format not in SHORT
        )

    async def reset(self, task: Task) -> Step:
        """The question."""
        self.expression, self.outputs = task.data["expression"], []
        return await super().reset(task)

    async def step(self, reply: Message) -> Step:
        """The output of a call, or the grade of an answer."""
        step = await super().step(reply)
        self.outputs += [message["content"] for message in step.messages]
        return step


async def grade(reply: str, expected: int, prefix: str) -> Step:
    """1 for the expected number behind `prefix`; a reply that is no answer is invalid."""
    said = reply.strip()
    found = _NUMBER.fullmatch(said.removeprefix(prefix)) if said.startswith(prefix) else None
    if not found:
        return Step(done=True, valid=False, note=f"neither a call nor {prefix and ANSWER + ' and '}a number")
    right = int(found[0]) == expected
    return Step(reward=float(right), done=True, note="right" if right else f"wrong, it is {expected}")


class SharedSessions:
    """An interpreter whose sessions serve all episodes in turn: an expression of numbers leaves nothing behind.

    There are as many as run at once. A single one would take one call a step of the engine, however fast it is.
    """

    def __init__(self, inner: Interpreter) -> None:
        self.inner, self.description = inner, inner.description
        self.free: list[Session] = []

    async def open(self) -> Session:
        """All of them, as one; another one opens where none is free."""
        return self

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Run code in a session that is free."""
        session = self.free.pop() if self.free else await self.inner.open()
        done = await session.run(code, timeout_s)  # who is cancelled here leaves no session behind
        if done.status in ("ok", "error"):
            self.free.append(session)
        else:
            await session.close()
        return done

    async def close(self) -> None:
        """Nothing: the sessions are for the next episode too, and end with the process."""


@lru_cache(maxsize=4)
def shared(setting: str, process: int) -> SharedSessions:
    """The shared sessions of this process."""
    return SharedSessions(open_interpreter(setting))
