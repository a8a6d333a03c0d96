"""Games on a server, one WebSocket session each, played from ordinary synchronous code."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import Action, Observation, State
from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State as SocketState

from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation
from tasks.environments.open_files import allow_many_open_files

_CONNECT_TIMEOUT_S = 8.0
_CONNECTING_AT_ONCE = 64  # more would only queue in the server, and time out there
_START_ONE = "start one with python -m tasks.environments.blackjack.server"

_Result = TypeVar("_Result")


class BlackJackClient(EnvClient[BlackJackAction, BlackJackObservation, State]):
    """One session, with OpenEnv's own asynchronous reset(seed=…), step(action), state() and close()."""

    def _step_payload(self, action: BlackJackAction) -> dict[str, Any]:
        return {"move": action.move}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[BlackJackObservation]:
        observation = BlackJackObservation.model_validate(
            {**payload["observation"], "done": payload["done"], "reward": payload["reward"]}
        )
        return StepResult(observation, observation.reward, observation.done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State.model_validate(payload)

    @property
    def is_connected(self) -> bool:
        """Whether the session of the last message is still there."""
        return self._ws is not None and self._ws.state is SocketState.OPEN


class RemoteGames:
    """Many games on one server; see `tasks.environments.catalog.Games`.

    Sessions open when first needed and are used again by later games. An event loop in a thread of its own
    drives them, all messages of one call at once.
    """

    def __init__(self, url: str) -> None:
        """Open the first session.

        Raises ValueError for a URL that is no http(s) one, ConnectionError if nobody answers in 8 seconds.
        """
        self._url = url
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f'environment_url is "{url}"; it needs the form http://host:port; {_START_ONE}.')
        allow_many_open_files()
        self._sessions: list[BlackJackClient] = []
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blackjack-sessions", daemon=True)
        self._thread.start()
        try:
            self._run(self._connect(1))
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> list[Observation]:
        """Open one fresh game a seed. A session lost since the last game is opened again.

        Raises ConnectionError if the server is gone or has no room for as many sessions.
        """
        self._open = len(seeds)
        return self._run(self._reset(seeds))

    def step(self, actions: Mapping[int, Action]) -> dict[int, Observation]:
        """Make one move in each game named. Raises ConnectionError if a game's connection was lost."""
        for index in actions:
            if not 0 <= index < self._open:
                raise ValueError(f"step names game {index}; {self._open} games are open, counted from 0.")
            # OpenEnv's client would connect again by itself, to a session in which no game is open.
            if not self._sessions[index].is_connected:
                raise ConnectionError(f'environment_url is "{self._url}": the connection was lost during a game.')
        return dict(zip(actions, self._run(self._step(actions)), strict=True))

    def close(self) -> None:
        """Close all sessions and end the thread. Calling it again does nothing."""
        if self._loop.is_closed():
            return
        self._open = 0
        with suppress(ConnectionError):
            self._run(_all(session.close() for session in self._sessions))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._loop.is_closed():
            work.close()
            raise ValueError("these games are closed; connect again.")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _reset(self, seeds: Sequence[int]) -> list[Observation]:
        await self._connect(len(seeds))
        return await self._observations(
            session.reset(seed=seed) for session, seed in zip(self._sessions, seeds, strict=False)
        )

    async def _step(self, actions: Mapping[int, Action]) -> list[Observation]:
        return await self._observations(self._sessions[i].step(action) for i, action in actions.items())  # type: ignore[arg-type]

    async def _connect(self, count: int) -> None:
        while len(self._sessions) < count:
            self._sessions.append(
                BlackJackClient(
                    self._url,
                    connect_timeout_s=_CONNECT_TIMEOUT_S,
                    websocket_ping_interval_s=None,  # the server pings already
                )
            )
        gate = asyncio.Semaphore(_CONNECTING_AT_ONCE)

        async def connect(session: BlackJackClient) -> None:
            async with gate:
                await session.connect()

        try:
            await _all(connect(session) for session in self._sessions[:count] if not session.is_connected)
        except ConnectionError as error:
            if isinstance(error.__cause__, InvalidHandshake):
                what = f"what answers there is no OpenEnv environment ({error.__cause__})"
            else:
                what = "nobody answers there"
            raise ConnectionError(f'environment_url is "{self._url}": {what}; {_START_ONE}.') from error

    async def _observations(self, calls: Iterable[Any]) -> list[Observation]:
        """The observations of many resets or moves; what can go wrong between two machines gets a name."""
        where = f'environment_url is "{self._url}"'
        try:
            return [result.observation for result in await _all(calls)]
        except (ConnectionClosed, OSError) as error:
            raise ConnectionError(f"{where}: the connection was lost during a game.") from error
        except RuntimeError as error:  # what the server answered, in OpenEnv's words
            if "CAPACITY_REACHED" in str(error):
                raise ConnectionError(
                    f"{where}: there is no room for {self._open} games at once; raise --max-sessions."
                ) from error
            raise ValueError(f"{where}: {error}") from error
        except (ValidationError, KeyError) as error:
            raise ValueError(f"{where}: what answers there plays another game than BlackJack.") from error


async def _all(calls: Iterable[Any]) -> list[Any]:
    """Await all, even when one fails: a reply that nobody reads would be taken for the next message's."""

    async def one(call: Any) -> Any:
        return await call

    results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
