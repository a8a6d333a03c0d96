import pytest

from tasks.environments.blackjack.agent import BlackJackAgent
from tasks.environments.blackjack.models import BlackJackObservation
from tasks.environments.blackjack.situations import COLUMNS, ROWS, best_moves, situation


def seen(cards: str, total: int, soft: bool, dealer: str, done: bool = False) -> BlackJackObservation:
    return BlackJackObservation(
        player_cards=cards.split(),
        total=total,
        soft=soft,
        dealer_card=dealer,
        legal_actions=[] if done else ["HIT", "STAND"],
        done=done,
    )


def test_opening_and_follow_up() -> None:
    agent = BlackJackAgent()
    system, user = agent.opening(seen("A 7", 18, True, "10"))
    assert system["role"] == "system" and "HIT or STAND" in system["content"]
    assert user == {"role": "user", "content": "Cards A 7, soft 18. Dealer 10."}
    assert agent.follow_up(seen("A 7 K", 18, False, "10")) == [
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
    assert BlackJackAgent().read(reply, seen("10 5", 15, False, "10")) is None


@pytest.mark.parametrize(
    ("reply", "move"), [(" hit\n", "HIT"), ("Stand", "STAND"), ("HIT", "HIT"), ("STAND ", "STAND")]
)
def test_a_clear_reply_is_read(reply: str, move: str) -> None:
    action = BlackJackAgent().read(reply, seen("10 5", 15, False, "10"))
    assert action is not None and action.move == move


THOUGHT = "<think>\n16 against a 10.\nSTAND would be weak.\n</think>\n\n"


def test_with_thinking_the_rules_ask_for_it() -> None:
    system, user = BlackJackAgent(thinking=True).opening(seen("A 7", 18, True, "10"))
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
    action = BlackJackAgent(thinking=True).read(reply, seen("10 6", 16, False, "10"))
    assert (action and action.move) == move
    if "\n" in reply.strip():
        assert BlackJackAgent().read(reply, seen("10 6", 16, False, "10")) is None  # without, nothing else may be there


def test_only_legal_moves_are_read() -> None:
    assert BlackJackAgent().read("HIT", seen("10 5 9", 24, False, "10", done=True)) is None
    only_stand = seen("10 5", 15, False, "10").model_copy(update={"legal_actions": ["STAND"]})
    assert BlackJackAgent().read("HIT", only_stand) is None
    assert BlackJackAgent().read("STAND", only_stand) is not None


def test_situations_are_the_rows_and_columns_of_the_map() -> None:
    assert situation(seen("A 7", 18, True, "K")) == ("soft 18", "10")
    assert situation(seen("8 8", 16, False, "A")) == ("hard 16", "A")
    assert set(best_moves()) == {(row, column) for row in ROWS for column in COLUMNS}
    assert best_moves()["hard 16", "10"] == "HIT" and best_moves()["hard 16", "6"] == "STAND"
    assert best_moves()["soft 18", "9"] == "HIT" and best_moves()["soft 18", "2"] == "STAND"
    assert {best_moves()[f"hard {t}", c] for t in range(17, 22) for c in COLUMNS} == {"STAND"}
    assert {best_moves()[f"hard {t}", c] for t in range(4, 12) for c in COLUMNS} == {"HIT"}


def test_a_near_miss_begins_with_a_move() -> None:
    at = seen("10 6", 16, False, "10")
    for reply in ("HIT.", " hit!", "Stand, as 16 is weak", "STAND\nHIT", "HITCH"):
        assert BlackJackAgent().nearly(reply, at) and BlackJackAgent().read(reply, at) is None
    for reply in ("", "I HIT", "Cards 10 6", "ST"):
        assert not BlackJackAgent().nearly(reply, at)
    assert BlackJackAgent(thinking=True).nearly("16 is weak.\nHIT!", at)
    assert not BlackJackAgent(thinking=True).nearly("HIT, as 16\nis weak.", at)  # the last line is the answer
