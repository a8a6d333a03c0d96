"""Any environment as an OpenEnv server: `python -m tasks.environments.serve NAME --port 8000`.

One WebSocket session holds one episode at a time. An action is `{"message": {"role": "assistant", "content": …}}`; an
observation has `messages`, `valid`, `metrics` and `note`. A reset takes a `task`, or only a `seed`: then it is the
training task of that index.
"""

import argparse
import json
from typing import Any

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment as OpenEnvEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from tasks.environments.catalog import get_environment
from tasks.environments.client import allow_many_open_files
from tasks.environments.interface import EnvironmentSpec, Step, Task
from tasks.settings import require

_FILES_BESIDE_SESSIONS = 64


class ChatAction(Action):
    """A reply of the policy."""

    message: dict[str, Any] = Field(description="The assistant's message: role, content, and tool calls if any")


class ChatObservation(Observation):
    """What the policy is told next. Example: messages [{"role": "user", "content": "…"}], done False, reward 0.0."""

    messages: list[dict[str, Any]] = Field(description="System (after a reset), user or tool messages")
    valid: bool = Field(default=True, description="False where the reply could not be parsed")
    metrics: dict[str, float] = Field(default_factory=dict, description="Numbers of this step, by name")
    note: str = Field(default="", description="For people, beside the reply")
    tool_calls: list[dict[str, str]] = Field(default_factory=list, description="Read from the reply, for people")


def build_app(spec: EnvironmentSpec, max_sessions: int) -> FastAPI:
    """OpenEnv's application, for this many sessions at once; one more is refused with CAPACITY_REACHED."""

    class Session(OpenEnvEnvironment[ChatAction, ChatObservation, State]):
        """One client's episodes, one after the other."""

        SUPPORTS_CONCURRENT_SESSIONS = True
        REQUIRES_SINGLE_THREAD_EXECUTOR = True  # one thread makes the environments of all sessions

        def __init__(self) -> None:
            super().__init__()
            self._environment, self._open, self._state = spec.make(), False, State()

        async def reset_async(  # type: ignore[override]
            self, seed: int | None = None, episode_id: str | None = None, task: dict[str, Any] | None = None
        ) -> ChatObservation:
            """Begin an episode. Raises ValueError without a task and without a seed that is a whole number from 0."""
            if task is not None:
                given = Task(**task)
            elif type(seed) is int and seed >= 0:
                given = spec.task("train", seed)
            else:
                raise ValueError(f"reset was given seed={seed!r}; it needs a whole number that is not negative.")
            self._state = State(episode_id=episode_id)
            return self._observe(await self._environment.reset(given))

        async def step_async(  # type: ignore[override]
            self, action: ChatAction, timeout_s: float | None = None
        ) -> ChatObservation:
            """Answer a reply. Raises ValueError where no episode is open: before a reset, or after the end."""
            if not self._open:
                raise ValueError("step was given a reply but no episode is open; call reset with a seed first.")
            self._state.step_count += 1
            return self._observe(await self._environment.step(action.message))

        @property
        def state(self) -> State:
            """What OpenEnv publishes: an episode id and a count of replies, not the task."""
            return self._state

        def _observe(self, step: Step) -> ChatObservation:
            self._open = not step.done
            return ChatObservation(**vars(step))

        def reset(self, *arguments: Any, **options: Any) -> ChatObservation:
            raise NotImplementedError("the server calls reset_async")

        def step(self, *arguments: Any, **options: Any) -> ChatObservation:
            raise NotImplementedError("the server calls step_async")

    return create_app(Session, ChatAction, ChatObservation, env_name=spec.name, max_concurrent_envs=max_sessions)


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tasks.environments.serve", description=__doc__)
    parser.add_argument("name", help="a folder under tasks/environments/, an entry point, or a module with a SPEC")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument("--max-sessions", type=int, default=2048, help="episodes at once (default: %(default)s)")
    parser.add_argument("--options", default="{}", help="JSON, as rollout.environment_options (default: %(default)s)")
    given = parser.parse_args(arguments)
    most = allow_many_open_files() - _FILES_BESIDE_SESSIONS
    allowed = f"1 to {most}, by the limit on open files"
    try:
        require(1 <= given.port <= 65535, "--port", given.port, "1 to 65535")
        require(1 <= given.max_sessions <= most, "--max-sessions", given.max_sessions, allowed)
        spec = get_environment(given.name, json.loads(given.options))
    except ValueError as error:
        parser.error(str(error))
    print(f"{spec.name} at http://{given.host}:{given.port}, {given.max_sessions} episodes at once", flush=True)
    uvicorn.run(
        build_app(spec, given.max_sessions),
        host=given.host,
        port=given.port,
        log_level="warning",  # a line for each session opened and closed otherwise
        ws_per_message_deflate=False,  # compressing messages of 200 bytes costs more than sending them
        ws_ping_timeout=120.0,  # a client busy with its policy may answer late, and must not lose its episodes
    )


if __name__ == "__main__":
    main()
