"""Arithmetic with a tool: its tasks, what the tool takes, who is right, and what a policy begins with."""

import ast
import asyncio
import json
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from openenv.cli._validation import validate_running_environment

from tasks.environments.calculator.environment import shared
from tasks.environments.calculator.expressions import Arithmetic, cut, pieces, refuse, value
from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import Step
from tasks.environments.scripted import play_baseline

BARE = {"format": "bare", "examples": 2}
TWO = {"numbers": 3, "maximum": 99, "operators": "+-*", "calls": 2}


@pytest.mark.parametrize("options", [{}, {"maximum": 9, "numbers": 2}, {"operators": "+-*"}, TWO])
def test_the_tasks_are_what_was_asked_for(options: dict) -> None:
    spec, largest = get_environment("calculator", options), options.get("maximum", 999)
    expressions = [spec.task(split, index).id for split in ("train", "test") for index in range(400)]
    for text in expressions:
        numbers = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        assert options.get("calls", 1) + 1 <= len(numbers) <= options.get("numbers", 4) and max(numbers) <= largest
        assert set(text) <= set("0123456789" + options.get("operators", "+-") + "()" * ("(" in text))
        assert value(text) == eval(text)
    assert len(set(expressions)) > 100
    train, test = ({spec.task(split, index).id for index in range(2000)} for split in ("train", "test"))
    assert not train & test


def test_an_expression_of_two_calls_needs_its_parentheses() -> None:
    for index in range(300):
        text = Arithmetic(**TWO).task("train", index).id
        first, second = pieces(text)
        assert text == f"({first}){second}" and value(first + second) != value(text)
        assert value(f"{value(first)}{second}") == value(text)
        assert refuse(text) and not refuse(first)


@pytest.mark.parametrize("code", ["17+384-5", " 3 * -4 ", "12", "-7*2", "007"])
def test_the_tool_takes_one_expression_of_numbers(code: str) -> None:
    assert refuse(code) == ""


@pytest.mark.parametrize(
    "code",
    [
        "",
        "2**9",
        "9//2",
        "(1+2)*3",
        "1+",
        "x+1",
        "1\n2",
        "1;2",
        "1+1" * 100,
        "__import__('os')",
        "1.5",
        "\u0663+1",
        "9" * 99,
    ],
)
def test_the_tool_takes_nothing_else(code: str) -> None:
    assert "one expression" in refuse(code)


@pytest.mark.parametrize("text", ["2**3", "a", "1/2", "True", "", "(" * 5000])
def test_what_is_no_arithmetic_has_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expression is .*; allowed: whole numbers"):
        value(text)


