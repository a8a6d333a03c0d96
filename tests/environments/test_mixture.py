"""Several environments at once: who plays which task, how often, and what becomes of their metrics and defaults."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openenv.cli._validation import validate_running_environment

from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import EnvironmentSpec, Step, Task, ToolSpec
from tasks.environments.mixture import count_tests, mixture, own_task, read_members
from tasks.environments.scripted import play_baseline
from tasks.evaluation.metrics import measure

NUMBERS = {"data": str(Path(__file__).parents[1] / "odd_even" / "numbers.jsonl"), "reward": "odd_even:exact"}
BOTH = "blackjack:3,traffic_lights"
WORDS = ["HIT", "STAND", "GO", "STOP"]


async def play(spec: EnvironmentSpec, url: str, tasks: list[Task]) -> list[list[Step]]:
    """Replies that the task decides, all by one environment."""
    environment, found = spec.make(url), []
    for task in tasks:
        rng, steps = random.Random(task.seed), [await environment.reset(task)]
        while not steps[-1].done:
            steps.append(await environment.step({"role": "assistant", "content": rng.choice(WORDS)}))
        found.append([replace(step, messages=list(step.messages), tool_calls=list(step.tool_calls)) for step in steps])
    await environment.close()
    return found


def test_each_environment_has_its_share_of_the_tasks() -> None:
    spec = get_environment(BOTH)
    tasks = [spec.task("train", index) for index in range(4000)]
    counts = Counter(task.data["environment"] for task in tasks)
    assert 2900 < counts["blackjack"] < 3100  # three quarters; the standard deviation is 27
    assert tasks[:50] == [get_environment(BOTH).task("train", index) for index in range(50)]
    assert not {task.id for task in tasks} & {spec.task("test", index).id for index in range(1000)}
    assert {spec.of(task).name for task in tasks} == {"blackjack", "traffic-lights"}
    assert all(spec.parts(task) == [task.data["environment"]] for task in tasks[:50])


def test_an_episode_is_played_as_its_environment_plays_it() -> None:
    spec = get_environment(BOTH)
    tasks = [spec.task("test", index) for index in range(40)]
    together = asyncio.run(play(spec, "", tasks))
    for task, steps in zip(tasks, together, strict=True):
        own = get_environment(task.data["environment"])
        assert asyncio.run(play(own, "", [own_task(task)])) == [steps]
    check_environment(spec, "", timeout_s=60)


def test_results_are_those_of_each_environment() -> None:
    spec = get_environment(BOTH)
    ((name, _),) = spec.baselines.items()
    assert name == "optimum_and_guess"
    tasks = [spec.task("test", index) for index in range(200)]
    episodes = play_baseline(spec, name, tasks)
    found = measure(spec, episodes)
    assert {episode.task.id for episode in episodes if spec.outcome(episode).startswith("traffic_lights: ")} == {
        task.id for task in tasks if task.data["environment"] == "traffic_lights"
    }
    assert set(found.parts) == {"blackjack", "traffic_lights"}
    assert found.parts["blackjack"].metrics["regret"].mean == 0  # by the optimum
    assert found.parts["traffic_lights"].metrics["right"].mean == pytest.approx(1 / 3, abs=0.15)
    assert "right" not in found.parts["blackjack"].metrics and found.metrics["regret"].mean == 0
    counts = Counter(task.data["environment"] for task in tasks)
    assert found.reward.mean == pytest.approx(sum(of.reward.mean * counts[k] for k, of in found.parts.items()) / 200)
    assert spec.details is not None
    drawn = spec.details(episodes)
    assert drawn["traffic_lights"] is None and len(drawn["blackjack"]) > 0
    assert [figure.name for figure in spec.figures] == ["blackjack_choices"]


def test_one_environment_twice_with_options_of_their_own() -> None:
    options = {"short": NUMBERS, "long": {**NUMBERS, "system": "Say odd or even.", "answer": "answer"}}
    spec = get_environment("short=prompts:2,long=prompts", options)
    tasks = [spec.task("train", index) for index in range(30)]
    steps = zip(tasks, asyncio.run(first_messages(spec, tasks)), strict=True)
    first = {task.data["environment"]: messages for task, messages in steps}
    assert [m["role"] for m in first["long"]] == ["system", "user"] and [m["role"] for m in first["short"]] == ["user"]
    assert spec.demonstrations is None and spec.baselines == {}  # not all have them


async def first_messages(spec: EnvironmentSpec, tasks: list[Task]) -> list[Any]:
    environment = spec.make()
    return [(await environment.reset(task)).messages for task in tasks]


def test_test_tasks_that_come_to_an_end() -> None:
    few = get_environment("prompts", NUMBERS)
    lights = get_environment("traffic_lights")
    specs, count = {"lights": lights, "numbers": few}, few.test_tasks or 0
    assert count_tests(specs, {"lights": 3.0, "numbers": 1.0}) == {"lights": 3 * count, "numbers": count}
    other = replace(few, test_tasks=4 * count)
    assert count_tests({"a": few, "b": other}, {"a": 1.0, "b": 2.0}) == {"a": count, "b": 4 * count}
    assert count_tests({"lights": lights}, {"lights": 1.0}) == {}
    mixed = mixture("both", specs, {"lights": 0.5, "numbers": 1.0})
    found = [mixed.task("test", index) for index in range(mixed.test_tasks or 0)]
    assert len({task.id for task in found}) == len(found) == count + -(-count // 2)
    assert {t.id for t in found if t.data["environment"] == "numbers"} == {
        f"numbers/{few.task('test', index).id}" for index in range(count)
    }


def test_defaults_leave_room_for_all_and_are_else_those_of_the_heaviest() -> None:
    heavy = get_environment(BOTH).defaults
    assert heavy["algorithm"] == get_environment("blackjack").defaults["algorithm"]
    assert (heavy["rollout"]["max_tokens"], heavy["rollout"]["max_turns"], heavy["training"]["seq_len"]) == (
        64,
        16,
        512,
    )
    equal = get_environment("traffic_lights,blackjack").defaults  # the first of two
    assert "algorithm" not in equal and equal["training"]["minibatch_size"] == 16
    shown = get_environment(BOTH).demonstrations
    assert shown is not None
    said = [any("light" in m["content"] for m in one.messages) for one in shown(0, 100)]
    assert (said.count(False), said.count(True)) == (75, 25)


def test_each_environment_keeps_its_tools_and_limits() -> None:
    tool = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
    lights = get_environment("traffic_lights")
    specs = {"with": replace(lights, tools=(tool,), stop=("!",), truncated_reward=-1.0), "without": lights}
    spec = mixture("both", specs, {"with": 1.0, "without": 1.0})
    found = {task.data["environment"]: spec.of(task) for task in (spec.task("train", index) for index in range(20))}
    assert found == specs and spec.tools == ()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("blackjack:-1,traffic_lights", 'the weight of blackjack is "-1"; allowed: more than 0.'),
        ("blackjack:0,traffic_lights", 'the weight of blackjack is "0"; allowed: more than 0.'),
        ("blackjack:two", 'the weight of blackjack is "two"; allowed: more than 0.'),
        ("blackjack:nan", 'the weight of blackjack is "nan"; allowed: more than 0.'),
        ("blackjack,", 'environment is "blackjack,"; allowed: name:weight,name:weight with weights above 0;'),
        ("blackjack,blackjack", 'environment is "blackjack,blackjack"; allowed: name:weight,name:weight'),
        ("a b=blackjack", 'environment is "a b=blackjack"; allowed: name:weight'),
        ("blackjack,poker:2", 'environment is "poker"; allowed: blackjack'),
    ],
)
def test_a_name_that_says_no_mixture(name: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_environment(name)
    assert str(caught.value).startswith(complaint)


def test_options_are_given_by_name() -> None:
    with pytest.raises(ValueError, match='option of the mixture is "decks"; allowed: options by the name of the env'):
        get_environment(BOTH, {"decks": 2})
    with pytest.raises(ValueError, match='an option of the environment is "decks"; allowed: none, blackjack has no'):
        get_environment(BOTH, {"blackjack": {"decks": 2}})
    assert [tuple(m) for m in read_members("a=x.y:0.5, z")] == [("a", "x.y", 0.5), ("z", "z", 1.0)]


def test_it_is_served_as_any_environment(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    spec = get_environment(BOTH)
    tasks = [spec.task("test", index) for index in range(20)]
    with openenv_server(name=BOTH) as url:
        assert asyncio.run(play(spec, url, tasks)) == asyncio.run(play(spec, "", tasks))
        report = validate_running_environment(url)
        assert report["passed"], report["summary"]
