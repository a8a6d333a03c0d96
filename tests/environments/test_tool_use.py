"""An interpreter as a tool: calls, outputs, limits, and a sandbox that is gone. In the real sandbox of this machine."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from tasks.environments.interface import Message, Step, Task
from tasks.environments.tool_use import PYTHON, Exercise, SandboxUnavailable, ToolOptions, ToolUse, tool_fields
from tasks.interpreter.interface import Execution
from tasks.interpreter.open import open_interpreter
from tasks.policy.tool_formats import FORMATS, ToolCall

TASK = Task("7", "train", 7)


async def grade(reply: str) -> Step:
    return Step(reward=float(reply == "396"), done=True, metrics={"success": 1.0})


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(code: str) -> str:
    return FORMATS["tool_call"].render(ToolCall("python", {"code": code}))


def play(*replies: str, interpreter: Callable | None = None, **options: object) -> list[Step]:
    """The steps of an episode with these replies."""

    async def steps() -> list[Step]:
        made = ToolOptions(**options)  # type: ignore[arg-type]
        exercise = Exercise(question="17+384-5=?", grade=grade, system="Solve.", refuse=lambda c: "no" * ("rm" in c))
        environment = ToolUse(lambda task: exercise, made, interpreter or (lambda: open_interpreter("local")))
        try:
            found = [await environment.reset(TASK)]
            for reply in replies:
                found.append(await environment.step(said(reply)))
            return found
        finally:
            await environment.close()

    return asyncio.run(steps())


def outputs(*replies: str, **options: object) -> list[str]:
    """What the tool said in all of them."""
    return [m["content"] for step in play(*replies, **options)[1:] for m in step.messages]


def test_a_call_has_an_output_and_an_answer_its_grade() -> None:
    first, second, third = play(call("x = 17+384\nprint(x)\nx - 5"), "396")
    assert first.messages == [{"role": "system", "content": "Solve."}, {"role": "user", "content": "17+384-5=?"}]
    assert second.messages == [{"role": "tool", "content": "401\n396", "tool_call_id": "call-1"}]
    arguments = json.loads(second.tool_calls[0]["arguments"])
    assert (second.tool_calls[0]["id"], second.tool_calls[0]["name"]) == ("call-1", "python")
    assert arguments == {"code": "x = 17+384\nprint(x)\nx - 5"} and not second.done and second.reward == 0
    assert (second.metrics["tool_calls"], second.metrics["tool_errors"]) == (1, 0)
    assert 0 < second.metrics["sandbox_seconds"] < 60
    assert third == Step(reward=1.0, done=True, metrics={"tool_calls": 0.0, "sandbox_seconds": 0.0, "success": 1.0})


def test_variables_last_for_an_episode_and_no_longer() -> None:
    assert outputs(call("x = 5"), call("x + 1")) == ["(no output)", "6"]
    assert "NameError" in outputs(call("x"))[0]


def test_what_goes_wrong_is_told() -> None:
    division, code, late, after = outputs(
        call("1/0"), call("print(1"), call("while True: pass"), call("1+1"), timeout_s=0.3
    )
    assert division.endswith("error: ZeroDivisionError: division by zero")
    assert "SyntaxError" in code and "no end within 0.3 s" in late and after == "2"
    steps = play(call("1/0"), call("while True: pass"), timeout_s=0.3)
    assert [(s.metrics["tool_errors"], s.metrics["timeouts"]) for s in steps[1:]] == [(1, 0), (1, 1)]
    assert outputs(call("rm -rf")) == ["error: no"]  # what the exercise refuses


def test_a_malformed_call_is_answered_or_ends_the_episode() -> None:
    wrong = "<tool_call>{</tool_call>"
    (told,) = outputs(wrong)
    assert told.startswith("error: the call is not JSON")
    step = play(wrong, malformed="end")[1]
    assert step.done and not step.valid and step.reward == 0 and "not JSON" in step.note
    assert step.metrics["tool_errors"] == 1


def test_calls_are_limited_by_turn_and_by_episode() -> None:
    two = f"{call('1')}\n{call('2')}"
    assert outputs(two) == ["1", "error: at most 1 calls a reply; this one was not made"]
    assert outputs(two, call("3"), call("4"), calls_a_turn=2, calls=3) == [
        "1",
        "2",
        "3",
        "error: at most 3 calls; answer now",
    ]
    ids = [c["id"] for step in play(two, call("3"), calls_a_turn=2)[1:] for c in step.tool_calls]
    assert ids == ["call-1", "call-2", "call-3"]


def test_long_output_is_cut_in_its_middle() -> None:
    (told,) = outputs(call("print('a' * 900 + 'b' * 900)"), output=100)
    assert told.startswith("a" * 50 + "\n... cut") and told.endswith("b" * 50)


def test_a_thought_about_a_call_is_no_call() -> None:
    assert play(f"<think>{call('1')}</think>396")[1].done


def test_without_the_tool_every_reply_is_an_answer() -> None:
    assert play(call("1"), tool=False)[1].done
    assert tool_fields(ToolOptions(tool=False)) == {}


def test_the_fields_of_a_spec_follow_the_format() -> None:
    assert tool_fields(ToolOptions()) == {"tools": (PYTHON,), "stop": ("</tool_call>",)}
    assert tool_fields(ToolOptions(calls_a_turn=2)) == {"tools": (PYTHON,), "stop": ()}
    assert tool_fields(ToolOptions(format="line", stop=False)) == {"tools": (), "stop": ()}
    assert "write a line: PY" in play(format="line")[0].messages[0]["content"]
    assert outputs("PY 17+384-5", format="line") == ["396"]
    assert outputs("Well:\n```python\nx = 1\nx + 1\n```", format="python") == ["2"]


class Failing:
    """An interpreter whose sessions are unavailable: the first `times` ones."""

    def __init__(self, times: int) -> None:
        self.times, self.opened, self.closed, self.inner = times, 0, 0, open_interpreter("local")
        self.description = "failing"

    async def open(self) -> "Failing":
        self.opened += 1
        return self

    async def run(self, code: str, timeout_s: float) -> Execution:
        if self.opened <= self.times:
            return Execution("unavailable", error="the machine is full")
        session = await self.inner.open()
        try:
            return await session.run(code, timeout_s)
        finally:
            await session.close()

    def close(self) -> Awaitable[None]:
        self.closed += 1
        return asyncio.sleep(0)


def test_a_sandbox_that_is_gone_is_no_wrong_answer() -> None:
    once = Failing(1)
    step = play(call("1+1"), interpreter=lambda: once)[1]
    assert step.messages[0]["content"] == "2" and step.metrics["unavailable"] == 1 == step.metrics["tool_calls"]
    always = Failing(99)
    with pytest.raises(SandboxUnavailable, match="the sandbox was unavailable: the machine is full"):
        play(call("1+1"), interpreter=lambda: always)
    assert (once.opened, always.opened) == (2, 2) and once.closed == always.closed == 2
