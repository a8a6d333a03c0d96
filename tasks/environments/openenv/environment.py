"""One episode on somebody else's server: observations become messages, replies become actions."""

import json
import math
from typing import Any

from tasks.environments.client import Session
from tasks.environments.interface import Message, Step, Task
from tasks.environments.openenv.record import Record
from tasks.policy.tool_formats import FORMATS, ToolCall

NOTHING = "(nothing)"  # told where an observation has nothing to tell


class ServerEpisode:
    """An environment by the record of its server; the session opens with the first reset."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.session = Session(record.url, "option url", "lower rollout.concurrent_episodes")
        self.turns = 0
        self.calls = 0

    async def reset(self, task: Task) -> Step:
        """Begin an episode with the task's seed, and play its opening, whose rewards do not count."""
        self.turns = self.calls = 0
        result = await self.session.reset(**{**self.record.reset, "seed": task.seed})
        for reply in task.data.get("opening", ()):
            action = self._action(reply)
            result = None if action is None else await self._act(action)
            if result is None or result.done:
                what = "does not take" if result is None else "ends an episode with"
                raise ValueError(f"the server {what} the reply {reply!r} of the opening {task.id}.")
        first = [{"role": "system", "content": self.record.system}] if self.record.system else []
        told = self.record.text(result.observation, first=True)
        if not told.strip():
            raise ValueError("the server's first observation has nothing to tell; give option prompt.")
        return Step([*first, {"role": "user", "content": told}])

    async def step(self, reply: Message) -> Step:
        """Act as the reply says. One that cannot be read, or whose action the server does not take, ends the episode as
        invalid; a reply without a call of a tool ends it."""
        self.turns += 1
        if self.record.tools:
            return await self._call(reply["content"])
        action = self.record.read(reply["content"])
        result = None if action is None else await self._act(action)
        if result is None:
            return Step(done=True, valid=False, note=f"no {self.record.kind} for {self.record.action}")
        over, told = self._is_over(result), self.record.text(result.observation, first=False) or NOTHING
        return Step(
            [] if over else [{"role": "user", "content": told}],
            self._reward(result, over),
            over,
            metrics=self.record.measured(result.observation),
        )

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()

    async def _call(self, reply: str) -> Step:
        calls = FORMATS[self.record.format].parse(reply, self.record.tools)
        if not calls:
            return Step(done=True, note="no call")
        call, self.calls = calls[0], self.calls + 1
        result = None if call.error else await self._act(_action_of(call))
        over = self._is_over(result)
        told = f"error: {call.error}" if call.error else "error: the server did not take it"
        if result:
            seen = result.observation
            told = self.record.text(seen, first=False) if self.record.next_prompt else _told(seen)
        name = f"call-{self.calls}"
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return Step(
            [] if over else [{"role": "tool", "content": told or NOTHING, "tool_call_id": name}],
            self._reward(result, over),
            over,
            metrics={"tool_calls": 1.0, **(self.record.measured(result.observation) if result else {})},
            note=told[:200],
            tool_calls=[{"id": name, "name": call.name, "arguments": arguments}],
        )

    def _action(self, reply: str) -> dict[str, Any] | None:
        """The action that a reply is, or its first call of a tool; None for one that cannot be read."""
        if not self.record.tools:
            return self.record.read(reply)
        calls = FORMATS[self.record.format].parse(reply, self.record.tools)
        return _action_of(calls[0]) if calls and not calls[0].error else None

    async def _act(self, action: dict[str, Any]) -> Any:
        """The server's answer; None for an action that does not fit its schema."""
        try:
            return await self.session.step(action)
        except ValueError as error:
            if "VALIDATION_ERROR" in str(error):
                return None
            raise

    def _is_over(self, result: Any) -> bool:
        return bool(result and result.done) or self.turns == self.record.turns

    def _reward(self, result: Any, over: bool) -> float:
        reward = float((result.reward if result else None) or 0.0)
        if not math.isfinite(reward):
            raise ValueError(f"the server's reward is {reward}; allowed: a finite number.")
        return reward if over or self.record.rewards == "sum" else 0.0


def _action_of(call: ToolCall) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}


def _told(observation: Any) -> str:
    """What a tool returned, as a text."""
    if error := observation.get("error"):
        return f"error: {error.get('message', error) if isinstance(error, dict) else error}"
    result = observation.get("result")
    if isinstance(result, dict):  # as MCP wraps it
        result = result.get("data") if result.get("data") is not None else result.get("structured_content", result)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
