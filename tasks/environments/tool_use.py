"""Tasks that a policy solves with an interpreter: a question, calls of the tool, an answer that is graded.

    question ──► reply with calls ──► each call's output ──► … ──► reply without a call ──► grade

A reply without a call is the answer, and ends the episode. An environment with a tool makes an `Exercise` of each task
and opens `ToolUse`; its spec takes over what `tool_fields` gives. The session of an episode opens with its first call.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.environments.interface import Message, Metric, Step, Task, ToolSpec
from tasks.interpreter.interface import Execution, Interpreter, Session
from tasks.policy.tool_formats import FORMATS, ToolCall, ToolFormat, get_format
from tasks.settings import require

PYTHON = ToolSpec(
    "python",
    "Runs Python code, and answers with what it prints and the value of its last expression. Variables last.",
    {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": False},
)
TOOL_METRICS = (
    Metric("tool_calls", "tool calls", ".2f", total=True),
    Metric("tool_errors", "tool errors", ".1%", per="step"),
    Metric("timeouts", "tool timeouts", ".1%", per="step"),
    Metric("unavailable", "tool unavailable", ".1%", per="step"),
    Metric("sandbox_seconds", "sandbox seconds", ".4f", total=True, timing=True),
)


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """How a policy uses the tool: options that every environment with one takes. Checked when they are made."""

    tool: bool = True  # False: it has none, and only answers
    format: str = "tool_call"  # as in tasks/policy/tool_formats.py
    malformed: str = "answer"  # a call that cannot be read: "answer" it with an error, or "end" the episode as invalid
    calls_a_turn: int = 1
    calls: int = 4  # an episode
    stop: bool = True  # a reply ends with its call, where a reply may have only one
    timeout_s: float = 5.0  # of a call
    output: int = 2000  # characters of an output that the policy is shown
    interpreter: str = "local"  # as `tasks.interpreter.open_interpreter` takes it

    def __post_init__(self) -> None:
        get_format(self.format)
        require(self.malformed in ("answer", "end"), "malformed", self.malformed, "answer, end")
        for name, least in (("calls_a_turn", 1), ("calls", 1), ("output", 16)):
            given = getattr(self, name)
            require(type(given) is int and given >= least, name, given, f"a whole number, {least} or more")
        for name in ("tool", "stop"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true, false")
        is_number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        require(is_number and self.timeout_s > 0, "timeout_s", self.timeout_s, "a number above 0")


def tool_fields(options: ToolOptions, tool: ToolSpec = PYTHON) -> dict[str, Any]:
    """What an EnvironmentSpec needs for the tool: `tools`, where the chat template explains them, and `stop`."""
    if not options.tool:
        return {}
    chosen = FORMATS[options.format]
    return {
        "tools": (tool,) if chosen.by_template else (),
        "stop": chosen.stop if options.stop and options.calls_a_turn == 1 else (),
    }


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One task as the policy sees it, and how its answer is graded.

    Example: `Exercise(question="17+384-5=?", grade=grade, system="Solve.")`, where `await grade("396")` is
    `Step(reward=1.0, done=True, metrics={"success": 1.0})`.
    """

    question: str
    grade: Callable[[str], Awaitable[Step]]  # of the last reply, whole; its step is done
    system: str = ""  # the format's own explanation comes behind it
    examples: Sequence[Message] = ()  # between the system message and the question
    is_answer: Callable[[str], bool] = lambda reply: False  # an answer although it looks like a call
    refuse: Callable[[str], str] = lambda code: ""  # why a code may not be run; told to the policy


class SandboxUnavailable(Exception):
    """The sandbox failed, not the code: the rollout plays the episode once more, or drops it."""


