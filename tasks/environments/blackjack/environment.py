"""The game: OpenSpiel's rules on a deck that the seed fixes, behind OpenEnv's Environment.

Rules (OpenSpiel 2.0, `blackjack`): one deck, hit or stand, no bonus for a natural, the dealer stands on every
17 (soft ones too) and draws nothing once the player is bust. Two cards go to the player, then two to the
dealer: the first is the hole card, the second lies open.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyspiel
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from tasks.environments.blackjack.cards import RANKS, Move
from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation

_GAME = pyspiel.load_game("blackjack")
_PLAYER = 0
_MOVES: dict[Move, int] = {"HIT": 0, "STAND": 1}


def shuffled_deck(seed: int) -> list[int]:
    """The 52 cards (0 to 51, OpenSpiel's numbers) in the order that the seed gives.

    Fisher-Yates from the front: for k = 0 to 50, place k swaps with place k + floor(u * (52 - k)), each u the
    next of `random.Random(seed).random()`. Written out because Python promises that `random` gives the same
    numbers in every version, and promises nothing for `shuffle`.
    """
    draw = random.Random(seed).random
    deck = list(range(52))
    for k in range(51):
        j = k + int(draw() * (52 - k))
        deck[k], deck[j] = deck[j], deck[k]
    return deck


class BlackJackEnvironment(Environment[BlackJackAction, BlackJackObservation, State]):
    """One game at a time. The reward is OpenSpiel's, at the end: 1 won, 0 push, -1 lost; None before.

    The state that OpenEnv publishes is an episode id and a count of moves: neither the seed nor the deck,
    from which a client could work out the hole card.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    # One thread builds the environments of all sessions; otherwise the server starts a thread for each. Games
    # run in the server's event loop (reset_async, step_async): a move takes less time than a hop to a thread.
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self) -> None:
        super().__init__()
        self._game: pyspiel.State | None = None
        self._deck: Sequence[int] = ()
        self._dealt = 0
        self._public_state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> BlackJackObservation:
        """Deal a fresh game from the deck of this seed; nothing else is looked at.

        Raises ValueError unless the seed is a whole number that is not negative.
        """
        # Random(-1) is Random(1): a negative seed would quietly share a deck with another.
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError(f"reset was given seed={seed!r}; it needs a whole number that is not negative.")
        return self.deal(shuffled_deck(seed), episode_id)

    def deal(self, deck: Sequence[int], episode_id: str | None = None) -> BlackJackObservation:
        """Deal a fresh game from the 52 cards in this order: player, player, hole card, open card, draws."""
        if sorted(deck) != list(range(52)):
            raise ValueError(f"the deck is {list(deck)}; it needs each of the cards 0 to 51 once.")
        self._game, self._deck, self._dealt = _GAME.new_initial_state(), deck, 0
        self._public_state = State(episode_id=episode_id)
        self._deal_what_is_due(self._game)
        return self._observe(self._game)

    def step(self, action: BlackJackAction, timeout_s: float | None = None, **kwargs: Any) -> BlackJackObservation:
        """Make one move. Raises ValueError where no game is open: before a reset, or after the end."""
        if self._game is None or self._game.is_terminal():
            raise ValueError(f"step was given {action.move} but no game is open; call reset with a seed first.")
        self._game.apply_action(_MOVES[action.move])
        self._public_state.step_count += 1
        self._deal_what_is_due(self._game)
        return self._observe(self._game)

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> BlackJackObservation:
        """`reset`, in the server's event loop."""
        return self.reset(seed, episode_id)

    async def step_async(
        self, action: BlackJackAction, timeout_s: float | None = None, **kwargs: Any
    ) -> BlackJackObservation:
        """`step`, in the server's event loop."""
        return self.step(action)

    @property
    def state(self) -> State:
        """Episode id and number of moves so far."""
        return self._public_state

    def _deal_what_is_due(self, game: pyspiel.State) -> None:
        while game.is_chance_node():
            game.apply_action(self._deck[self._dealt])
            self._dealt += 1

    def _observe(self, game: pyspiel.State) -> BlackJackObservation:
        cards = game.cards(_PLAYER)
        total = game.get_best_player_total(_PLAYER)
        done = game.is_terminal()
        return BlackJackObservation(
            player_cards=[RANKS[card % 13] for card in cards],
            total=total,
            soft=total != sum(min(card % 13 + 1, 10) for card in cards),
            # Not observation_tensor: it holds both of the dealer's cards.
            dealer_card=RANKS[game.dealers_visible_card() % 13],
            legal_actions=[] if done else list(_MOVES),
            done=done,
            reward=game.returns()[_PLAYER] if done else None,
        )


class LocalGames:
    """Many games in this process; see `tasks.environments.catalog.Games`."""

    def __init__(self) -> None:
        self._environments: list[BlackJackEnvironment] = []
        self._open = 0

    def reset(self, seeds: Sequence[int]) -> list[Observation]:
        """Open one fresh game a seed."""
        while len(self._environments) < len(seeds):
            self._environments.append(BlackJackEnvironment())
        self._open = len(seeds)
        return [environment.reset(seed) for environment, seed in zip(self._environments, seeds, strict=False)]

    def step(self, actions: Mapping[int, Action]) -> dict[int, Observation]:
        """Make one move in each game named."""
        for index in actions:
            if not 0 <= index < self._open:
                raise ValueError(f"step names game {index}; {self._open} games are open, counted from 0.")
        return {index: self._environments[index].step(action) for index, action in actions.items()}  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is held that needs closing; a later reset works."""
        self._open = 0
