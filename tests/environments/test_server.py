"""Every environment as an OpenEnv server, played over WebSockets by the general client."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from openenv.core.generic_client import GenericEnvClient

from tasks.environments.catalog import get_environment
from tasks.environments.client import RemoteEnvironment
from tasks.environments.interface import Environment, EnvironmentSpec, Step, Task

Server = Callable[..., AbstractContextManager[str]]
STAND = {"role": "assistant", "content": "STAND"}


@pytest.fixture(scope="module")
def url(openenv_server: Server) -> Iterator[str]:
    with openenv_server() as address:
        yield address


def seen(step: Step) -> tuple:
    return list(step.messages), step.reward, step.done, step.valid, dict(step.metrics), step.note


async def play(environment: Environment, task: Task, words: Sequence[str]) -> list[tuple]:
    """All that is seen of an episode whose replies the task decides."""
    rng, found = random.Random(task.seed), [await environment.reset(task)]
    while not found[-1].done:
        found.append(await environment.step({"role": "assistant", "content": rng.choice(words)}))
    return [seen(step) for step in found]


async def play_all(spec: EnvironmentSpec, url: str, tasks: Sequence[Task], words: Sequence[str]) -> list[list[tuple]]:
    """Twenty sessions at once, each with one episode after the other."""

    async def session(number: int) -> list[list[tuple]]:
        environment = spec.make(url)
        found = [await play(environment, task, words) for task in tasks[number::20]]
        await environment.close()
        await environment.close()
        return found

    parts = await asyncio.gather(*map(session, range(20)))
    return [parts[i % 20][i // 20] for i in range(len(tasks))]


@pytest.mark.parametrize(
    ("name", "words"), [("blackjack", ["HIT", "STAND", "?"]), ("traffic_lights", ["GO", "STOP", "?"])]
)
def test_the_same_episodes_over_websockets_as_here(openenv_server: Server, name: str, words: list[str]) -> None:
    spec = get_environment(name)
    tasks = [spec.task("train", index) for index in range(100)] + [spec.task("test", index) for index in range(60)]
    with openenv_server(name=name) as address:
        remote = asyncio.run(play_all(spec, address, tasks, words))
    assert remote == asyncio.run(play_all(spec, "", tasks, words))


def test_a_stock_client_plays_by_seed(url: str) -> None:
    # What OpenEnv's own client shows of the training task of that index, with no package of ours.
    async def episode() -> tuple:
        async with GenericEnvClient(url) as client:
            first = await client.reset(seed=5)
            last = await client.step({"message": STAND})
            return first.observation["messages"], last.done, last.reward, await client.state()

    spec = get_environment("blackjack")
    messages, done, reward, state = asyncio.run(episode())
    here = asyncio.run(play(spec.make(), spec.task("train", 5), ["STAND"]))
    assert (messages, done, reward) == (here[0][0], True, here[-1][1])
    assert set(state) <= {"episode_id", "step_count"}  # no seed, and so no hidden card


def test_what_the_environment_refuses_is_said_in_its_words(url: str) -> None:
    async def refused() -> list[str]:
        said = []
        async with GenericEnvClient(url) as client:
            for seed in (None, -1, 1.5, "7", True):
                with pytest.raises(RuntimeError) as caught:
                    await client.reset(seed=seed)
                said.append(str(caught.value))
        environment = RemoteEnvironment(url)
        task = get_environment("blackjack").task("train", 1)
        await environment.reset(task)
        await environment.step(STAND)
        with pytest.raises(ValueError, match="no episode is open"):
            await environment.step(STAND)
        assert (await environment.reset(task)).messages  # and goes on
        await environment.close()
        return said

    assert all("whole number that is not negative" in sentence for sentence in asyncio.run(refused()))


def test_too_many_sessions_and_a_server_that_is_started_again(openenv_server: Server) -> None:
    task = get_environment("blackjack").task("train", 1)

    async def fill(address: str) -> list[RemoteEnvironment]:
        sessions = [RemoteEnvironment(address) for _ in range(9)]
        answers = await asyncio.gather(*(s.reset(task) for s in sessions), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(errors) == 5
        assert "no room for another session; raise --max-sessions or lower rollout.concurrent" in str(errors[0])
        return [s for s, answer in zip(sessions, answers, strict=True) if not isinstance(answer, Exception)]

    async def whole() -> None:
        with openenv_server("--max-sessions", "4") as address:
            sessions = await fill(address)
        with openenv_server("--port", address.rsplit(":", 1)[1]):
            # Not a reply in a new session, where no episode is open.
            with pytest.raises(ConnectionError, match=f'^environment_url is "{address}": the connection was lost'):
                await sessions[0].step(STAND)
            assert (await sessions[0].reset(task)).messages
        with pytest.raises(ConnectionError, match="nobody answers there; start one with python -m"):
            await sessions[1].reset(task)

    asyncio.run(whole())


def test_something_else_answers() -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    environment = RemoteEnvironment(f"http://127.0.0.1:{other.server_port}")
    with pytest.raises(ConnectionError, match="what answers there is no OpenEnv environment"):
        asyncio.run(environment.reset(Task("1", "train", 1)))
    other.shutdown()
    other.server_close()


def test_nobody_answers(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    began = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        asyncio.run(RemoteEnvironment(address).reset(Task("1", "train", 1)))
    assert time.monotonic() - began < 10
    assert str(caught.value) == (
        f'environment_url is "{address}": nobody answers there; start one with python -m tasks.environments.serve NAME.'
    )


@pytest.mark.parametrize("address", ["", "localhost:8000", "ws://localhost:8000", "http://"])
def test_a_url_of_another_form(address: str) -> None:
    with pytest.raises(ValueError, match=f'^environment_url is "{address}"; it needs the form http://host:port'):
        RemoteEnvironment(address)


@pytest.mark.parametrize("arguments", [["--port", "0"], ["--max-sessions", "0"], ["--max-sessions", "99999999"]])
def test_server_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.environments.serve import main

    with pytest.raises(SystemExit):
        main(["blackjack", *arguments])
    assert f"{arguments[0]} is {arguments[1]}; allowed:" in capsys.readouterr().err


def test_an_environment_that_is_not_there_is_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.environments.serve import main

    with pytest.raises(SystemExit):
        main(["poker"])
    assert 'environment is "poker"; allowed: blackjack' in capsys.readouterr().err
