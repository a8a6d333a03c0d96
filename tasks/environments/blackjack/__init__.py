"""BlackJack: a shuffled deck, HIT or STAND, and an optimum that is known exactly."""

from tasks.environments.blackjack.spec import SPEC

__all__ = ["SPEC"]
