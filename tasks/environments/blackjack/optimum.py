"""The exact optimum: what each move is worth, given only what a player sees.

A dynamic programme over the remaining deck, as in Baldwin et al., "The Optimum Strategy in Blackjack" (1956),
but without their approximations: a hand is a multiset of card values, not a total, and every card seen is
missing from the deck.

Axes: H player hands of two cards or more and at most 21 (2,008 multisets); V the ten card values of
`cards.VALUES`, for the dealer's open card or for the next card drawn; D the dealer's six ends (17, 18, 19,
20, 21, bust); O the player's three (win, push, loss).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.environments.blackjack.cards import VALUES, Move, card_value, hand_total
from tasks.environments.blackjack.game import Game, shuffled_deck

_DECK_V = np.array([4] * 9 + [16])
_BUST = 5


@dataclass(frozen=True)
class Tables:
    hands: list[tuple[int, ...]]  # H: how many of each value
    index: dict[tuple[int, ...], int]
    possible_HV: NDArray[np.bool_]  # false where the open card would be the fifth ace
    hard_H: NDArray[np.int64]  # aces counting 1
    next_HV: NDArray[np.int64]  # the hand after drawing a value; -1 when bust
    draw_HVV: NDArray[np.float64]  # hand, open card, next card: probability
    deal_HV: NDArray[np.float64]  # probability that the deal is this hand against this open card
    outcome_HVO: NDArray[np.float64]  # win, push, loss if the player stands
    stand_HV: NDArray[np.float64]
    hit_HV: NDArray[np.float64]


def action_values(player_cards: Sequence[str], dealer_card: str) -> dict[Move, float]:
    """Expected reward of HIT and of STAND, -1 to 1, with optimal moves after it, for a hand of at most 21."""
    table, values = tables(), [card_value(card) for card in player_cards]
    hand = table.index[tuple(map(values.count, VALUES))]
    dealer = VALUES.index(card_value(dealer_card))
    return {"HIT": float(table.hit_HV[hand, dealer]), "STAND": float(table.stand_HV[hand, dealer])}


def best_move(player_cards: Sequence[str], dealer_card: str) -> Move:
    """The move of higher expected reward, "HIT" or "STAND"; nowhere are they closer than 7e-6."""
    values = action_values(player_cards, dealer_card)
    return "HIT" if values["HIT"] > values["STAND"] else "STAND"


@lru_cache(maxsize=65536)
def optimum_reward(seed: int) -> float:
    """What the optimum gets on the deck of this seed."""
    game = Game(shuffled_deck(seed))
    seen = game.observe()
    while not seen.done:
        seen = game.play(best_move(seen.player_cards, seen.dealer_card))
    return seen.reward


@cache
def best_move_by_total() -> Mapping[tuple[str, str], Move]:
    """The better move for each ("hard 16" or "soft 18", dealer's card value), as for a heat map.

    Many hands share a total, and the optimum can differ between them: against a 10 it hits 10 6, not 8 4 4.
    Here the values of both moves are averaged over such hands, each weighted by how often optimal play meets
    it.
    """
    table = tables()
    gap_HV = table.hit_HV - table.stand_HV
    gain_HV = reach(gap_HV > 0) * gap_HV
    gains: dict[tuple[str, str], float] = {}
    for hand, counts in enumerate(table.hands):
        total, soft = hand_total(_ranks(counts))
        for dealer, value in enumerate(VALUES):
            key = f"{'soft' if soft else 'hard'} {total}", value
            gains[key] = gains.get(key, 0.0) + float(gain_HV[hand, dealer])
    return {key: "HIT" if gain > 0 else "STAND" for key, gain in gains.items()}


def reach(hit_HV: NDArray[Any]) -> NDArray[np.float64]:
    """How likely a game is to come to each hand, under these probabilities of HIT."""
    table = tables()
    reach_HV = table.deal_HV.copy()
    for hard in range(2, 22):  # a card adds at least 1, so a hand is complete before it is passed on
        for hand in np.flatnonzero(table.hard_H == hard):
            flow_VV = (reach_HV[hand] * hit_HV[hand])[:, None] * table.draw_HVV[hand]
            for drawn, successor in enumerate(table.next_HV[hand]):
                if successor >= 0:
                    reach_HV[successor] += flow_VV[:, drawn]
    return reach_HV


@cache
def tables() -> Tables:
    hands = _player_hands()
    index = {hand: place for place, hand in enumerate(hands)}
    held_HV = np.array(hands)
    cards_H = held_HV.sum(axis=1)
    hard_H = held_HV @ np.arange(1, 11)
    total_H = np.where((held_HV[:, 0] > 0) & (hard_H <= 11), hard_H + 10, hard_H)

    step_V = np.eye(10, dtype=int)
    next_HV = np.array([[index.get(tuple(row), -1) for row in hand + step_V] for hand in held_HV])

    # The hole card is drawn but unseen, so the next card comes from all that the player has not seen.
    left_HVV = (_DECK_V - held_HV)[:, None, :] - step_V
    possible_HV = left_HVV.min(axis=2) >= 0
    draw_HVV = np.where(possible_HV[:, :, None], left_HVV / (51 - cards_H)[:, None, None], 0.0)

    dealer_HVD = np.stack([_dealer_ends(left_HVV[:, v].clip(0), v) for v in range(10)], axis=1)
    points_D = np.array([17, 18, 19, 20, 21, 0])  # bust loses to every hand that stands
    ahead_HD = np.sign(total_H[:, None] - points_D)
    outcome_HVO = np.stack([np.einsum("hvd,hd->hv", dealer_HVD, ahead_HD == s) for s in (1, 0, -1)], axis=2)
    stand_HV = outcome_HVO[:, :, 0] - outcome_HVO[:, :, 2]

    hit_HV = np.zeros_like(stand_HV)
    best_HV = np.full((len(hands) + 1, 10), -1.0)  # the last row, found by next_HV = -1, is bust
    for hard in range(21, 1, -1):  # a card adds at least 1, so all hands that follow are known
        of = np.flatnonzero(hard_H == hard)
        hit_HV[of] = np.einsum("hvn,hnv->hv", draw_HVV[of], best_HV[next_HV[of]])
        best_HV[of] = np.maximum(hit_HV[of], stand_HV[of])

    # Two cards of n and m of the values: n * m ways, halved for a pair, of 52 * 51 / 2; then the open card.
    ways_H = np.prod(np.where(held_HV == 2, _DECK_V * (_DECK_V - 1) / 2, np.where(held_HV, _DECK_V, 1)), axis=1)
    open_HV = np.where(possible_HV, (_DECK_V - held_HV) / 50, 0.0)
    deal_HV = np.where(cards_H == 2, ways_H / (52 * 51 / 2), 0.0)[:, None] * open_HV
    return Tables(hands, index, possible_HV, hard_H, next_HV, draw_HVV, deal_HV, outcome_HVO, stand_HV, hit_HV)


def _player_hands() -> list[tuple[int, ...]]:
    """Every multiset of two cards or more from one deck that is not bust."""
    hands: list[tuple[int, ...]] = [()]
    for place in range(10):
        hands = [
            (*hand, count)
            for hand in hands
            for count in range(_DECK_V[place] + 1)
            if sum((v + 1) * c for v, c in enumerate((*hand, count))) <= 21
        ]
    return [hand for hand in hands if sum(hand) >= 2]


def _dealer_ends(left_HV: NDArray[np.int64], open_card: int) -> NDArray[np.float64]:
    """How the dealer ends, a probability for each of D, drawing from what is left after each of H hands."""
    left_VH, left_H = left_HV.T.copy(), left_HV.sum(axis=1)

    @cache
    def ends(drawn: tuple[int, ...]) -> NDArray[np.float64]:  # [D, H], or [D, 1] where it is certain
        total, _ = hand_total((*_ranks(drawn), VALUES[open_card]))
        if total >= 17:
            return np.eye(6)[:, [total - 17 if total <= 21 else _BUST]]
        chance_VH = (left_VH - np.array(drawn)[:, None]) / (left_H - sum(drawn))
        following = (np.array(drawn) + np.eye(10, dtype=int)).tolist()
        chances = (chance_VH[v] * ends(tuple(following[v])) for v in range(10) if chance_VH[v].any())
        return sum(chances, start=np.zeros(()))

    return ends((0,) * 10).T


def _ranks(counts: Sequence[int]) -> tuple[str, ...]:
    return tuple(value for value, count in zip(VALUES, counts, strict=True) for _ in range(count))
