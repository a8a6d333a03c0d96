import pytest

from tasks.environments.blackjack.cards import VALUES
from tasks.environments.blackjack.game import Observation
from tasks.environments.blackjack.language import count_choices, initial_messages, is_partial, next_messages, parse_move
from tasks.environments.blackjack.optimum import best_move_by_total
from tasks.environments.interface import Episode, Task

ROWS = (*(f"hard {total}" for total in range(4, 22)), *(f"soft {total}" for total in range(12, 22)))


def seen(cards: str, total: int, soft: bool, dealer: str) -> Observation:
    return Observation(tuple(cards.split()), total, soft, dealer, done=False, reward=0.0)


def test_initial_and_next_messages() -> None:
    system, user = initial_messages(seen("A 7", 18, True, "10"), thinking=False)
    assert system["role"] == "system" and "HIT or STAND" in system["content"]
    assert user == {"role": "user", "content": "Cards A 7, soft 18. Dealer 10."}
    assert next_messages(seen("A 7 K", 18, False, "10")) == [
        {"role": "user", "content": "Cards A 7 10, hard 18. Dealer 10."}
    ]


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " ",
        "hit!",
        "HIT or STAND",
        "white",
        "don't hit, stand",
        "hit stand",
        "HIT.",
        "H",
        "standing",
        "hi t",
        "HITHIT",
    ],
)
def test_an_unclear_reply_is_no_move(reply: str) -> None:
    assert parse_move(reply, thinking=False) is None


@pytest.mark.parametrize(
    ("reply", "move"), [(" hit\n", "HIT"), ("Stand", "STAND"), ("HIT", "HIT"), ("STAND ", "STAND")]
)
def test_a_clear_reply_is_read(reply: str, move: str) -> None:
    assert parse_move(reply, thinking=False) == move


THOUGHT = "<think>\n16 against a 10.\nSTAND would be weak.\n</think>\n\n"


def test_with_thinking_the_rules_ask_for_it() -> None:
    system, user = initial_messages(seen("A 7", 18, True, "10"), thinking=True)
    assert "Think first" in system["content"] and "HIT or STAND, on a line of its own" in system["content"]
    assert user == {"role": "user", "content": "Cards A 7, soft 18. Dealer 10."}


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("HIT", "HIT"),
        (THOUGHT + "HIT", "HIT"),
        (THOUGHT + "I hit.\n hit \n\n", "HIT"),
        ("16 against a 10.\nSTAND", "STAND"),
        ("16 against a 10.\n</think>\nSTAND", "STAND"),  # some templates open the thought in the prompt
        (THOUGHT + "HIT\nSTAND", "STAND"),
        (THOUGHT + "I say HIT", None),
        (THOUGHT + "HIT\nThat is it.", None),
        (THOUGHT, None),
        ("<think>\nSTAND would be weak, so\nHIT", None),  # never closed: nothing was said
        (THOUGHT + "<think>\nHIT", None),
        ("", None),
    ],
)
def test_with_thinking_the_last_line_is_the_answer(reply: str, move: str | None) -> None:
    assert parse_move(reply, thinking=True) == move
    if "\n" in reply.strip():
        assert parse_move(reply, thinking=False) is None  # without, nothing else may be there


def test_choices_are_counted_by_situation() -> None:
    def said(*parts: str) -> list[dict[str, str]]:
        roles = ("user", "assistant")
        return [{"role": roles[i % 2], "content": part} for i, part in enumerate(parts)]

    first = said("Cards A 7, soft 18. Dealer 10.", "HIT", "Cards A 7 9, hard 17. Dealer 10.", "STAND")
    second = said("Cards A 7, soft 18. Dealer 10.", "stand")
    third = said("Cards A 7, soft 18. Dealer 10.", "perhaps")  # no decision
    episodes = [Episode(Task("1", "test", 1), messages) for messages in (first, second, third)]
    assert count_choices(episodes, thinking=False) == [["hard 17", "10", 1, 0], ["soft 18", "10", 2, 1]]


def test_the_optimum_has_a_move_in_every_situation_of_the_map() -> None:
    assert set(best_move_by_total()) == {(row, column) for row in ROWS for column in VALUES}
    assert best_move_by_total()["hard 16", "10"] == "HIT" and best_move_by_total()["hard 16", "6"] == "STAND"
    assert best_move_by_total()["soft 18", "9"] == "HIT" and best_move_by_total()["soft 18", "2"] == "STAND"
    assert {best_move_by_total()[f"hard {t}", c] for t in range(17, 22) for c in VALUES} == {"STAND"}
    assert {best_move_by_total()[f"hard {t}", c] for t in range(4, 12) for c in VALUES} == {"HIT"}


def test_a_partial_format_begins_with_a_move() -> None:
    for reply in ("HIT.", " hit!", "Stand, as 16 is weak", "STAND\nHIT", "HITCH"):
        assert is_partial(reply, thinking=False) and parse_move(reply, thinking=False) is None
    for reply in ("", "I HIT", "Cards 10 6", "ST"):
        assert not is_partial(reply, thinking=False)
    assert is_partial("16 is weak.\nHIT!", thinking=True)
    assert not is_partial("HIT, as 16\nis weak.", thinking=True)  # the last line is the answer
