"""One question that any text answers: a policy with random weights gets rewards that differ, and is trained."""

from tasks.environments.interface import EnvironmentSpec, Message, Split, Step, Task
from tasks.seeds import derived_seed


class AnyReply:
    """One reply; a point for a text of an even number of characters. No reply is readable, so that the point is the
    bonus of `rollout.partial_format_bonus`, which a reply that was cut off gets too."""

    async def reset(self, task: Task) -> Step:
        return Step([{"role": "user", "content": f"Say something, for the {task.seed % 97}th time."}])

    async def step(self, reply: Message) -> Step:
        return Step(done=True, valid=False, note="read by its length alone")

    async def close(self) -> None: ...


def task(split: Split, index: int) -> Task:
    seed = derived_seed("any reply", split, index)
    return Task(id=f"{split}-{seed}", split=split, seed=seed)


SPEC = EnvironmentSpec(
    name="any-reply",
    task=task,
    local=AnyReply,
    partial_format=lambda text: len(text) % 2 == 0,
    defaults={"rollout": {"max_turns": 1, "partial_format_bonus": 1.0}},
)
