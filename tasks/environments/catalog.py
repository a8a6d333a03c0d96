"""Every environment, as the rest of the project sees it.

Cheap to import: openenv alone takes three seconds, so it is imported when an environment is asked for.

    Games   ──Observation──►  Agent  ──messages──►  policy
    (many)  ◄────Action─────         ◄───reply────
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from openenv.core.env_server.types import Action, Observation

    from tasks.environments.blackjack.optimum import GameValue

ENVIRONMENT_NAMES = ("blackjack",)


class Games(Protocol):
    """Many games advanced together, in this process or on a server. A game's name is its place in `seeds`."""

    def reset(self, seeds: Sequence[int]) -> list[Observation]:
        """Open one fresh game a seed, dropping those before. A seed fixes all that chance decides."""
        ...

    def step(self, actions: Mapping[int, Action]) -> dict[int, Observation]:
        """Make one move in each game named. The reward is None until an observation is `done`."""
        ...

    def close(self) -> None:
        """Give back sessions and threads."""
        ...


class Agent(Protocol):
    """Renders an observation to chat messages and reads a reply back as an action. Observations are the
    environment's own class; messages are {"role": …, "content": …}. Without thinking a reply is the answer; an agent
    made for thinking asks for it, and reads the last line.
    """

    def opening(self, observation: Any) -> list[dict[str, str]]:
        """The system message and the first user message."""
        ...

    def follow_up(self, observation: Any) -> list[dict[str, str]]:
        """What to append after the assistant's reply on a later turn."""
        ...

    def read(self, reply: str, observation: Any) -> Action | None:
        """The action that the reply states, or None where it states none that is legal."""
        ...

    def nearly(self, reply: str, observation: Any) -> bool:
        """Whether a reply begins as one that `read` can read, whatever comes behind."""
        ...

    def say(self, action: Any) -> str:
        """The shortest reply that states this action: the inverse of `read`."""
        ...


@dataclass(frozen=True)
class EnvironmentKind:
    """One environment: how it is opened, spoken to, and judged."""

    name: str
    agent: Agent
    open_local: Callable[[], Games]
    connect: Callable[[str], Games]  # from the http(s) URL of a running server
    players: Mapping[str, Callable[[Any, random.Random], Action]]  # scripted: optimum, random, always_stand
    exact_value: Callable[[str], GameValue]  # what a scripted player gets, over all that chance can do
    is_optimal: Callable[[Any, Any], bool]  # (observation, action)
    situation: Callable[[Any], tuple[str, str]]  # an observation's row and column in a heat map
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    best_moves: Callable[[], Mapping[tuple[str, str], str]]  # the optimum's move for every row and column


def get_environment(name: str, *, thinking: bool = False) -> EnvironmentKind:
    """The environment of this name, with an agent that lets replies think or not.

    Raises ValueError for a name that is not in ENVIRONMENT_NAMES.
    """
    if name not in ENVIRONMENT_NAMES:
        raise ValueError(f'environment is "{name}"; allowed: {", ".join(ENVIRONMENT_NAMES)}.')
    from tasks.environments.blackjack import players, situations
    from tasks.environments.blackjack.agent import BlackJackAgent

    return EnvironmentKind(
        name=name,
        agent=BlackJackAgent(thinking),
        open_local=_open_local_blackjack,
        connect=_connect_blackjack,
        players=players.PLAYERS,
        exact_value=players.exact_value,
        is_optimal=players.is_optimal,
        situation=situations.situation,
        rows=situations.ROWS,
        columns=situations.COLUMNS,
        best_moves=situations.best_moves,
    )


def _open_local_blackjack() -> Games:
    from tasks.environments.blackjack.environment import LocalGames

    return LocalGames()


def _connect_blackjack(url: str) -> Games:
    from tasks.environments.blackjack.client import RemoteGames

    return RemoteGames(url)
