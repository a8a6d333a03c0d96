import random

import pyspiel
import pytest

from tasks.environments.blackjack.agent import BlackJackAgent
from tasks.environments.blackjack.cards import RANKS, hand_total
from tasks.environments.blackjack.environment import BlackJackEnvironment, LocalGames, shuffled_deck
from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation

HIT, STAND = BlackJackAction(move="HIT"), BlackJackAction(move="STAND")


def deck_of(ranks: str) -> list[int]:
    """A whole deck that begins with these ranks: player, player, hole card, open card, draws."""
    deck: list[int] = []
    for rank in ranks.split():
        deck.append(next(c for c in range(52) if RANKS[c % 13] == rank and c not in deck))
    return deck + [card for card in range(52) if card not in deck]


def play(environment: BlackJackEnvironment, first: BlackJackObservation, moves: list[BlackJackAction]):
    observations = [first]
    for move in moves:
        if not observations[-1].done:
            observations.append(environment.step(move))
    return observations


def test_one_seed_gives_one_deck_whatever_happened_before() -> None:
    fresh, used = BlackJackEnvironment(), BlackJackEnvironment()
    for other in range(5):
        play(used, used.reset(seed=other), [HIT] * other)
    for seed in range(200):
        moves = [HIT] * (seed % 3) + [STAND]
        assert play(fresh, fresh.reset(seed=seed), moves) == play(used, used.reset(seed=seed), moves)


def test_the_seed_fixes_the_whole_deck() -> None:
    assert shuffled_deck(7) == shuffled_deck(7)
    assert len({tuple(shuffled_deck(seed)) for seed in range(1000)}) == 1000
    assert all(sorted(shuffled_deck(seed)) == list(range(52)) for seed in range(100))
    # The exact order, so that no release of Python or of ours gives other games for old seeds.
    assert shuffled_deck(0)[:6] == [43, 39, 23, 15, 28, 24]


def test_a_shuffle_puts_every_card_everywhere_alike() -> None:
    n = 5200
    first_four = [card for seed in range(n) for card in shuffled_deck(seed)[:4]]
    counts = [first_four.count(card) for card in range(52)]
    chi2 = sum((count - 4 * n / 52) ** 2 / (4 * n / 52) for count in counts)
    assert chi2 < 51 + 5 * (2 * 51) ** 0.5


def test_the_player_sees_its_cards_and_the_open_card() -> None:
    seen = BlackJackEnvironment().deal(deck_of("A 7 9 K"))
    assert seen.player_cards == ["A", "7"]
    assert (seen.total, seen.soft, seen.dealer_card) == (18, True, "K")
    assert (seen.legal_actions, seen.done, seen.reward) == (["HIT", "STAND"], False, None)


def test_the_open_card_is_the_one_that_openspiel_shows() -> None:
    game = pyspiel.load_game("blackjack")
    for seed in range(50):
        deck, state = shuffled_deck(seed), game.new_initial_state()
        for card in deck[:4]:
            state.apply_action(card)
        shown = state.observation_string(0).split("??")[1].split()[0]  # such as "HT": suit, rank
        open_card = BlackJackEnvironment().reset(seed=seed).dealer_card
        assert shown[1:] == ("T" if open_card == "10" else open_card)
        assert open_card == RANKS[deck[3] % 13]


@pytest.mark.parametrize(
    ("cards", "total", "soft"),
    [("A 7", 18, True), ("A 7 K", 18, False), ("A A", 12, True), ("A K", 21, True), ("9 8 A", 18, False)],
)
def test_totals(cards: str, total: int, soft: bool) -> None:
    first, second, *drawn = cards.split()
    environment = BlackJackEnvironment()
    seen = environment.deal(deck_of(" ".join([first, second, "2", "3", *drawn])))
    for _ in drawn:
        seen = environment.step(HIT)
    assert (seen.total, seen.soft) == (total, soft) == hand_total(cards.split())


