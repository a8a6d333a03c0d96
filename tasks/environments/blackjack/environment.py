"""One episode of BlackJack: a game in words."""

from tasks.environments.blackjack.game import Game, Observation, shuffled_deck
from tasks.environments.blackjack.language import initial_messages, next_messages, parse_move
from tasks.environments.blackjack.optimum import action_values
from tasks.environments.blackjack.spec import LOST
from tasks.environments.interface import Message, Step, Task


class BlackJack:
    """An environment (see `tasks/environments/interface.py`) whose task is a shuffled deck, named by its seed."""

    def __init__(self, thinking: bool = False) -> None:
        self.thinking = thinking
        self._game: Game | None = None
        self.observation: Observation | None = None  # what the player sees now

    async def reset(self, task: Task) -> Step:
        """Deal from the deck of the task's seed; nothing else of the task is looked at."""
        self._game = Game(shuffled_deck(task.seed))
        self.observation = self._game.observe()
        return Step(initial_messages(self.observation, self.thinking))

    async def step(self, reply: Message) -> Step:
        """Make the move that the reply states; a reply that states none loses."""
        if self._game is None or self.observation is None:
            raise ValueError("no game is open; reset the environment first.")
        move = parse_move(reply["content"], self.thinking)
        values = action_values(self.observation.player_cards, self.observation.dealer_card)
        most = max(values.values())
        if move is None:
            lost = {"agreement": 0.0, "regret": most - LOST}
            return Step(reward=LOST, done=True, valid=False, metrics=lost, note="unreadable")
        optimal = values[move] == most
        self.observation = now = self._game.play(move)
        return Step(
            messages=[] if now.done else next_messages(now),
            reward=now.reward,
            done=now.done,
            metrics={"agreement": float(optimal), "regret": most - values[move]},
            note="as the optimum" if optimal else "not the optimum's move",
        )

    async def close(self) -> None:
        """Nothing is held that needs closing."""