class ToolUse:
    """The environment: one episode at a time, with a fresh session of the interpreter."""

    def __init__(
        self,
        exercise: Callable[[Task], Exercise],
        options: ToolOptions,
        interpreter: Callable[[], Interpreter],
        tool: ToolSpec = PYTHON,
        *,
        explain: bool = True,  # False: the exercise's system message says how to call the tool
    ) -> None:
        self.make, self.options, self.interpreter, self.tool = exercise, options, interpreter, tool
        self.format: ToolFormat = FORMATS[options.format]
        self.parameter = next(iter(tool.parameters["properties"]))
        self.explanation = (
            self.format.explain([tool]) if options.tool and explain and not self.format.by_template else ""
        )
        self.session: Session | None = None
        self.fresh = True  # no code has run in the session
        self.lost = 0  # calls of this step whose sandbox was unavailable

    async def reset(self, task: Task) -> Step:
        """The question. Raises what `open_interpreter` does, so that a run without one ends where it begins."""
        await self.close()
        if self.options.tool:
            self.interpreter()
        self.exercise, self.calls = self.make(task), 0
        system = "\n\n".join(filter(None, [self.exercise.system, self.explanation]))
        first = [{"role": "system", "content": system}] if system else []
        return Step([*first, *self.exercise.examples, {"role": "user", "content": self.exercise.question}])

    async def step(self, reply: Message) -> Step:
        """The outputs of the calls in the reply, or the grade of an answer. Raises SandboxUnavailable."""
        text = reply["content"]
        said = text.rpartition("</think>")[2]
        calls = self.format.parse(said, [self.tool]) if self.options.tool and not self.exercise.is_answer(said) else []
        if not calls:
            step = await self.exercise.grade(text)
            await self.close()
            return _with_metrics(step, {"tool_calls": 0.0, "sandbox_seconds": 0.0} if self.options.tool else {})
        self.lost = 0
        wrong = [call.error for call in calls if call.error]
        if wrong and self.options.malformed == "end":
            return Step(done=True, valid=False, metrics=self._metrics(calls, []), note=wrong[0])
        found = [await self._call(call, place) for place, call in enumerate(calls)]
        ids = [f"call-{self.calls + place + 1}" for place in range(len(calls))]
        self.calls += len(calls)
        return Step(
            [
                {"role": "tool", "content": told, "tool_call_id": name}
                for name, (told, _) in zip(ids, found, strict=True)
            ],
            metrics=self._metrics(calls, found),
            note=found[-1][0],
            tool_calls=[
                {"id": name, "name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
                for name, call in zip(ids, calls, strict=True)
            ],
        )

    async def close(self) -> None:
        """End the session."""
        session, self.session, self.fresh = self.session, None, True
        if session:
            await session.close()

    async def _call(self, call: ToolCall, place: int) -> tuple[str, Execution | None]:
        """What the policy is told, and what was run."""
        if call.error:
            return f"error: {call.error}", None
        if place >= self.options.calls_a_turn:
            return f"error: at most {self.options.calls_a_turn} calls a reply; this one was not made", None
        if self.calls + place >= self.options.calls:
            return f"error: at most {self.options.calls} calls; answer now", None
        code = call.arguments[self.parameter]
        if refused := self.exercise.refuse(code):
            return f"error: {refused}", None
        done = await self._run(code)
        return shown(done, self.options), done

    async def _run(self, code: str) -> Execution:
        """Run code. A sandbox that is unavailable before the first code of a session gets a second try."""
        for last in (not self.fresh, True):
            if self.session is None:
                self.session, self.fresh = await self.interpreter().open(), True
            done = await self.session.run(code, self.options.timeout_s)
            if done.status in ("timeout", "killed", "unavailable"):
                await self.close()  # what it held is gone
            if done.status != "unavailable":
                self.fresh = self.session is None
                return done
            self.lost += 1
            if last:
                break
        raise SandboxUnavailable(f"the sandbox was unavailable: {done.error}")

    def _metrics(self, calls: Sequence[ToolCall], found: Sequence[tuple[str, Execution | None]]) -> dict[str, float]:
        ran = [done for _, done in found if done]
        right = sum(done.status == "ok" for done in ran)
        return {
            "tool_calls": float(len(calls)),
            "tool_errors": 1 - right / len(calls),
            "timeouts": sum(done.status == "timeout" for done in ran) / len(calls),
            "unavailable": self.lost / len(calls),
            "sandbox_seconds": sum(done.seconds for done in ran),
        }


def _with_metrics(step: Step, metrics: Mapping[str, float]) -> Step:
    return Step(**{**vars(step), "metrics": {**metrics, **step.metrics}})


def shown(done: Execution, options: ToolOptions) -> str:
    """What the policy is told of an execution: what it printed, its value, and how it failed."""
    failed = {
        "ok": "",
        "error": f"error: {done.error}",
        "timeout": f"error: no end within {options.timeout_s:g} s; variables are lost",
        "killed": f"error: killed: {done.error}; variables are lost",
    }[done.status]
    text = "\n".join(part.rstrip("\n") for part in (done.stdout, done.stderr, done.shown, failed) if part)
    if not text:
        return "(no output)"
    half = options.output // 2
    return text if len(text) <= options.output else f"{text[:half]}\n... cut ...\n{text[-half:]}"
