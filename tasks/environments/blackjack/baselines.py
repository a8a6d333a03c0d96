"""Scripted policies: what a policy is measured against."""

import random
from functools import lru_cache

from tasks.environments.blackjack.cards import Move
from tasks.environments.blackjack.game import MOVES, Game, Observation, shuffled_deck
from tasks.environments.blackjack.optimum import (
    GameValue,
    Policy,
    action_values,
    best_move,
    game_value,
    optimal_policy,
)

_POLICIES: dict[str, Policy] = {
    "optimum": optimal_policy,
    "random": lambda cards, dealer: 0.5,
    "always_stand": lambda cards, dealer: 0.0,
}


def optimum(environment: object, rng: random.Random) -> Move:
    """The move of higher expected reward."""
    seen: Observation = environment.observation  # type: ignore[attr-defined]
    return best_move(seen.player_cards, seen.dealer_card)


def uniform(environment: object, rng: random.Random) -> Move:
    """Each move as often as the other."""
    return rng.choice(tuple(MOVES))


def always_stand(environment: object, rng: random.Random) -> Move:
    """STAND, whatever the cards."""
    return "STAND"


BASELINES = {"optimum": optimum, "random": uniform, "always_stand": always_stand}


def exact_value(baseline: str) -> GameValue:
    """Exact results of one of BASELINES over all deals: what its average over many games comes to."""
    if baseline not in _POLICIES:
        raise ValueError(f'baseline is "{baseline}"; allowed: {", ".join(_POLICIES)}.')
    return game_value(_POLICIES[baseline])


def is_optimal(seen: Observation, move: Move) -> bool:
    """Whether no other move has a higher expected reward."""
    return move in _best_moves(seen.player_cards, seen.dealer_card)


@lru_cache(maxsize=65536)
def _best_moves(player_cards: tuple[str, ...], dealer_card: str) -> frozenset[str]:
    values = action_values(player_cards, dealer_card)
    return frozenset(move for move, value in values.items() if value >= max(values.values()))


@lru_cache(maxsize=65536)
def optimum_reward(seed: int) -> float:
    """What the optimum gets on the deck of this seed."""
    game = Game(shuffled_deck(seed))
    seen = game.observe()
    while not seen.done:
        seen = game.play(best_move(seen.player_cards, seen.dealer_card))
    return seen.reward
