"""Small OpenEnv servers as other people write them, with OpenEnv's own classes and nothing of ours: one application."""

import random
from typing import Any

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Answer(Action):
    answer: str = Field(description="A number in digits")


class Question(Observation):
    question: str | None = None
    score: float | None = None


class Sums(Environment):
    """One question; the seed decides it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, top: int = 9, **more: Any) -> Question:
        rng = random.Random(seed)
        self.pair = rng.randint(1, top), rng.randint(1, top)
        return Question(question=f"{self.pair[0]}+{self.pair[1]}=?", reward=0.0)

    def step(self, action: Answer, timeout_s: float | None = None, **more: Any) -> Question:
        right = action.answer == str(sum(self.pair))
        return Question(score=float(right), reward=float(right), done=True)

    @property
    def state(self) -> State:
        return State()


class Move(Action):
    by: int = Field(ge=-2, le=2)
    loud: bool = False


class Place(Observation):
    place: int
    goal: dict[str, int]


class Walk(Environment):
    """Walk to the goal: a reward at each step, the distance that was gained. It has an end after the goal only."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Place:
        self.place, self.goal = 0, random.Random(seed).randint(1, 50)
        return self.seen(0.0)

    def step(self, action: Move, timeout_s: float | None = None, **more: Any) -> Place:
        before, self.place = abs(self.goal - self.place), self.place + action.by
        return self.seen(float(before - abs(self.goal - self.place)))

    def seen(self, reward: float) -> Place:
        return Place(place=self.place, goal={"x": self.goal}, reward=reward, done=self.place == self.goal)

    @property
    def state(self) -> State:
        return State()


class Lost(Walk):
    """The seed is ignored: another goal each time."""

    def reset(self, seed: int | None = None, **more: Any) -> Place:
        return super().reset(seed=None)


class Known(Walk):
    """The seed is ignored: always the same goal, 16."""

    def reset(self, seed: int | None = None, **more: Any) -> Place:
        return super().reset(seed=4)


class Dice(Sums):
    """The seed is ignored."""

    def reset(self, seed: int | None = None, **more: Any) -> Question:
        return super().reset(seed=None, top=10**9)


class Silent(Sums):
    """Every reset is the same."""

    def reset(self, seed: int | None = None, **more: Any) -> Question:
        return super().reset(seed=1)


class Safe(MCPEnvironment):
    """A safe that opens with the number that `look` tells; by tools alone."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("safe")

        @server.tool
        def look() -> str:
            """Tells the number."""
            return f"The number is {self.number}."

        @server.tool
        def dial(number: int) -> bool:
            """Opens the safe."""
            self.opened = number == self.number
            return self.opened

        super().__init__(server)
        self.number, self.opened = 0, False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self.number, self.opened = random.Random(seed).randint(1, 10**6), False
        return Observation(metadata={"label": f"Safe {self.number % 1000}"})

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s)
        return seen.model_copy(update={"reward": float(self.opened), "done": self.opened})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


app = FastAPI()
for name, parts in {
    "sums": (Sums, Answer, Question),
    "walk": (Walk, Move, Place),
    "lost": (Lost, Move, Place),
    "known": (Known, Move, Place),
    "dice": (Dice, Answer, Question),
    "silent": (Silent, Answer, Question),
    "safe": (Safe, CallToolAction, CallToolObservation),
}.items():
    app.mount(f"/{name}", create_app(*parts, env_name=name, max_concurrent_envs=8))