@pytest.mark.parametrize(
    ("ranks", "moves", "reward"),
    [
        ("10 9 10 8", [STAND], 1.0),  # 19 against 18
        ("10 8 10 8", [STAND], 0.0),  # 18 against 18
        ("10 7 10 8", [STAND], -1.0),  # 17 against 18
        ("10 2 10 6 10", [STAND], 1.0),  # the dealer draws on 16 and goes bust
        ("10 8 A 6 5", [STAND], 1.0),  # the dealer stands on soft 17: 18 wins
        ("10 6 5 8 K", [HIT], -1.0),  # the player goes bust with 26, the dealer has 13
        ("A K 5 6 10", [STAND], 0.0),  # a natural has no bonus: the dealer draws 21
        ("5 6 10 9 10", [HIT, STAND], 1.0),  # 21 against 19
    ],
)
def test_rewards(ranks: str, moves: list[BlackJackAction], reward: float) -> None:
    environment = BlackJackEnvironment()
    seen = play(environment, environment.deal(deck_of(ranks)), moves)
    assert [o.reward for o in seen] == [None] * (len(seen) - 1) + [reward]
    assert seen[-1].done and seen[-1].legal_actions == []


def test_nothing_that_is_seen_depends_on_the_hole_card() -> None:
    agent, rng, other_rewards = BlackJackAgent(), random.Random(0), 0
    for seed in range(300):
        deck = shuffled_deck(seed)
        other = deck.copy()
        other[2], other[51] = deck[51], deck[2]  # another hole card, and the same draws
        moves = [rng.choice([HIT, STAND]) for _ in range(12)]
        seen, rewards = [], []
        for order in (deck, other):
            environment = BlackJackEnvironment()
            observations = play(environment, environment.deal(order), moves)
            dumps = [o.model_dump(exclude={"reward"}) for o in observations]
            prompts = [(agent.opening(o), agent.follow_up(o)) for o in observations]
            seen.append((dumps, prompts, environment.state.model_dump()))
            rewards.append(observations[-1].reward)
        assert seen[0] == seen[1]
        other_rewards += rewards[0] != rewards[1]
    assert other_rewards > 50  # the hole cards did differ


def test_the_state_tells_neither_seed_nor_deck() -> None:
    environment = BlackJackEnvironment()
    environment.reset(seed=5, episode_id="e")
    assert environment.state.model_dump() == {"episode_id": "e", "step_count": 0}


@pytest.mark.parametrize("seed", [None, -1, 1.5, "7", True])
def test_a_seed_is_required(seed: object) -> None:
    with pytest.raises(ValueError, match="whole number that is not negative"):
        BlackJackEnvironment().reset(seed=seed)  # type: ignore[arg-type]


def test_no_move_before_a_game_or_after_its_end() -> None:
    environment = BlackJackEnvironment()
    with pytest.raises(ValueError, match="no game is open"):
        environment.step(STAND)
    environment.reset(seed=1)
    environment.step(STAND)
    with pytest.raises(ValueError, match="no game is open"):
        environment.step(HIT)


def test_a_deck_has_each_card_once() -> None:
    with pytest.raises(ValueError, match="each of the cards 0 to 51 once"):
        BlackJackEnvironment().deal([0] * 52)


def test_many_games_keep_apart() -> None:
    games = LocalGames()
    seeds = list(range(40))
    for _ in range(2):
        seen = games.reset(seeds)
        after = games.step({i: HIT for i in range(0, 40, 2)})
        assert set(after) == set(range(0, 40, 2))
        for i, seed in enumerate(seeds):
            alone = BlackJackEnvironment()
            assert seen[i] == alone.reset(seed=seed)
            if i in after:
                assert after[i] == alone.step(HIT)
    games.reset([1, 2])
    with pytest.raises(ValueError, match="names game 2; 2 games are open"):
        games.step({2: HIT})
