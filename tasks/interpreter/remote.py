"""An interpreter on an OpenEnv server (tasks.interpreter.serve), which may be a microVM or a pod of a runtime class.

What such a server says is checked like what a session says: the code it runs may have taken it over.
"""

import asyncio
import json
import math
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import WebSocketException

from tasks.interpreter import limits
from tasks.interpreter.interface import Execution, Status

_TEXTS = {
    "stdout": limits.OUTPUT,
    "stderr": limits.OUTPUT,
    "value": limits.VALUE,
    "shown": limits.SHOWN,
    "error": limits.ERROR,
}
_PATIENCE = 30.0  # seconds above several times the limit of an execution, until the server is given up
_START_ONE = "start one with python -m tasks.interpreter.serve"


class RemoteInterpreter:
    """Sessions on the server at `url`.

    Raises ValueError where another kind of server answers, ConnectionError where none does within 8 seconds.
    """

    def __init__(self, url: str) -> None:
        where = f'interpreter is "openenv:{url}"'
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"{where}; it needs the form openenv:http://host:port; {_START_ONE}.")
        self._url, self.description = url, f"the OpenEnv server at {url}"
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=8) as answer:
                action = json.load(answer)["action"]["properties"]
        except (KeyError, TypeError, ValueError, urllib.error.HTTPError):
            action = {}
        except OSError as error:
            raise ConnectionError(f"{where}: nobody answers there; {_START_ONE}.") from error
        if not {"code", "timeout_s"} <= set(action):
            raise ValueError(f"{where}: what answers there is no interpreter; {_START_ONE}.")

    async def open(self) -> "RemoteSession":
        """A fresh session. Where none can be had, all that it is given is unavailable."""
        client = GenericEnvClient(
            self._url,
            connect_timeout_s=8,
            message_timeout_s=24 * 3600,  # each execution has its own
            websocket_ping_interval_s=None,  # the server pings already
            max_message_size_mb=4,
        )
        try:
            await client.connect()
            await asyncio.wait_for(client.reset(), limits.START_SECONDS + _PATIENCE)
        except (OSError, RuntimeError, TimeoutError, WebSocketException) as error:
            await _close(client)
            return RemoteSession(None, f"no session can be opened: {error}"[: limits.ERROR])
        return RemoteSession(client)

    async def close(self) -> None:
        """The sessions are closed one by one."""


class RemoteSession:
    """One WebSocket."""

    def __init__(self, client: GenericEnvClient | None, why: str = "") -> None:
        self._client, self._ended = client, Execution("unavailable", error=why)

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Run code; cancelling it ends the session."""
        if self._client is None:
            return self._ended
        try:
            call = self._client.step({"code": code, "timeout_s": timeout_s})
            answer = await asyncio.wait_for(call, 10 * timeout_s + _PATIENCE)
            found = read_execution(answer.observation)
        except (OSError, RuntimeError, TimeoutError, WebSocketException) as error:
            return await self._end(Execution("unavailable", error=f"the interpreter's server: {error}"[: limits.ERROR]))
        except ValueError as error:
            return await self._end(Execution("killed", error=str(error)))
        except BaseException:
            await self._end(Execution("killed", error="the session ended when its execution was cancelled"))
            raise
        if found.status not in ("ok", "error"):
            await self._end(Execution("unavailable" if found.status == "unavailable" else "killed", error=found.error))
        return found

    async def _end(self, ended: Execution) -> Execution:
        client, self._client, self._ended = self._client, None, ended
        if client:
            await _close(client)
        return ended

    async def close(self) -> None:
        """End it. Calling it again does nothing."""
        await self._end(Execution("killed", error="the session was closed"))


async def _close(client: GenericEnvClient) -> None:
    try:
        await asyncio.wait_for(client.close(), 5)
    except (OSError, RuntimeError, TimeoutError, WebSocketException):
        return  # it is gone already


def read_execution(seen: Mapping[str, Any]) -> Execution:
    """The Execution that a server's JSON is. Raises ValueError for types or sizes that none has."""
    texts = {name: seen.get(name, "") for name in _TEXTS}
    numbers = {name: seen.get(name, 0.0) for name in ("seconds", "cpu_seconds")}
    sound = (
        seen.get("status") in get_args(Status)
        and all(isinstance(text, str) and len(text) <= _TEXTS[name] for name, text in texts.items())
        and all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers.values())
        and isinstance(seen.get("truncated", False), bool)
    )
    if not sound:
        raise ValueError("the server's answer is no execution")
    return Execution(status=seen["status"], truncated=seen.get("truncated", False), **texts, **numbers)
