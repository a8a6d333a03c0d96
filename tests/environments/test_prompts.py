"""A user's own data and reward functions: what is read, how it is split, how replies are rewarded, what is refused."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from openenv.cli._validation import validate_running_environment

from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import EnvironmentSpec, Step

NUMBERS = Path(__file__).parents[1] / "odd_even" / "numbers.jsonl"
HERE = "environments.test_prompts"
BOTH = {"odd_even:exact": 1.0, "odd_even:brief": 0.5}
Write = Callable[..., str]


def length(prompt: Any, reply: str, row: dict[str, Any]) -> int:
    row["prompt"] = "changed"
    return len(reply)


def columns(prompts: list[Any], completions: list[Any], answer: list[str], trainer_state: Any, missing: int = 3) -> Any:
    assert trainer_state is None and missing == 3
    said = completions[0] if isinstance(prompts[0], str) else completions[0][0]["content"]
    return [None if said == "pass" else float(said == answer[0])]


def everything(completions: list[str], **given: Any) -> list[float]:
    return [float(len(given))]


def slow(prompt: Any, reply: str, row: dict[str, Any]) -> float:
    time.sleep(0.2)
    return float(threading.current_thread() is threading.main_thread())


def words(prompt: Any, reply: str, row: dict[str, Any]) -> str:
    return "1.0"


def not_a_list(completions: list[str]) -> float:
    return 1.0


def needs_more(prompt: Any, reply: str, row: dict[str, Any], limit: int) -> float:
    return 1.0


NOT_CALLABLE = 3


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(*rows: Any, name: str = "data.jsonl") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return file


def opened(data: str = str(NUMBERS), reward: Any = "odd_even:exact", **options: Any) -> EnvironmentSpec:
    return get_environment("prompts", {"data": data, "reward": reward, **options})


def answered(spec: EnvironmentSpec, reply: str, index: int = 0) -> tuple[Step, Step]:
    async def play() -> tuple[Step, Step]:
        environment = spec.make()
        first = await environment.reset(spec.task("train", index))
        return first, await environment.step({"role": "assistant", "content": reply})

    return asyncio.run(play())


def prompts_of(spec: EnvironmentSpec, split: Any, count: int) -> set[str]:
    return {json.dumps(spec.task(split, index).data["row"]["prompt"]) for index in range(count)}


def test_each_function_is_a_metric_and_the_reward_is_their_weighted_sum() -> None:
    spec = opened(reward=BOTH)
    first, right = answered(spec, " even")
    (question,) = first.messages
    assert (question["role"], question["content"]) == ("user", "Is 0 odd or even?")
    assert (right.reward, right.done, right.metrics) == (1.0, True, {"exact": 1.0, "brief": 0.0})
    assert answered(spec, "even")[1].reward == 1.5 and answered(spec, "odd")[1].reward == 0.5
    assert answered(spec, "odd")[1].note == "exact 0, brief 1"
    assert [metric.key for metric in spec.metrics] == ["exact", "brief"]
    check_environment(spec, "", timeout_s=10)


def test_a_function_of_either_kind_gets_what_it_names(write: Write) -> None:
    asked = [{"role": "user", "content": "Say yes."}]
    rows = [{"asked": asked, "answer": "yes", "id": 1}, {"asked": "No?", "answer": "no", "id": 2}]
    data = write(*rows, {"asked": "3", "answer": "3", "id": 3})
    test = write({"asked": "4", "answer": "4", "id": 4}, {"asked": "5", "answer": "5", "id": 5}, name="test.jsonl")
    functions = [f"{HERE}:{name}" for name in ("length", "columns", "everything")]
    spec = opened(data, functions, prompt="asked", system="Brief.", test_data=test)
    first, step = answered(spec, "yes")
    assert first.messages == [{"role": "system", "content": "Brief."}, *asked]
    # `everything` is given the columns asked, answer and id, the prompts and the trainer's state.
    assert step.metrics == {"length": 3.0, "columns": 1.0, "everything": 5.0} and step.reward == 9.0
    # A function that does not apply has no metric; and none has changed the row.
    assert answered(spec, "pass", 1)[1].metrics == {"length": 4.0, "everything": 5.0}
    assert spec.task("train", 0).data["row"] == rows[0]
    assert [spec.task("test", index).data["row"]["asked"] for index in (0, 1)] == ["4", "5"] and spec.test_tasks == 2


@pytest.mark.parametrize(("processes", "of_main_thread"), [(0, 0.0), (1, 1.0)])
def test_a_slow_function_holds_nobody_up(processes: int, of_main_thread: float) -> None:
    spec = opened(reward=f"{HERE}:slow", processes=processes)
    answered(spec, "")  # the process is there

    async def together() -> tuple[int, list[Step]]:
        environments = [spec.make() for _ in range(3)]
        for environment in environments:
            await environment.reset(spec.task("train", 0))
        steps = asyncio.gather(*(e.step({"role": "assistant", "content": ""}) for e in environments))
        turns = 0
        while not steps.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns, await steps

    turns, steps = asyncio.run(together())
    assert turns > 10 and {step.reward for step in steps} == {of_main_thread}


def test_the_split_depends_on_the_prompt_alone(write: Write) -> None:
    spec = opened()
    train, test = prompts_of(spec, "train", 400), prompts_of(spec, "test", spec.test_tasks or 0)
    assert len(train | test) == 200 and not train & test and len(test) == spec.test_tasks
    assert 8 <= len(test) <= 35  # about a tenth
    lines = NUMBERS.read_text().splitlines()
    again = opened(write(*reversed(lines[:150]), *[{**json.loads(line), "source": "b"} for line in lines[:150]]))
    assert prompts_of(again, "train", 300) < train  # in another order, fewer, and each twice
    assert prompts_of(again, "test", again.test_tasks or 0) < test and again.test_tasks == 2 * len(
        prompts_of(again, "test", again.test_tasks or 0)
    )
    few = opened(write(*lines[:3]))
    assert (len(prompts_of(few, "train", 3)), few.test_tasks) == (1, 2)


def test_a_task_has_the_id_of_its_row() -> None:
    spec = opened()
    assert [spec.task("train", 3), spec.task("test", 1)] == [opened().task("train", 3), opened().task("test", 1)]
    assert len({spec.task("train", index).id for index in range(100)}) == 100
    assert spec.task("train", 2**60).split == "train"


def test_tiny_imitates_the_form_of_the_answers() -> None:
    assert opened().demonstrations is None
    spec = opened(answer="answer", system="One word.")
    assert spec.demonstrations is not None
    shown = spec.demonstrations(0, 200)
    assert shown == spec.demonstrations(0, 200)
    assert {one.messages[2]["content"] for one in shown} == {"odd", "even"}
    tests = prompts_of(spec, "test", spec.test_tasks or 0)
    assert not tests & {json.dumps(one.messages[1]["content"]) for one in shown}


def test_a_file_that_was_changed_is_read_again(write: Write) -> None:
    rows = [{"prompt": str(number), "answer": "a"} for number in range(5)]
    before, after = opened(write(*rows)), opened(write(*rows, {"prompt": "5", "answer": "a"}))
    found = [prompts_of(spec, "train", 9) | prompts_of(spec, "test", 9) for spec in (before, after)]
    assert found[1] - found[0] == {'"5"'} and len(found[0]) == 5


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"prompt": "a", "answer": "b"}', "", '{"prompt": "a"'], "whose line 3 is broken: Expecting"),
        (["[1]"], "whose line 1 is broken: it is no object;"),
        (['{"prompt": "a", "score": NaN}'], "whose line 1 is broken: NaN is no number;"),
        (['{"question": "a"}'], 'whose line 1 is broken: its column "prompt" is no text and no list of messages'),
        (['{"prompt": [{"role": "assistant", "content": "a"}]}'], "whose line 1 is broken: its column"),
        (['{"prompt": [{"role": "user"}]}'], "whose line 1 is broken: its column"),
        ([""], "which has no row;"),
    ],
)
def test_a_broken_line_is_named(write: Write, lines: list[str], complaint: str) -> None:
    path = write(*lines)
    with pytest.raises(ValueError) as caught:
        opened(path)
    assert str(caught.value).startswith(f'option data is "{path}", {complaint}')
    assert str(caught.value).endswith("; allowed: a JSONL file, with an object a line that holds a prompt.")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"reward": "nowhere:exact"},
            'option reward is "nowhere:exact"; allowed: package.module:function, of a module',
        ),
        ({"reward": "odd_even:nothing"}, 'option reward is "odd_even:nothing"; allowed: package.module:function'),
        ({"reward": "odd_even"}, 'option reward is "odd_even"; allowed: package.module:function'),
        ({"reward": f"{HERE}:NOT_CALLABLE"}, 'option reward is "environments.test_prompts:NOT_CALLABLE"; allowed'),
        ({"reward": []}, "option reward is []; allowed: package.module:function, a list of such, or their weights"),
        ({"reward": {"odd_even:exact": -1}}, "the weight of odd_even:exact is -1; allowed: 0 or more."),
        ({"reward": {"odd_even:exact": "1"}}, 'the weight of odd_even:exact is "1"; allowed: 0 or more.'),
        ({"reward": {"odd_even:exact": 0}}, "the sum of the weights in option reward is 0; allowed: more than 0."),
        (
            {"reward": f"{HERE}:needs_more"},
            f'option reward is "{HERE}:needs_more"; allowed: a function of prompt, reply',
        ),
        ({"data": "nowhere.jsonl"}, 'option data is "nowhere.jsonl", which is not there;'),
        ({"answer": "reason"}, f'option data is "{NUMBERS}", whose line 1 has no text in the column "reason";'),
        ({"test_data": str(NUMBERS)}, "line 1 of option data has the prompt of line 1 of option test_data."),
        ({"test_share": 1}, "option test_share is 1; allowed: more than 0, less than 1."),
        ({"processes": -1}, "option processes is -1; allowed: 0 or more."),
        ({"reward_range": [1, 0]}, "option reward_range is [1, 0]; allowed: [low, high]."),
        ({"rewards": "odd_even:exact"}, 'an option of the environment is "rewards"; allowed: data, reward, prompt,'),
    ],
)
def test_a_bad_option_is_one_sentence(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        opened(**options)
    assert str(caught.value).startswith(complaint)


def test_options_that_it_cannot_do_without() -> None:
    with pytest.raises(
        ValueError, match=r"^environment prompts lacks data and reward in rollout.environment_options\.$"
    ):
        get_environment("prompts")


def test_too_few_prompts(write: Write) -> None:
    with pytest.raises(ValueError, match=r"^option data has 2 different prompts; allowed: 3 or more\.$"):
        opened(write(*[{"prompt": p, "answer": ""} for p in ("a", "b", "a")]))


def test_a_column_that_a_function_needs(write: Write) -> None:
    data = write(*[{"prompt": str(n), "reply": "x"} for n in range(5)])
    with pytest.raises(ValueError) as caught:
        opened(data)
    assert str(caught.value) == (
        'option reward, by its parameter answer, is "odd_even:exact"; allowed: functions of the columns that every row '
        "has: prompt, reply."
    )


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (
            "words",
            'raised ValueError: what environments.test_prompts:words returned is "1.0"; allowed: a finite number',
        ),
        ("not_a_list", "returned is 1.0; allowed: a list with a number for each completion"),
        ("absent", "raised KeyError: 'score', for the first row and the reply \"0\"."),
    ],
)
def test_what_a_function_does_is_tried_before_any_work(function: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"^option reward has {HERE}:{function}, which ") as caught:
        check_environment(opened(reward=f"{HERE}:{function}"), "", timeout_s=10)
    assert complaint in str(caught.value)


def absent(prompt: Any, reply: str, row: dict[str, Any]) -> float:
    return row["score"]


def test_it_is_served_as_any_environment(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    options = {"data": str(NUMBERS), "reward": BOTH}
    spec = opened(**options)

    async def play(url: str) -> Step:
        environment = spec.make(url)
        await environment.reset(spec.task("test", 1))
        step = await environment.step({"role": "assistant", "content": "odd"})
        await environment.close()
        return step

    with openenv_server("--options", json.dumps(options), name="prompts") as url:
        assert vars(asyncio.run(play(url))) == {**vars(asyncio.run(play(""))), "messages": [], "tool_calls": []}
        report = validate_running_environment(url)
        assert report["passed"], report["summary"]
