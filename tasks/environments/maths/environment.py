"""One episode of maths: a problem, calls of the interpreter, an answer that is compared."""

from itertools import islice

from tasks.environments.interface import Message, Step, Task
from tasks.environments.maths.items import Item, Items
from tasks.environments.maths.scoring import answer, is_right
from tasks.environments.tool_use import Exercise, ToolOptions, ToolUse
from tasks.interpreter.open import open_interpreter
from tasks.seeds import derived_seed

LOOKED_AT = 40  # items at most, for examples that are not the problem itself
SYSTEM = "Solve the problem. Give the answer alone between <answer> and </answer>."


class Maths(ToolUse):
    """An environment (see `tasks/environments/interface.py`) whose task is an item of a data set."""

    def __init__(self, items: Items, options: ToolOptions, examples: int = 0) -> None:
        super().__init__(self._exercise, options, lambda: open_interpreter(options.interpreter))
        self.items, self.examples = items, examples
        self.item: Item | None = None

    def _exercise(self, task: Task) -> Exercise:
        self.item = self.items.make(task.data["dataset"], task.seed)
        return Exercise(question=self.item.question, grade=self._grade, system=SYSTEM, examples=self._solved(self.item))

    def _solved(self, asked: Item) -> list[Message]:
        """Other training items of its data set, with their answers."""
        dataset = asked.dataset
        found = (self.items.find(dataset, "train", derived_seed("example", dataset, n)) for n in range(LOOKED_AT))
        shown = islice((item for item in found if item.id != asked.id), self.examples)
        return [
            message
            for item in shown
            for message in (
                {"role": "user", "content": item.question},
                {"role": "assistant", "content": f"<answer>{item.answer}</answer>"},
            )
        ]

    async def _grade(self, reply: str) -> Step:
        given = answer(reply)
        if given is None:
            return Step(done=True, valid=False, metrics={"success": 0.0}, note="no answer")
        assert self.item is not None
        right = float(await is_right(self.item, given))
        return Step(
            reward=right, done=True, metrics={"success": right}, note="" if right else f"not {self.item.answer}"
        )
