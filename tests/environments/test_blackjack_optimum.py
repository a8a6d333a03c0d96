from collections import Counter

import pyspiel
import pytest

from environments.exact_values import exact_value, game_value, optimal_policy
from tasks.environments.blackjack.cards import RANKS, card_value, hand_total
from tasks.environments.blackjack.optimum import action_values, best_move, optimum_reward
from tasks.environments.catalog import get_environment
from tasks.environments.scripted import play_baseline


def test_the_optimum_is_worth_what_is_known() -> None:
    value = exact_value("optimum")
    assert value.expected_reward == pytest.approx(-0.04246, abs=5e-6)
    assert value.win == pytest.approx(0.4328, abs=5e-5)
    assert value.win + value.push + value.loss == pytest.approx(1, abs=1e-12)
    assert value.win - value.loss == pytest.approx(value.expected_reward, abs=1e-12)


def test_other_policies() -> None:
    assert exact_value("random").expected_reward == pytest.approx(-0.3927, abs=5e-5)
    assert exact_value("random").win == pytest.approx(0.28, abs=0.005)
    assert exact_value("always_stand").expected_reward == pytest.approx(-0.1834, abs=5e-5)
    assert exact_value("always_stand").win == pytest.approx(0.38, abs=0.005)
    below_17 = game_value(lambda cards, dealer: float(hand_total(cards)[0] < 17))
    assert below_17.expected_reward == pytest.approx(-0.0801, abs=5e-5)
    always_hit = game_value(lambda cards, dealer: 1.0)
    assert (always_hit.expected_reward, always_hit.loss) == (pytest.approx(-1), pytest.approx(1))


def test_no_single_change_of_the_optimum_is_better() -> None:
    best = game_value(optimal_policy).expected_reward
    for cards, dealer in [(("6", "10"), "10"), (("A", "7"), "9"), (("2", "10"), "3"), (("10", "10"), "6")]:

        def changed(hand: tuple[str, ...], up: str, cards=cards, dealer=dealer) -> float:
            move = optimal_policy(hand, up)
            return 1 - move if (hand, up) == (cards, dealer) else move

        assert game_value(changed).expected_reward < best - 1e-6


@pytest.mark.parametrize(
    ("cards", "dealer", "move"),
    [
        ("10 10", "6", "STAND"),
        ("5 6", "10", "HIT"),
        ("10 6", "10", "HIT"),
        ("10 6", "6", "STAND"),
        ("8 4 4", "10", "STAND"),  # the fours that would help are gone
        ("7 6", "2", "STAND"),
        ("A 6", "7", "HIT"),
        ("A 7", "2", "STAND"),
        ("A 7", "9", "HIT"),
        ("A 8", "6", "STAND"),
        ("A A", "5", "HIT"),
    ],
)
def test_textbook_moves(cards: str, dealer: str, move: str) -> None:
    assert best_move(cards.split(), dealer) == move


def test_hitting_twenty_by_hand() -> None:
    # K Q against a 7, 49 cards unseen: only the 4 aces help, and then 21 stands. A hard 21 loses by any card.
    with_ace = action_values(["K", "Q", "A"], "7")
    assert with_ace["HIT"] == -1
    assert action_values(["K", "Q"], "7")["HIT"] == pytest.approx(4 / 49 * with_ace["STAND"] - 45 / 49)


def stand_value_by_openspiel(cards: list[int], open_card: int) -> float:
    """STAND in OpenSpiel itself, all hole cards and draws; cards of one value count as one branch."""

    def branches(state: pyspiel.State) -> Counter[int]:
        legal = state.legal_actions()
        counts = Counter(card_value(RANKS[card % 13]) for card in legal)
        return Counter({next(c for c in legal if card_value(RANKS[c % 13]) == v): n for v, n in counts.items()})

    def value(state: pyspiel.State) -> float:
        if state.is_terminal():
            return state.returns()[0]
        chances = branches(state)
        return sum(n * value(state.child(card)) for card, n in chances.items()) / chances.total()

    dealt = pyspiel.load_game("blackjack").new_initial_state()
    for card in cards[:2]:
        dealt.apply_action(card)
    holes = branches(dealt)  # the open card must still be there to be dealt after the hole card
    open_value = card_value(RANKS[open_card % 13])
    total = 0.0
    for hole in holes:
        same = card_value(RANKS[hole % 13]) == open_value
        state = dealt.child(hole)
        state.apply_action(next(c for c in state.legal_actions() if card_value(RANKS[c % 13]) == open_value))
        for card in cards[2:]:
            state.apply_action(0)
            state.apply_action(card)
        state.apply_action(1)
        total += (holes[hole] - same) * value(state)
    return total / (holes.total() - 1)


@pytest.mark.parametrize(("cards", "open_card"), [([12, 25], 9), ([0, 6], 5), ([8, 21], 13)])
def test_standing_against_openspiels_own_tree(cards: list[int], open_card: int) -> None:
    ranks = [RANKS[card % 13] for card in cards]
    by_programme = action_values(ranks, RANKS[open_card % 13])["STAND"]
    assert by_programme == pytest.approx(stand_value_by_openspiel(cards, open_card), abs=1e-12)


def test_the_optimum_wins_in_the_real_environment_what_it_should() -> None:
    spec, n = get_environment("blackjack"), 8000
    episodes = play_baseline(spec, "optimum", [spec.task("train", seed) for seed in range(n)])
    assert all(step.metrics["agreement"] == 1 for episode in episodes for step in episode.steps[1:])
    rewards = [episode.reward for episode in episodes]
    assert rewards[:500] == [optimum_reward(seed) for seed in range(500)]
    exact = exact_value("optimum")
    spread = (exact.win + exact.loss - exact.expected_reward**2) ** 0.5
    assert abs(sum(rewards) / n - exact.expected_reward) < 4 * spread / n**0.5
    assert abs(rewards.count(1.0) / n - exact.win) < 4 * 0.5 / n**0.5
