"""Between game and language: an observation as chat messages, a reply as a move. Nothing else."""

from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation

SYSTEM_PROMPT = "You play BlackJack. Answer only HIT or STAND."
"""Short on purpose: it is read anew for every game, and on a CPU its tokens are most of a game's cost."""
THINKING_PROMPT = "You play BlackJack. Think first. Then answer only HIT or STAND, on a line of its own at the end."


class BlackJackAgent:
    """Renders observations and reads replies; see `tasks.environments.catalog.Agent`."""

    def __init__(self, thinking: bool = False) -> None:
        self.thinking = thinking  # whether replies may think before they answer

    def opening(self, observation: BlackJackObservation) -> list[dict[str, str]]:
        """The rules in one line, and the cards: "Cards A 7, soft 18. Dealer 10."."""
        rules = THINKING_PROMPT if self.thinking else SYSTEM_PROMPT
        return [{"role": "system", "content": rules}, *self.follow_up(observation)]

    def follow_up(self, observation: BlackJackObservation) -> list[dict[str, str]]:
        """All the cards again, so that the last message alone is enough to decide by.

        Jacks, queens and kings are shown as the 10 that they count: nothing else about them matters, and a small policy
        need not learn four names for one card.
        """
        cards = " ".join(map(_shown, observation.player_cards))
        kind = "soft" if observation.soft else "hard"
        content = f"Cards {cards}, {kind} {observation.total}. Dealer {_shown(observation.dealer_card)}."
        return [{"role": "user", "content": content}]

    def read(self, reply: str, observation: BlackJackObservation) -> BlackJackAction | None:
        """The move that the reply is: exactly HIT or STAND, in any case, blanks around it. Else None.

        With thinking it is the last line with something on it that must be the move, and where a thought was opened it
        must have been closed before: what is said in it is no answer.
        """
        for move in observation.legal_actions:
            if self._word(reply) == move:
                return BlackJackAction(move=move)
        return None

    def nearly(self, reply: str, observation: BlackJackObservation) -> bool:
        """Whether the reply begins with a move: "HIT." or "Stand, as 16 …"; with thinking, its last line."""
        return any(self._word(reply).startswith(move) for move in observation.legal_actions)

    def _word(self, reply: str) -> str:
        return _answer(reply).upper() if self.thinking else reply.strip().upper()

    def say(self, action: BlackJackAction) -> str:
        """The shortest reply that states this move: the inverse of `read`."""
        return action.move


def _answer(reply: str) -> str:
    """The last line behind the last thought, nothing while one is open.

    "HIT" of "<think>\\n16 is weak.\\n</think>\\n\\nHIT", and of "16 is weak.\\nHIT".
    """
    said = reply.rpartition("</think>")[2]
    return "" if "<think>" in said else said.strip().rpartition("\n")[2].strip()


def _shown(rank: str) -> str:
    return "10" if rank in ("J", "Q", "K") else rank
