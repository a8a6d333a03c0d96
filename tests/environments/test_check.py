"""Environments that are not as the interface says are refused before any work, in one sentence."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import EnvironmentSpec, Message, Step, Task

COUNT = itertools.count()


class Greeting:
    """An environment that says the same each time, and notes what is asked of it."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    async def reset(self, task: Task) -> Step:
        self.asked.append(task.id)
        return Step(messages=[{"role": "user", "content": f"Hello, {task.id}."}])

    async def step(self, reply: Message) -> Step:
        raise AssertionError("no reply is sent")

    async def close(self) -> None:
        self.asked.append("closed")


class Chance(Greeting):
    async def reset(self, task: Task) -> Step:
        return Step(messages=[{"role": "user", "content": f"Hello, number {next(COUNT)}."}])


class Slow(Greeting):
    async def reset(self, task: Task) -> Step:
        await asyncio.sleep(60)
        return Step()


def a_task(split: Any, index: int) -> Task:
    return Task(id=f"{split}-{index}", split=split, seed=index)


def spec(task: Callable[[Any, int], Task] = a_task, local: type[Greeting] = Greeting, **more: Any) -> EnvironmentSpec:
    return EnvironmentSpec(name="greeting", task=task, local=local, **more)


def complaint(spec: EnvironmentSpec, url: str = "") -> str:
    with pytest.raises((ValueError, TimeoutError)) as caught:
        check_environment(spec, url, timeout_s=0.2)
    return str(caught.value)


def test_an_environment_begins_an_episode_twice_here_and_once_on_a_server() -> None:
    opened = Greeting()
    both = spec(local=lambda: opened, remote=lambda url: opened)  # type: ignore[arg-type]
    check_environment(both, "", timeout_s=60)
    assert opened.asked == ["train-0", "train-0", "closed"]
    check_environment(both, "http://elsewhere:8000", timeout_s=60)
    assert opened.asked[3:] == ["train-0", "closed"]


def test_blackjack_is_as_the_interface_says() -> None:
    check_environment(get_environment("blackjack"), "", timeout_s=60)


def test_a_test_task_is_no_training_task() -> None:
    shared = spec(lambda split, index: Task(id=str(index if split == "train" else 63 + index), split=split, seed=index))
    assert complaint(shared) == 'environment is "greeting", and task 63 is both a training and a test task.'
    few = replace(shared, task=lambda split, index: a_task(split, index) if index < 5 else 1 / 0, test_tasks=5)
    with pytest.raises(ZeroDivisionError):  # training tasks have no end; of five test tasks only these are asked for
        check_environment(few, "", timeout_s=60)


def test_a_task_is_the_same_each_time() -> None:
    def chance(split: Any, index: int) -> Task:
        return Task(id=f"{split}-{index}", split=split, seed=next(COUNT) if split == "test" else index)

    assert complaint(spec(chance)) == 'environment is "greeting", and its test tasks are others each time.'


def test_two_resets_with_one_task_agree() -> None:
    assert complaint(spec(local=Chance)) == (
        'environment is "greeting", and two resets with task train-0 give other messages.'
    )


def test_a_reset_that_takes_too_long() -> None:
    assert complaint(spec(local=Slow)) == 'environment is "greeting": a reset had no answer within 0.2 s.'
    served = spec(remote=lambda url: Slow())
    assert complaint(served, "http://elsewhere:8000") == (
        'environment_url is "http://elsewhere:8000": a reset had no answer within 0.2 s.'
    )
