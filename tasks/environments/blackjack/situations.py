"""The grid on which a policy's moves are drawn: the player's total down, the dealer's open card across."""

from collections.abc import Mapping

from tasks.environments.blackjack.cards import VALUES, Move, card_value
from tasks.environments.blackjack.models import BlackJackObservation
from tasks.environments.blackjack.optimum import best_move_by_total

ROWS = (*(f"hard {total}" for total in range(4, 22)), *(f"soft {total}" for total in range(12, 22)))
COLUMNS = VALUES


def situation(observation: BlackJackObservation) -> tuple[str, str]:
    """Row and column, for example ("soft 18", "10") for A 7 against a king."""
    kind = "soft" if observation.soft else "hard"
    return f"{kind} {observation.total}", card_value(observation.dealer_card)


def best_moves() -> Mapping[tuple[str, str], Move]:
    """The optimum's move for every row and column, averaged as `optimum.best_move_by_total` says."""
    return {
        (f"{'soft' if soft else 'hard'} {total}", dealer): move
        for (total, soft, dealer), move in best_move_by_total().items()
    }
