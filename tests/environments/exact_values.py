"""What policies of BlackJack are worth, over all deals and draws."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tasks.environments.blackjack.cards import VALUES
from tasks.environments.blackjack.optimum import best_move, reach, tables

# The probability of HIT given the player's card values (`cards.VALUES`, lowest first) and the dealer's.
Policy = Callable[[tuple[str, ...], str], float]


class GameValue(NamedTuple):
    """Exact results of a policy. Example: the optimum, -0.0425, 0.4328, 0.0919, 0.4753."""

    expected_reward: float
    win: float
    push: float
    loss: float


def optimal_policy(player_cards: tuple[str, ...], dealer_card: str) -> float:
    """The optimum: 1 where HIT is best, else 0."""
    return float(best_move(player_cards, dealer_card) == "HIT")


POLICIES: dict[str, Policy] = {
    "optimum": optimal_policy,
    "random": lambda cards, dealer: 0.5,
    "always_stand": lambda cards, dealer: 0.0,
}


def exact_value(baseline: str) -> GameValue:
    """What the average of a baseline over many games comes to."""
    return game_value(POLICIES[baseline])


def game_value(policy: Policy) -> GameValue:
    """Exact expected reward and shares of wins, pushes and losses of a policy."""
    table = tables()
    hit_HV = np.zeros(table.possible_HV.shape)
    for hand, dealer in np.argwhere(table.possible_HV):
        cards = tuple(value for value, count in zip(VALUES, table.hands[hand], strict=True) for _ in range(count))
        hit_HV[hand, dealer] = policy(cards, VALUES[dealer])
    reach_HV = reach(hit_HV)
    bust = float(np.einsum("hv,hvn,hn->", reach_HV * hit_HV, table.draw_HVV, table.next_HV < 0))
    win, push, loss = np.einsum("hv,hvo->o", reach_HV * (1 - hit_HV), table.outcome_HVO).tolist()
    return GameValue(win - loss - bust, win, push, loss + bust)
