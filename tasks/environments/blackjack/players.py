"""Scripted players: what a policy is measured against."""

import random
from collections.abc import Callable

from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation
from tasks.environments.blackjack.optimum import (
    GameValue,
    Policy,
    action_values,
    best_move,
    game_value,
    optimal_policy,
)

Player = Callable[[BlackJackObservation, random.Random], BlackJackAction]

_POLICIES: dict[str, Policy] = {
    "optimum": optimal_policy,
    "random": lambda cards, dealer: 0.5,
    "always_stand": lambda cards, dealer: 0.0,
}


def play_optimum(observation: BlackJackObservation, rng: random.Random) -> BlackJackAction:
    """The move of higher expected reward."""
    return BlackJackAction(move=best_move(observation.player_cards, observation.dealer_card))


def play_random(observation: BlackJackObservation, rng: random.Random) -> BlackJackAction:
    """Each legal move as often as any other."""
    return BlackJackAction(move=rng.choice(observation.legal_actions))


def play_always_stand(observation: BlackJackObservation, rng: random.Random) -> BlackJackAction:
    """STAND, whatever the cards."""
    return BlackJackAction(move="STAND")


PLAYERS: dict[str, Player] = {
    "optimum": play_optimum,
    "random": play_random,
    "always_stand": play_always_stand,
}


def exact_value(player: str) -> GameValue:
    """Exact results of one of PLAYERS over all deals: what its average over many games comes to."""
    if player not in _POLICIES:
        raise ValueError(f'player is "{player}"; allowed: {", ".join(_POLICIES)}.')
    return game_value(_POLICIES[player])


def is_optimal(observation: BlackJackObservation, action: BlackJackAction) -> bool:
    """Whether no other move has a higher expected reward."""
    values = action_values(observation.player_cards, observation.dealer_card)
    return values[action.move] >= max(values.values())