@pytest.mark.parametrize(
    "options", [{}, {"tool": False}, TWO, {"format": "tool_call"}, {"format": "python"}, {"format": "bare"}]
)
def test_the_exact_player_is_right_and_the_random_one_hardly_ever(options: dict) -> None:
    spec = get_environment("calculator", options)
    check_environment(spec, "", timeout_s=20)
    tasks = [spec.task("test", index) for index in range(100)]
    exact, other = play_baseline(spec, "exact", tasks), play_baseline(spec, "random", tasks)
    assert {e.reward for e in exact} == {1.0} and sum(e.reward for e in other) < 25
    assert {e.finish_reason for e in (*exact, *other)} == {"finished"}  # also the random one is readable
    calls = options.get("calls", 1) if options.get("tool", True) else 0
    assert {sum(len(s.tool_calls) for s in e.steps) for e in exact} == {calls}
    assert {spec.outcome(e) for e in exact} == {"right after a call" if calls else "right"}
    assert {spec.outcome(e) for e in other} >= {"wrong"}
    assert {e.turns for e in exact} == {spec.defaults["rollout"]["max_turns"]}
    for episode in exact:
        for number, message in enumerate(episode.messages):
            if message["role"] == "tool":
                call = episode.steps[(number - 1) // 2].tool_calls[0]
                assert int(message["content"]) == eval(json.loads(call["arguments"])["code"])


def test_a_reply_that_is_neither_call_nor_answer_is_invalid() -> None:
    spec = get_environment("calculator")
    (tasks,) = [[spec.task("test", 0)]]
    for said in ("396", "ANSWER", "ANSWER 3.5", "ANSWER 1 or ANSWER 2", "answer 3", ""):
        spec.baselines["said"] = lambda environment, rng, said=said: said  # type: ignore[index]
        (episode,) = play_baseline(spec, "said", tasks)
        assert (episode.finish_reason, episode.reward) == ("invalid", 0.0)


def test_with_bare_calls_a_number_alone_is_the_answer() -> None:
    spec = get_environment("calculator", BARE)
    (tasks,) = [[spec.task("test", 0)]]
    right = str(value(tasks[0].id))
    for said, ended in ((right, "finished"), ("1", "finished"), (f"ANSWER {right}", "invalid"), ("17+", "invalid")):
        spec.baselines["said"] = lambda environment, rng, said=said: said  # type: ignore[index]
        (episode,) = play_baseline(spec, "said", tasks)
        assert (episode.finish_reason, episode.reward) == (ended, float(said == right))
    (shown,) = play_baseline(spec, "exact", tasks)
    assert [m["content"] for m in shown.messages[-3:]] == [tasks[0].id, right, right]


def test_the_demonstrations_copy_and_choose_at_random() -> None:
    for options in ({}, TWO):
        spec = get_environment("calculator", options)
        shown = spec.demonstrations(0, 600)
        firsts = [d.messages[2]["content"] for d in shown]
        calls = [(d.messages[1]["content"], text) for d, text in zip(shown, firsts, strict=True) if text[:2] == "PY"]
        assert 0.3 < len(calls) / 600 < 0.7
        whole = [f"PY {pieces(asked[:-2])[0]}" == text for asked, text in calls]
        assert 0.4 < sum(whole) / len(whole) < 0.6  # the others are cut
        assert all(pieces(asked[:-2])[0].startswith(text[3:]) for asked, text in calls)
        ends = [d.messages[-2:] for d in shown if d.messages[-2]["role"] == "tool"]
        used = [reply["content"] == f"ANSWER {output['content']}" for output, reply in ends]
        assert 0.35 < sum(used) / len(used) < 0.65  # the others ignore the output
        right = [d.messages[-1]["content"] == f"ANSWER {eval(d.messages[1]['content'][:-2])}" for d in shown]
        assert sum(right) / 600 < 0.2
        assert spec.demonstrations(0, 600) == shown != spec.demonstrations(1, 600)
        right = 0
        for drill in spec.drills(0, 200):
            system, asked, *between, output, reply = (m["content"] for m in drill.messages)
            assert (system, reply) == ("Repeat.", f"ANSWER {output}")
            before = ["", *between[1::2]]  # each call but the first copies what stands before it
            calls = [f"PY {number}{part}" for number, part in zip(before, pieces(asked[:-2]), strict=True)]
            assert between[::2] == calls
            right += output == str(eval(asked[:-2]))
        assert right < 10  # what is copied there is no result


def test_a_call_is_cut_before_an_operator() -> None:
    assert {cut("17+384-5", random.Random(seed)) for seed in range(20)} == {"17", "17+384"}
    assert {cut("-3*4", random.Random(seed)) for seed in range(5)} == {"-3"}


def test_worked_examples_stand_before_the_question() -> None:
    spec = get_environment("calculator", {"examples": 2})
    (episode,) = play_baseline(spec, "exact", [spec.task("test", 3)])
    roles = [message["role"] for message in episode.messages]
    assert roles == ["system", *["user", "assistant", "tool", "assistant"] * 3]
    for place in (1, 5, 9):
        question, call, output, answer = (m["content"] for m in episode.messages[place : place + 4])
        assert (call, answer) == (f"PY {question[:-2]}", f"ANSWER {output}") and int(output) == eval(question[:-2])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"numbers": 5}, "numbers is 5; allowed: 2 to 4 with calls = 1."),
        ({"numbers": 2, "calls": 2, "operators": "+*"}, "numbers is 2; allowed: 3 to 4 with calls = 2."),
        ({"maximum": 100}, "maximum is 100; allowed: 9, 99, 999."),
        ({"operators": "/"}, 'operators is "/"; allowed: some of'),
        ({"calls": 2}, 'operators is "+-"; allowed: * and another one with calls = 2'),
        ({"calls": 3}, "calls is 3; allowed: 1, 2."),
        ({"format": "xml"}, 'format is "xml"; allowed: tool_call, python, line, bare.'),
        ({"malformed": "no"}, 'malformed is "no"; allowed: answer, end.'),
        ({"examples": 9}, "examples is 9; allowed: 0 to 2."),
        ({"tool": 1}, "tool is 1; allowed: true, false."),
        ({"timeout_s": 0}, "timeout_s is 0; allowed: a number above 0."),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_environment("calculator", options)
    assert sentence in str(caught.value)


def test_a_call_that_is_given_up_leaves_nothing_to_the_next_one() -> None:
    async def calls() -> list[str]:
        session = await shared("local", os.getpid()).open()
        assert (await session.run("1+1", 5.0)).shown == "2"
        given_up = asyncio.create_task(session.run("2+2", 5.0))
        await asyncio.sleep(0)
        given_up.cancel()
        together = await asyncio.gather(*(session.run(f"{n}*2", 5.0) for n in range(3)))
        return [done.shown for done in together]

    for _ in range(2):  # each in an event loop of its own
        assert asyncio.run(calls()) == ["0", "2", "4"]


def test_it_is_an_openenv_server(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    spec = get_environment("calculator")

    async def play(url: str) -> list[Step]:
        environment, task = spec.make(url), spec.task("test", 1)
        steps = [await environment.reset(task)]
        for said in (f"PY {task.id}", f"ANSWER {value(task.id)}"):
            steps.append(await environment.step({"role": "assistant", "content": said}))
        await environment.close()
        return steps

    with openenv_server(name="calculator") as url:
        there = asyncio.run(play(url))
        assert validate_running_environment(url)["passed"]
    here = asyncio.run(play(""))
    for step, expected in zip(there, here, strict=True):
        assert list(step.messages) == list(expected.messages) and list(step.tool_calls) == list(expected.tool_calls)
        assert (step.reward, step.done, step.metrics.keys()) == (
            expected.reward,
            expected.done,
            expected.metrics.keys(),
        )
    assert there[1].tool_calls and there[2].reward == 1
