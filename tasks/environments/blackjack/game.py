"""The game: OpenSpiel's rules on a deck that the seed fixes.

Rules (OpenSpiel 2.0, `blackjack`): one deck, hit or stand, no bonus for a natural, the dealer stands on every
17 (soft ones too) and draws nothing once the player is bust. Two cards go to the player, then two to the
dealer: the first is the hole card, the second lies open.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pyspiel

from tasks.environments.blackjack.cards import MOVES, RANKS, Move

_GAME = pyspiel.load_game("blackjack")
_PLAYER = 0


@dataclass(frozen=True)
class Observation:
    """What a player sees, and no more: the dealer's hole card is in no field, during the game or after it.

    Example: `Observation(player_cards=("A", "7"), total=18, soft=True, dealer_card="K", done=False, reward=0.0)`.
    """

    player_cards: tuple[str, ...]  # ranks in the order dealt
    total: int  # the highest that is not over 21, else the lowest
    soft: bool  # whether an ace counts 11 in the total
    dealer_card: str  # the rank of the open card
    done: bool
    reward: float  # at the end 1 for a win, 0 for a push, -1 for a loss; 0 before


def shuffled_deck(seed: int) -> list[int]:
    """The 52 cards (0 to 51, OpenSpiel's numbers) in the order that the seed gives.

    Fisher-Yates from the front: for k = 0 to 50, place k swaps with place k + floor(u * (52 - k)), each u the
    next of `random.Random(seed).random()`. Written out because Python promises that `random` gives the same
    numbers in every version, and promises nothing for `shuffle`. Raises ValueError for a negative seed.
    """
    if seed < 0:  # Random(-1) is Random(1): it would share a deck with another seed
        raise ValueError(f"the deck's seed is {seed}; allowed: a whole number that is not negative.")
    draw = random.Random(seed).random
    deck = list(range(52))
    for k in range(51):
        j = k + int(draw() * (52 - k))
        deck[k], deck[j] = deck[j], deck[k]
    return deck


class Game:
    """One game on the 52 cards of `deck`, in this order: player, player, hole card, open card, draws."""

    def __init__(self, deck: Sequence[int]) -> None:
        """Deal."""
        self._cards = iter(deck)
        self._state = _GAME.new_initial_state()
        self._deal()

    def play(self, move: Move) -> Observation:
        """Make one move. Raises ValueError after the end."""
        if self._state.is_terminal():
            raise ValueError(f"the move is {move}, but the game is over; deal a new one first.")
        self._state.apply_action(MOVES[move])
        self._deal()
        return self.observe()

    def observe(self) -> Observation:
        """What the player sees now."""
        state = self._state
        cards, total = state.cards(_PLAYER), state.get_best_player_total(_PLAYER)
        done = state.is_terminal()
        return Observation(
            player_cards=tuple(RANKS[card % 13] for card in cards),
            total=total,
            soft=total != sum(min(card % 13 + 1, 10) for card in cards),
            # Not observation_tensor: it holds both of the dealer's cards.
            dealer_card=RANKS[state.dealers_visible_card() % 13],
            done=done,
            reward=state.returns()[_PLAYER] if done else 0.0,
        )

    def _deal(self) -> None:
        while self._state.is_chance_node():
            self._state.apply_action(next(self._cards))
