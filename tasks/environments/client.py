"""An environment on an OpenEnv server: one WebSocket session, driven by OpenEnv's own generic client."""

from collections.abc import Mapping
from dataclasses import asdict
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any
from urllib.parse import urlsplit

from openenv.core.client_types import StepResult
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from tasks.environments.interface import Message, Step, Task

_START_ONE = "start one with python -m tasks.environments.serve NAME"


def allow_many_open_files() -> int:
    """Raise this process's soft limit, often 1,024, to its hard one, which is returned: each session is a socket."""
    _, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (hard, hard))
    return hard


class Session:
    """A session of any OpenEnv server, which opens with the first reset. `name` and `full` are for sentences: the input
    that gave the URL, and what to do where the server is full.

    Raises ValueError for a URL that is no http(s) one, and for what the environment itself refuses; ConnectionError
    where nobody answers within 8 seconds, the server is full, or the connection is lost during an episode.
    """

    def __init__(self, url: str, name: str, full: str, none: str = "start a server") -> None:
        self.where, self.full, self.none = f'{name} is "{url}"', full, none
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"{self.where}; it needs the form http://host:port; {none}.")
        allow_many_open_files()
        self._session = GenericEnvClient(
            url,
            connect_timeout_s=8,
            message_timeout_s=24 * 3600,  # the rollout has its own: rollout.environment_timeout_s
            websocket_ping_interval_s=None,  # the server pings already
        )

    @property
    def _connected(self) -> bool:
        return self._session._ws is not None and self._session._ws.state is State.OPEN

    async def reset(self, **arguments: Any) -> StepResult:
        """Begin an episode; a session that was lost since the last one is opened again."""
        if not self._connected:
            try:
                await self._session.connect()
            except ConnectionError as error:
                other = f"what answers there is no OpenEnv environment ({error.__cause__})"
                what = other if isinstance(error.__cause__, InvalidHandshake) else "nobody answers there"
                raise ConnectionError(f"{self.where}: {what}; {self.none}.") from error
        return await self._answer(self._session.reset(**arguments))

    async def step(self, action: Mapping[str, Any]) -> StepResult:
        """Send an action."""
        # OpenEnv's client would connect again by itself, to a session in which no episode is open.
        if not self._connected:
            raise ConnectionError(f"{self.where}: the connection was lost during an episode.")
        return await self._answer(self._session.step(dict(action)))

    async def close(self) -> None:
        """Close the session. Calling it again does nothing."""
        await self._session.close()

    async def _answer(self, call: Any) -> StepResult:
        try:
            return await call
        except (ConnectionClosed, OSError) as error:
            raise ConnectionError(f"{self.where}: the connection was lost during an episode.") from error
        except RuntimeError as error:  # what the server answered, in OpenEnv's words
            if "CAPACITY_REACHED" in str(error):
                full = f"the server has no room for another session; {self.full}"
                raise ConnectionError(f"{self.where}: {full}.") from error
            raise ValueError(f"{self.where}: {error}") from error


class RemoteEnvironment:
    """Plays whichever environment `tasks.environments.serve` serves at `url`. Raises as `Session`."""

    def __init__(self, url: str) -> None:
        full = "raise --max-sessions or lower rollout.concurrent_episodes"
        self._session = Session(url, "environment_url", full, _START_ONE)

    async def reset(self, task: Task) -> Step:
        """Begin an episode."""
        return self._step(await self._session.reset(seed=task.seed, task=asdict(task)))

    async def step(self, reply: Message) -> Step:
        """Send the policy's reply."""
        return self._step(await self._session.step({"message": reply}))

    async def close(self) -> None:
        """Close the session. Calling it again does nothing."""
        await self._session.close()

    def _step(self, result: StepResult) -> Step:
        seen = result.observation
        if not isinstance(seen.get("messages"), list):
            other = "another server is played by --environment openenv, with its url among rollout.environment_options"
            raise ValueError(f"{self._session.where}: what answers there does not speak in messages; {other}.")
        of_step = {key: seen[key] for key in ("messages", "valid", "metrics", "note", "tool_calls") if key in seen}
        return Step(reward=float(result.reward or 0.0), done=bool(result.done), **of_step)
