import asyncio
import random

import pyspiel
import pytest

from tasks.environments.blackjack.cards import RANKS, hand_total
from tasks.environments.blackjack.environment import BlackJack
from tasks.environments.blackjack.game import Game, Observation, shuffled_deck
from tasks.environments.blackjack.language import initial_messages, next_messages
from tasks.environments.blackjack.optimum import action_values
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Step

HIT, STAND = "HIT", "STAND"


def deck_of(ranks: str) -> list[int]:
    """A whole deck that begins with these ranks: player, player, hole card, open card, draws."""
    deck: list[int] = []
    for rank in ranks.split():
        deck.append(next(c for c in range(52) if RANKS[c % 13] == rank and c not in deck))
    return deck + [card for card in range(52) if card not in deck]


def play(game: Game, moves: list[str]) -> list[Observation]:
    observations = [game.observe()]
    for move in moves:
        if not observations[-1].done:
            observations.append(game.play(move))
    return observations


def episode(environment: BlackJack, seed: int, moves: list[str]) -> list[Step]:
    async def steps() -> list[Step]:
        found = [await environment.reset(get_environment("blackjack").task("train", seed))]
        for move in moves:
            if not found[-1].done:
                found.append(await environment.step({"role": "assistant", "content": move}))
        return found

    return asyncio.run(steps())


def test_one_seed_gives_one_deck_whatever_happened_before() -> None:
    fresh, used = BlackJack(), BlackJack()
    for other in range(5):
        episode(used, other, [HIT] * other)
    for seed in range(200):
        moves = [HIT] * (seed % 3) + [STAND]
        assert episode(fresh, seed, moves) == episode(used, seed, moves)


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
    seen = Game(deck_of("A 7 9 K")).observe()
    assert seen == Observation(("A", "7"), total=18, soft=True, dealer_card="K", done=False, reward=0.0)


def test_the_open_card_is_the_one_that_openspiel_shows() -> None:
    game = pyspiel.load_game("blackjack")
    for seed in range(50):
        deck, state = shuffled_deck(seed), game.new_initial_state()
        for card in deck[:4]:
            state.apply_action(card)
        shown = state.observation_string(0).split("??")[1].split()[0]  # such as "HT": suit, rank
        open_card = Game(shuffled_deck(seed)).observe().dealer_card
        assert shown[1:] == ("T" if open_card == "10" else open_card)
        assert open_card == RANKS[deck[3] % 13]


@pytest.mark.parametrize(
    ("cards", "total", "soft"),
    [("A 7", 18, True), ("A 7 K", 18, False), ("A A", 12, True), ("A K", 21, True), ("9 8 A", 18, False)],
)
def test_totals(cards: str, total: int, soft: bool) -> None:
    first, second, *drawn = cards.split()
    seen = play(Game(deck_of(" ".join([first, second, "2", "3", *drawn]))), [HIT] * len(drawn))[-1]
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
def test_rewards(ranks: str, moves: list[str], reward: float) -> None:
    seen = play(Game(deck_of(ranks)), moves)
    assert [o.reward for o in seen] == [0.0] * (len(seen) - 1) + [reward]
    assert [o.done for o in seen] == [False] * (len(seen) - 1) + [True]


def test_nothing_that_is_seen_depends_on_the_hole_card() -> None:
    rng, other_rewards = random.Random(0), 0
    for seed in range(300):
        deck = shuffled_deck(seed)
        other = deck.copy()
        other[2], other[51] = deck[51], deck[2]  # another hole card, and the same draws
        moves = [rng.choice([HIT, STAND]) for _ in range(12)]
        seen, rewards = [], []
        for order in (deck, other):
            observations = play(Game(order), moves)
            fields = [(o.player_cards, o.total, o.soft, o.dealer_card, o.done) for o in observations]
            seen.append((fields, [(initial_messages(o, False), next_messages(o)) for o in observations]))
            rewards.append(observations[-1].reward)
        assert seen[0] == seen[1]
        other_rewards += rewards[0] != rewards[1]
    assert other_rewards > 50  # the hole cards did differ


def test_a_deck_has_a_seed_from_0_on() -> None:
    with pytest.raises(ValueError, match="seed is -1; allowed: a whole number that is not negative"):
        shuffled_deck(-1)


def test_no_move_before_a_game_or_after_its_end() -> None:
    with pytest.raises(ValueError, match="no game is open"):
        asyncio.run(BlackJack().step({"role": "assistant", "content": STAND}))
    game = Game(shuffled_deck(1))
    game.play(STAND)
    with pytest.raises(ValueError, match="the game is over"):
        game.play(HIT)


def test_what_an_episode_says() -> None:
    # Seed 0 deals 43, 39 (5, A) to the player, 23 is hidden, 15 (3) lies open; then 28, a 3.
    first, hit, stood = episode(BlackJack(), 0, ["HIT", "stand"])
    assert first.messages[1]["content"] == "Cards 5 A, soft 16. Dealer 3."
    assert (first.reward, first.done) == (0.0, False)
    assert hit.messages == [{"role": "user", "content": "Cards 5 A 3, soft 19. Dealer 3."}]
    assert (hit.metrics, hit.note, hit.valid) == ({"agreement": 1.0, "regret": 0.0}, "as the optimum", True)
    assert stood.done and stood.messages == [] and stood.reward in (-1, 0, 1)
    first, lost = episode(BlackJack(), 0, ["I stand."])
    assert (lost.reward, lost.done, lost.valid, lost.note) == (-1.0, True, False, "unreadable")
    best = max(action_values(("5", "A"), "3").values())
    assert lost.metrics == {"agreement": 0.0, "regret": best + 1} and round(best, 4) == -0.0019


def test_training_and_evaluation_share_no_deck() -> None:
    spec = get_environment("blackjack")
    for index in (0, 5, 2**61 - 1):
        train, test = spec.task("train", index), spec.task("test", index)
        assert train.seed < 2**61 <= test.seed < 2**62
        assert {train.id, test.id} == {str(train.seed), str(test.seed)} and train.split == "train"
