"""Between game and language: an observation as chat messages, a reply as a move, and what was met and chosen."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tasks.environments.blackjack.cards import MOVES, Move, card_value
from tasks.environments.interface import Episode, Message

if TYPE_CHECKING:
    from tasks.environments.blackjack.game import Observation

SYSTEM_PROMPT = "You play BlackJack. Answer only HIT or STAND."
"""Short on purpose: it is read anew in every episode, and on a CPU its tokens are most of an episode's cost."""
THINKING_PROMPT = "You play BlackJack. Think first. Then answer only HIT or STAND, on a line of its own at the end."
_CARDS = re.compile(r", (?P<total>(hard|soft) \d+)\. Dealer (?P<dealer>\w+)\.$")


def initial_messages(observation: "Observation", thinking: bool) -> list[Message]:
    """The rules in one line, and the cards: "Cards A 7, soft 18. Dealer 10."."""
    rules = THINKING_PROMPT if thinking else SYSTEM_PROMPT
    return [{"role": "system", "content": rules}, *next_messages(observation)]


def next_messages(observation: "Observation") -> list[Message]:
    """All the cards again, so that the last message alone is enough to decide by.

    Jacks, queens and kings are shown as the 10 that they count: nothing else about them matters, and a small policy
    need not learn four names for one card.
    """
    cards = " ".join(map(card_value, observation.player_cards))
    kind = "soft" if observation.soft else "hard"
    content = f"Cards {cards}, {kind} {observation.total}. Dealer {card_value(observation.dealer_card)}."
    return [{"role": "user", "content": content}]


def parse_move(reply: str, thinking: bool) -> Move | None:
    """The move that the reply is: exactly HIT or STAND, in any case, blanks around it. Else None.

    With thinking it is the last line with something on it that must be the move, and where a thought was opened it
    must have been closed before: what is said in it is no answer.
    """
    word = _word(reply, thinking)
    return next((move for move in MOVES if word == move), None)


def is_partial(reply: str, thinking: bool) -> bool:
    """Whether the reply begins with a move: "HIT." or "Stand, as 16 …"; with thinking, its last line."""
    return _word(reply, thinking).startswith(tuple(MOVES))


def _word(reply: str, thinking: bool) -> str:
    """The reply; with thinking the last line behind the last thought, nothing while one is open.

    "HIT" of "<think>\\n16 is weak.\\n</think>\\n\\nHIT", and of "16 is weak.\\nHIT".
    """
    if thinking:
        answer = reply.rpartition("</think>")[2]
        reply = "" if "<think>" in answer else answer.strip().rpartition("\n")[2]
    return reply.strip().upper()


def count_choices(episodes: Sequence[Episode], thinking: bool) -> list[list[Any]]:
    """[row, column, decisions, of these HIT] for each situation met: ["soft 18", "10", 31, 4]. An unreadable reply is
    no decision."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for episode in episodes:
        for before, reply in pairwise(episode.messages):
            seen = _CARDS.search(before["content"])
            if seen and reply["role"] == "assistant" and (move := parse_move(reply["content"], thinking)):
                count = counts[seen["total"], seen["dealer"]]
                count[0] += 1
                count[1] += move == "HIT"
    return [[row, column, met, hits] for (row, column), (met, hits) in sorted(counts.items())]
