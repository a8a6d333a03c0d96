"""A tiny environment as somebody could write it, without baselines, metrics or figures: say the numbers from 1 to N."""

from collections.abc import Sequence

from tasks.environments.interface import EnvironmentSpec, Episode, FinishReason, Message, Split, Step, Task


class Counting:
    def __init__(self) -> None:
        self.last = self.said = 0

    async def reset(self, task: Task) -> Step:
        self.last, self.said = task.data["last"], 0
        return Step([{"role": "user", "content": f"Count to {self.last}, one number a message."}])

    async def step(self, reply: Message) -> Step:
        self.said += 1
        if reply["content"] != str(self.said):
            return Step(done=True, valid=reply["content"].isdigit(), note="wrong number")
        reward, done = 1 / self.last, self.said == self.last
        return Step([] if done else [{"role": "user", "content": "Go on."}], reward, done, note="right")

    async def close(self) -> None:
        pass


def task(split: Split, index: int) -> Task:
    last = index % 5 + 1
    return Task(f"{split}-{last}", split, index, {"last": last})


SPEC = EnvironmentSpec(
    name="counting",
    task=task,
    local=Counting,
    reward_range=(0, 1),
    parts=lambda task: [f"up to {task.data['last']}"] if "last" in task.data else [],
)


def episode(
    name: str,
    steps: Sequence[Step],
    finish_reason: FinishReason = "finished",
    error: str = "",
    prompt: Sequence[Message] = ({"role": "user", "content": "Begin."},),
) -> Episode:
    """An episode of the task `name` in which the policy said "a", "b", … and was answered by `steps`."""
    messages, answered = list(prompt), [Step(prompt), *steps]
    for word, step in zip("abcdefgh", steps, strict=False):
        messages += [{"role": "assistant", "content": word}, *step.messages]
    return Episode(
        Task(name, "test", 0), messages, answered, len(steps), sum(s.reward for s in steps), finish_reason, error
    )
