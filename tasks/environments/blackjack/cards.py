"""Ranks, and what a hand is worth. Imports nothing, so that everything else here can import it."""

from collections.abc import Sequence
from typing import Literal

Move = Literal["HIT", "STAND"]
MOVES: dict[Move, int] = {"HIT": 0, "STAND": 1}  # as OpenSpiel numbers them

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
"""In OpenSpiel's order: card c of its 52 has the rank RANKS[c % 13] and the suit c // 13."""

VALUES = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10")
"""What the rules tell apart: J, Q and K play as 10. The place of a value, plus one, is its lowest worth."""

_VALUE_OF = {rank: VALUES[min(place, 9)] for place, rank in enumerate(RANKS)}


def card_value(rank: str) -> str:
    """The rank as the rules see it: "K" is "10"."""
    return _VALUE_OF[rank]


def hand_total(ranks: Sequence[str]) -> tuple[int, bool]:
    """Best total of a hand, and whether it is soft (an ace counts 11).

    A 7 is (18, True), A 7 K is (18, False), A A is (12, True).
    A total over 21 is bust; it is then the lowest one, all aces counting 1.
    """
    hard = sum(VALUES.index(card_value(rank)) + 1 for rank in ranks)
    soft = "A" in ranks and hard + 10 <= 21
    return (hard + 10, True) if soft else (hard, False)
