"""One episode of maths: a problem, calls of the interpreter, an answer that is compared."""

from tasks.environments.interface import Step, Task
from tasks.environments.maths.items import Item, Items
from tasks.environments.maths.scoring import answer, is_right
from tasks.environments.tool_use import Exercise, ToolOptions, ToolUse
from tasks.interpreter.open import open_interpreter

SYSTEM = "Solve the problem. Give the answer alone between <answer> and </answer>."


class Maths(ToolUse):
    """An environment (see `tasks/environments/interface.py`) whose task is an item of a data set."""

    def __init__(self, items: Items, options: ToolOptions) -> None:
        super().__init__(self._exercise, options, lambda: open_interpreter(options.interpreter))
        self.items = items
        self.item: Item | None = None

    def _exercise(self, task: Task) -> Exercise:
        self.item = self.items.make(task.data["dataset"], task.seed)
        return Exercise(question=self.item.question, grade=self._grade, system=SYSTEM)

    async def _grade(self, reply: str) -> Step:
        given = answer(reply)
        if given is None:
            return Step(done=True, valid=False, metrics={"success": 0.0}, note="no answer")
        assert self.item is not None
        right = float(await is_right(self.item, given))
        return Step(
            reward=right, done=True, metrics={"success": right}, note="" if right else f"not {self.item.answer}"
        )
