"""The environment: what the policy is told, how its answer is graded, and what is refused before any work."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from openenv.cli._validation import validate_running_environment

from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import Episode, Step, Task
from tasks.environments.scripted import play_baseline
from tasks.environments.tool_use import SandboxUnavailable
from tasks.evaluation.metrics import measure, pass_at
from tasks.interpreter.interface import Execution

ADD = {"prompt": "Add two numbers.", "tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]}
RIGHT, HALF = "def add(a, b):\n    return a + b", "def add(a, b):\n    return 3"


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


@pytest.fixture
def path(tmp_path: Path) -> str:
    rows = [{**ADD, "reference": RIGHT}, *({**ADD, "prompt": f"Add two numbers, {n}."} for n in range(3))]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "own.jsonl")


def played(replies: list[str], index: int = 0, **options: Any) -> Episode:
    """The training task of that index, answered so."""

    async def run() -> Episode:
        spec = get_environment("coding", options)
        environment = spec.make()
        episode = Episode(spec.task("train", index))
        episode.steps.append(await environment.reset(episode.task))
        for reply in replies:
            step = await environment.step({"role": "assistant", "content": reply})
            episode.steps.append(step)
            episode.turns += 1
            episode.reward += step.reward
            if step.done:
                episode.finish_reason = "finished" if step.valid else "invalid"
        await environment.close()
        return episode

    return asyncio.run(run())


def test_an_answer_is_graded(path: str) -> None:
    file: dict[str, Any] = {"problems": "file", "path": path}
    spec = get_environment("coding", file)
    sleeps = "import time\ndef add(a, b):\n    time.sleep(60)"
    right, half, slow, none = (
        played([reply], **file, timeout_s=0.3)
        for reply in (fenced(RIGHT), fenced(HALF), fenced(sleeps), "I do not know.")
    )
    assert [episode.reward for episode in (right, half, slow, none)] == [1.0, 0.5, 0.0, 0.0]
    assert [spec.outcome(episode) for episode in (right, half, slow, none)] == [
        "solved",
        "partly",
        "timeout",
        "invalid",
    ]
    assert half.steps[-1].metrics == {"success": 0.0, "tests_passed": 0.5, "tests_timed_out": 0.0}
    assert half.steps[-1].note == "1 of 2 tests passed; 1 wrong"
    assert spec.outcome(played([fenced("def add(a, b):\n    return None")], **file)) == "wrong"
    assert played([fenced(HALF)], reward="all", **file).reward == 0
    assert played([fenced(RIGHT)], reward="all", **file).reward == 1
    told = [message["content"] for message in right.steps[0].messages]
    assert "Write a Python function `add`.\nAdd two numbers" in told[-1] and "== 3" not in "".join(told)


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>\n```python\n{HALF}\n```\n</think>\n{fenced(RIGHT)}",
        f"{fenced(HALF)}\nNo, rather\n{fenced(RIGHT)}",
        RIGHT,
        f"```\n{RIGHT}\n```",
        f"  ```py\n{RIGHT}\n  ```",
    ],
)
def test_which_code_is_the_answer(path: str, reply: str) -> None:
    assert played([reply], problems="file", path=path).reward == 1


def test_a_reply_that_has_no_code(path: str) -> None:
    for reply in ("", "return a + b", f"```python\n{RIGHT}", "def add(a, b", f"<think>{RIGHT}</think>"):
        episode = played([reply], problems="file", path=path)
        assert (episode.reward, episode.finish_reason) == (0, "invalid")


def test_the_interpreter_is_a_tool_before_the_answer(path: str) -> None:
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "1 + 2"}}\n</tool_call>'
    episode = played([call, fenced(RIGHT)], problems="file", path=path, tool=True)
    assert episode.steps[1].messages[0]["content"] == "3"
    assert (episode.reward, episode.steps[1].metrics["tool_calls"]) == (1.0, 1.0)


def test_baselines_are_the_ends_of_the_scale() -> None:
    spec = get_environment("coding", {"reward": "all"})
    tasks = [spec.task("test", index) for index in range(6)]
    reference, empty = (play_baseline(spec, name, tasks) for name in ("reference_solution", "empty_answer"))
    assert [episode.reward for episode in reference] == [1.0] * 6
    assert [episode.reward for episode in empty] == [0.0] * 6
    results = measure(spec, reference + empty)
    assert (results.reward.mean, results.metrics["success"].mean, results.metrics["tests_passed"].mean) == (
        0.5,
        0.5,
        0.5,
    )
    assert spec.reward_range == (0, 1)
    # 12 samples of 6 tasks, two each of which one is solved: pass@1 is 1/2, and of two samples one is right.
    assert pass_at(reference + empty, (1, 2)) == {"1": 0.5, "2": 1.0}


def test_what_a_limit_ended_counts_as_not_solved() -> None:
    spec = get_environment("coding", {"reward": "all"})
    solved = play_baseline(spec, "reference_solution", [spec.task("test", 0)])
    cut = Episode(spec.task("test", 1), steps=[Step()], finish_reason="truncated")
    assert measure(spec, [*solved, cut]).metrics["success"].mean == 0.5


def test_results_are_broken_down_by_family_and_difficulty() -> None:
    spec = get_environment("coding", {"families": ["lists", "tree"], "difficulty": [1, 3]})
    found = {name for index in range(60) for name in spec.parts(spec.task("test", index))}
    assert found == {"filter_and_combine", "move_some", "tree", "difficulty 1", "difficulty 3"}
    same = [spec.task("train", index) for index in range(5)]
    assert same == [spec.task("train", index) for index in range(5)]


def test_the_environment_is_as_the_interface_says(path: str) -> None:
    check_environment(get_environment("coding"), "", timeout_s=60)
    check_environment(get_environment("coding", {"problems": "file", "path": path}), "", timeout_s=60)


def test_humaneval_is_evaluated_and_never_trained() -> None:
    spec = get_environment("coding", {"problems": "humaneval"})
    with pytest.raises(ValueError, match=r"HumanEval is for evaluation only\.$"):
        check_environment(spec, "", timeout_s=60)
    check_environment(spec, "", timeout_s=60, training=False)
    tasks = [spec.task("test", index) for index in (0, 32, 163)]
    assert [episode.reward for episode in play_baseline(spec, "reference_solution", tasks)] == [1.0] * 3
    assert [episode.reward for episode in play_baseline(spec, "empty_answer", tasks)] == [0.0] * 3


def test_a_reference_that_fails_its_tests_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    rows = [{**ADD, "reference": RIGHT}, {**ADD, "prompt": "Else.", "reference": HALF}]
    file.write_text("\n".join(map(json.dumps, rows)))
    spec = get_environment("coding", {"problems": "file", "path": str(file)})
    with pytest.raises(ValueError) as caught:
        check_environment(spec, "", timeout_s=60)
    assert str(caught.value) == f"{file}, line 2: the reference fails test 2 (wrong); allowed: one that passes."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"problems": "mbpp"}, 'problems is "mbpp"; allowed: generated, humaneval, file.'),
        ({"problems": "file", "path": "no.jsonl"}, 'path is "no.jsonl"; allowed: a JSONL file of problems.'),
        ({"path": "no.jsonl"}, 'path is "no.jsonl"; allowed: none, unless problems is "file".'),
        ({"families": "poker"}, 'families is "poker"; allowed: lists, strings, '),
        ({"families": ["lists", 3]}, "families is 3; allowed: lists, strings, "),
        ({"difficulty": 4}, "difficulty is 4; allowed: 1, 2, 3, or a list of these."),
        ({"difficulty": 3, "families": "move_some"}, "difficulty is 3; allowed: one that the chosen families have."),
        (
            {"problems": "humaneval", "families": "lists"},
            'families is "lists"; allowed: none, unless problems is generated',
        ),
        ({"reward": "some"}, 'reward is "some"; allowed: tests, all.'),
        (
            {"tool": True, "format": "python"},
            'format is "python"; allowed: tool_call, line: a fenced block is the answer.',
        ),
        ({"timeout_s": 0}, "timeout_s is 0; allowed: a number above 0."),
        ({"timeout_s": 60}, "timeout_s is 60; allowed: up to 10 s."),
        ({"tests": 3}, 'an option of the environment is "tests"; allowed: problems, families'),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_environment("coding", options)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


class Away:
    """An interpreter whose sessions are away after so many runs."""

    description = "away"

    def __init__(self, runs: int) -> None:
        self.left = runs

    async def open(self) -> "Away":
        return self

    async def run(self, code: str, timeout_s: float) -> Execution:
        self.left -= 1
        return Execution("unavailable", error="gone") if self.left < 0 else Execution("ok", value='{"tuple":[1]}')

    async def close(self) -> None: ...


@pytest.mark.parametrize("runs", [0, 1, 2, 4])
def test_a_sandbox_that_is_away_is_no_wrong_answer(runs: int) -> None:
    async def run() -> Step:
        spec = get_environment("coding")
        environment: Any = spec.make()
        environment.interpreter = lambda: Away(runs)
        await environment.reset(spec.task("train", 0))
        return await environment.step({"role": "assistant", "content": fenced(RIGHT)})

    with pytest.raises(SandboxUnavailable, match=r"^the sandbox was unavailable: gone$"):
        asyncio.run(run())


def test_as_an_openenv_server(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    spec = get_environment("coding")
    tasks: list[Task] = [spec.task("train", index) for index in range(4)]

    async def play(url: str) -> list[float]:
        async def one(task: Task) -> float:
            here: Any = spec.make()
            await here.reset(task)  # to know the reference solution, which the server does not tell
            environment = spec.make(url)
            await environment.reset(task)
            step = await environment.step({"role": "assistant", "content": fenced(here.problem.reference)})
            await environment.close()
            return step.reward

        return list(await asyncio.gather(*map(one, tasks)))

    with openenv_server(name="coding") as url:
        assert asyncio.run(play(url)) == [1.0] * 4
        assert validate_running_environment(url)["passed"]
