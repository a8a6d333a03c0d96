"""One prompt, one reply, and what the reward functions say of it."""

import asyncio
from collections.abc import Sequence

from tasks.environments.interface import Message, Step, Task
from tasks.environments.prompts.data import Row, messages_of
from tasks.environments.prompts.rewards import Reward


class Prompt:
    """An environment whose task holds a row of the data."""

    def __init__(self, column: str, system: str, rewards: Sequence[Reward], processes: int):
        self.column, self.system, self.rewards, self.processes = column, system, rewards, processes
        self.row: Row | None = None

    async def reset(self, task: Task) -> Step:
        """The row's prompt."""
        self.row = dict(task.data["row"])
        return Step(messages_of(self.row, self.column, self.system))

    async def step(self, reply: Message) -> Step:
        """The weighted sum of the rewards; those that do not apply count 0, and have no metric."""
        if self.row is None:
            raise ValueError("no prompt was given; reset the environment first.")
        given = (self.row[self.column], reply["content"], self.row, self.processes)
        values = await asyncio.gather(*(reward(*given) for reward in self.rewards))
        found = {r.name: value for r, value in zip(self.rewards, values, strict=True) if value is not None}
        total = sum(r.weight * found.get(r.name, 0.0) for r in self.rewards)
        note = ", ".join(f"{name} {value:g}" for name, value in found.items()) if len(self.rewards) > 1 else ""
        return Step(reward=total, done=True, metrics=found, note=note)

    async def close(self) -> None:
        """Nothing is held that needs closing."""
