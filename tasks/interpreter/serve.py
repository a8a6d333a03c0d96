"""The local interpreter as an OpenEnv server: `python -m tasks.interpreter.serve --port 8000`.

For a machine, or a microVM, that is to run code for others, whose interpreter is then "openenv:http://host:8000". One
WebSocket is one session. A reset gives a fresh one; an action is `{"code": …, "timeout_s": …}`, an observation an
Execution. The code runs in the sandbox's processes, never in the server's.
"""

import argparse
import asyncio
from typing import Any, get_args

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from tasks.interpreter.interface import Interpreter, Session, Status
from tasks.interpreter.open import open_interpreter
from tasks.settings import require

LONGEST = 3600.0  # seconds an execution may be given


class CodeAction(Action):
    """Code to run."""

    code: str = Field(description="Python; variables last for the session")
    timeout_s: float = Field(default=10.0, gt=0, le=LONGEST, description="Seconds that the code may take")


class CodeObservation(Observation):
    """What came of it. Example: status "ok", stdout "7\\n", value "42", shown "42"."""

    status: Status = Field(default="ok", description=", ".join(get_args(Status)))
    stdout: str = Field(default="", description="What it printed, cut")
    stderr: str = Field(default="", description="What it printed there, cut, and the traceback")
    value: str = Field(default="", description="The last expression's value as JSON that keeps exact types")
    shown: str = Field(default="", description="Its repr, cut")
    error: str = Field(default="", description="The exception's last line, or why the session ended")
    seconds: float = Field(default=0.0, description="Wall time")
    cpu_seconds: float = Field(default=0.0, description="Processor time")
    truncated: bool = Field(default=False, description="Whether output was cut")


def build_app(interpreter: Interpreter, max_sessions: int) -> FastAPI:
    """OpenEnv's application, for this many sessions at once; one more is refused with CAPACITY_REACHED."""

    class CodeEnvironment(Environment[CodeAction, CodeObservation, State]):
        """One client's sessions, one after the other."""

        SUPPORTS_CONCURRENT_SESSIONS = True
        REQUIRES_SINGLE_THREAD_EXECUTOR = True  # one thread makes and closes them all

        def __init__(self) -> None:
            super().__init__()
            self._session: Session | None = None
            self._loop: asyncio.AbstractEventLoop | None = None
            self._state = State()

        async def reset_async(self, seed: Any = None, episode_id: str | None = None, **_: Any) -> CodeObservation:
            """A fresh session; there is no chance in it, so a seed says nothing."""
            await self._end()
            self._loop, self._state = asyncio.get_running_loop(), State(episode_id=episode_id)
            self._session = await interpreter.open()
            return CodeObservation(reward=0.0)

        async def step_async(  # type: ignore[override]
            self, action: CodeAction, timeout_s: float | None = None, **_: Any
        ) -> CodeObservation:
            """Run code. Raises ValueError before a reset."""
            if self._session is None:
                raise ValueError("step was given code but no session is open; call reset first.")
            self._state.step_count += 1
            found = await self._session.run(action.code, action.timeout_s)
            return CodeObservation(**vars(found), done=found.status not in ("ok", "error"), reward=0.0)

        @property
        def state(self) -> State:
            """What OpenEnv publishes: an episode id and a count of executions."""
            return self._state

        async def _end(self) -> None:
            if self._session:
                await self._session.close()
                self._session = None

        def close(self) -> None:
            """End the session, from the thread that OpenEnv calls this in."""
            if self._loop and not self._loop.is_closed():
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

        def reset(self, *arguments: Any, **options: Any) -> CodeObservation:
            raise NotImplementedError("the server calls reset_async")

        def step(self, *arguments: Any, **options: Any) -> CodeObservation:
            raise NotImplementedError("the server calls step_async")

    return create_app(
        CodeEnvironment, CodeAction, CodeObservation, env_name="interpreter", max_concurrent_envs=max_sessions
    )


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tasks.interpreter.serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument("--max-sessions", type=int, default=1024, help="sessions at once (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        require(1 <= given.port <= 65535, "--port", given.port, "1 to 65535")
        require(1 <= given.max_sessions <= 4096, "--max-sessions", given.max_sessions, "1 to 4096")
        interpreter = open_interpreter("local")
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    print(f"interpreter at http://{given.host}:{given.port}: {interpreter.description}", flush=True)
    uvicorn.run(
        build_app(interpreter, given.max_sessions),
        host=given.host,
        port=given.port,
        log_level="warning",  # a line for each session otherwise
        ws_per_message_deflate=False,
        ws_ping_timeout=120.0,  # a client busy with its policy may answer late
    )


if __name__ == "__main__":
    main()
