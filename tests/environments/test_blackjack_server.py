import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tasks.environments.blackjack.client import RemoteGames
from tasks.environments.blackjack.environment import LocalGames
from tasks.environments.blackjack.models import BlackJackAction
from tasks.environments.catalog import Games, get_environment

STAND = BlackJackAction(move="STAND")
Server = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="module")
def url(openenv_server: Server) -> Iterator[str]:
    with openenv_server() as address:
        yield address


def play(games: Games, seeds: list[int]) -> list[list[dict]]:
    """All that is seen of games with moves drawn from the seeds."""
    seen = [[observation] for observation in games.reset(seeds)]
    rngs = [random.Random(seed) for seed in seeds]
    while live := [i for i, observations in enumerate(seen) if not observations[-1].done]:
        moves = {i: BlackJackAction(move=rngs[i].choice(["HIT", "STAND"])) for i in live}
        for i, observation in games.step(moves).items():
            seen[i].append(observation)
    return [[o.model_dump() for o in observations] for observations in seen]


def test_the_same_games_over_websockets_as_here(url: str) -> None:
    remote, local = get_environment("blackjack").connect(url), LocalGames()
    for seeds in ([5], list(range(200)), [9, 9, 9], list(range(500, 560))):
        assert play(remote, seeds) == play(local, seeds)
    remote.close()
    remote.close()
    with pytest.raises(ValueError, match="these games are closed"):
        remote.reset([1])


def test_what_the_environment_refuses_is_said_in_its_words(url: str) -> None:
    games = RemoteGames(url)
    with pytest.raises(ValueError, match="seed=-1; it needs a whole number that is not negative"):
        games.reset([1, -1])
    games.reset([1, 2])
    games.step({0: STAND})
    with pytest.raises(ValueError, match="no game is open"):
        games.step({0: STAND, 1: STAND})
    with pytest.raises(ValueError, match="names game 2; 2 games are open"):
        games.step({2: STAND})
    assert len(games.reset([3, 4])) == 2  # and goes on
    games.close()


def test_too_many_sessions_and_a_server_that_is_started_again(openenv_server: Server) -> None:
    with openenv_server("--max-sessions", "4") as address:
        games = RemoteGames(address)
        with pytest.raises(ConnectionError, match="no room for 9 games at once; raise --max-sessions"):
            games.reset(range(9))
        games.reset(range(4))
    with openenv_server("--port", address.rsplit(":", 1)[1]):
        # Not a move in a new session, where no game is open.
        with pytest.raises(ConnectionError, match=f'^environment_url is "{address}": the connection was lost'):
            games.step({0: STAND, 3: STAND})
        assert games.reset(range(6)) == LocalGames().reset(range(6))
    with pytest.raises(ConnectionError, match="nobody answers there; start one with python -m"):
        games.reset(range(2))
    games.close()


def test_something_else_answers() -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(ConnectionError, match="what answers there is no OpenEnv environment"):
        RemoteGames(f"http://127.0.0.1:{other.server_port}")
    other.shutdown()
    other.server_close()


def test_nobody_answers(closed_port: int) -> None:
    address = f"http://127.0.0.1:{closed_port}"
    began = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        RemoteGames(address)
    assert time.monotonic() - began < 10
    assert str(caught.value) == (
        f'environment_url is "{address}": nobody answers there; '
        "start one with python -m tasks.environments.blackjack.server."
    )


@pytest.mark.parametrize("address", ["", "localhost:8000", "ws://localhost:8000", "http://"])
def test_a_url_of_another_form(address: str) -> None:
    with pytest.raises(ValueError, match=f'^environment_url is "{address}"; it needs the form http://host:port'):
        RemoteGames(address)


@pytest.mark.parametrize("arguments", [["--port", "0"], ["--max-sessions", "0"], ["--max-sessions", "99999999"]])
def test_server_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.environments.blackjack.server import main

    with pytest.raises(SystemExit):
        main(arguments)
    assert f"{arguments[0]} is {arguments[1]}; allowed:" in capsys.readouterr().err
