"""What is checked of an environment before any work, in about a second."""

import asyncio
import contextlib
import ipaddress
from urllib.parse import urlsplit

from tasks.environments.interface import EnvironmentSpec, Message, Split, Task

TASKS = 64  # of each split


def check_environment(
    spec: EnvironmentSpec, url: str, *, timeout_s: float, here: bool = True, training: bool = True
) -> None:
    """Begin an episode in this process, or on the server at `url`; a call may take `timeout_s`.

    Without `training` only test tasks are asked for, which is all that some environments have.

    Not `here`, on a cluster, a server on the loopback interface is a container of the rollout's pod, out of reach, and
    is not called. Raises ValueError, in one sentence, for tasks or resets that break the interface, TimeoutError, and
    what the environment's client raises where no server answers.
    """
    train = _tasks(spec, "train", TASKS) if training else []
    test = _tasks(spec, "test", min(TASKS, spec.test_tasks or TASKS))
    if both := {task.id for task in train} & {task.id for task in test}:
        raise ValueError(f'environment is "{spec.name}", and task {min(both)} is both a training and a test task.')
    if here or not _on_loopback(url):
        for task in {id(spec.of(task)): task for task in reversed(train or test)}.values():  # one of each of a mixture
            first, *again = asyncio.run(_resets(spec, url, task, timeout_s))
            if again and again[0] != first:
                what = f"and two resets with task {task.id} give other messages"
                raise ValueError(f'environment is "{spec.name}", {what}.')
    if spec.check and not url and here:
        asyncio.run(spec.check())


def first_messages(spec: EnvironmentSpec, url: str, *, timeout_s: float, here: bool = True) -> list[Message]:
    """What the first test task begins with; nothing where `check_environment` does not call the environment."""
    if not here and _on_loopback(url):
        return []
    return asyncio.run(_resets(spec, url, spec.task("test", 0), timeout_s))[0]


def _tasks(spec: EnvironmentSpec, split: Split, count: int) -> list[Task]:
    tasks, again = ([spec.task(split, index) for index in range(count)] for _ in range(2))
    if tasks != again:
        raise ValueError(f'environment is "{spec.name}", and its {split} tasks are others each time.')
    return tasks


async def _resets(spec: EnvironmentSpec, url: str, task: Task, timeout_s: float) -> list[list[Message]]:
    """The first messages: of one reset of a server, of two in this process, which must agree."""
    environment = spec.make(url)
    try:
        times = 1 if url or not spec.of(task).seeded else 2
        return [list((await asyncio.wait_for(environment.reset(task), timeout_s)).messages) for _ in range(times)]
    except TimeoutError:
        where = f'environment_url is "{url}"' if url else f'environment is "{spec.name}"'
        raise TimeoutError(f"{where}: a reset had no answer within {timeout_s:g} s.") from None
    finally:
        await environment.close()


def _on_loopback(url: str) -> bool:
    found = urlsplit(url)
    host = "127.0.0.1" if found.hostname == "localhost" else found.hostname or ""
    with contextlib.suppress(ValueError):  # another name
        return found.scheme in ("http", "https") and ipaddress.ip_address(host).is_loopback
    return False
