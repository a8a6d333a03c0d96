"""What a policy does in each situation: the player's total down, the dealer's open card across."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tasks.environments.blackjack.language import parse_move
from tasks.environments.blackjack.optimum import best_move_by_total
from tasks.environments.interface import Episode

_CARDS = re.compile(r", (?P<total>(hard|soft) \d+)\. Dealer (?P<dealer>\w+)\.$")


def count_choices(episodes: Sequence[Episode], thinking: bool) -> list[list[Any]]:
    """[row, column, decisions, of these HIT] for each situation met: ["soft 18", "10", 31, 4]. An unreadable reply is
    no decision."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for episode in episodes:
        for before, reply in pairwise(episode.messages):
            seen = _CARDS.search(before["content"]) if reply["role"] == "assistant" else None
            move = parse_move(reply["content"], thinking) if seen else None
            if seen and move:
                count = counts[seen["total"], seen["dealer"]]
                count[0] += 1
                count[1] += move == "HIT"
    return [[row, column, met, hits] for (row, column), (met, hits) in sorted(counts.items())]


def heat_map_cells(choices: Sequence[Sequence[Any]]) -> Mapping[tuple[str, int, str], tuple[float, bool]]:
    """(hard or soft, total, dealer's card) → (share of HIT, whether the optimum hits), of what `count_choices` gave."""
    best = best_move_by_total()
    cells = {}
    for row, column, met, hits in choices:
        kind, total = row.split()
        cells[kind, int(total), column] = (hits / met, best[row, column] == "HIT")
    return cells
