"""What goes over the wire: the move a player makes and what a player sees."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field

from tasks.environments.blackjack.cards import Move


class BlackJackAction(Action):
    """One move: HIT takes a card, STAND ends the player's turn."""

    move: Move


class BlackJackObservation(Observation):
    """What a player sees, and no more: the dealer's hole card is in no field, during the game or after it.

    Example: player_cards ["A", "7"], total 18, soft True, dealer_card "K", legal_actions ["HIT", "STAND"],
    done False, reward None. At the end done is True, legal_actions is empty and reward is -1, 0 or 1.
    """

    player_cards: list[str] = Field(description="The player's ranks (A, 2 to 10, J, Q, K) in deal order")
    total: int = Field(description="The best total: the highest that is not over 21, else the lowest")
    soft: bool = Field(description="Whether an ace counts 11 in the total")
    dealer_card: str = Field(description="The rank of the dealer's open card")
    legal_actions: list[Move] = Field(description="The moves allowed now; empty at the end")
