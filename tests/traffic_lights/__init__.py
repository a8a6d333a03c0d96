"""Three traffic lights, one after the other: what does a driver do? A third of a point for each right answer."""

import random

from tasks.environments.interface import Demonstration, EnvironmentSpec, Message, Metric, Split, Step, Task
from tasks.environments.scripted import play_baseline
from tasks.seeds import derived_seed

ANSWERS = {"red": "STOP", "amber": "SLOW", "green": "GO"}
LIGHTS = 3
DEFAULTS = {"training": {"epochs": 2, "minibatch_size": 16, "learning_rate": 1e-3}, "tiny": {"cold_start_steps": 100}}


class TrafficLights:
    """One episode; the task's seed decides the colours."""

    async def reset(self, task: Task) -> Step:
        self.colours = random.Random(task.seed).choices(list(ANSWERS), k=LIGHTS)
        return Step([{"role": "system", "content": "Answer STOP, SLOW or GO."}, self.light()])

    def light(self) -> Message:
        return {"role": "user", "content": f"The light is {self.colours[0]}."}

    async def step(self, reply: Message) -> Step:
        answer = reply["content"].strip()
        if answer not in ANSWERS.values():
            return Step(done=True, valid=False, note="no answer")
        right = answer == ANSWERS[self.colours.pop(0)]
        messages = [self.light()] if self.colours else []
        return Step(messages, right / LIGHTS, not messages, metrics={"right": right}, note="" if right else "wrong")

    async def close(self) -> None: ...


def task(split: Split, index: int) -> Task:
    seed = derived_seed("traffic lights", split, index)
    return Task(id=f"{split}-{seed}", split=split, seed=seed)


def guess(environment: TrafficLights, rng: random.Random) -> str:
    return rng.choice(list(ANSWERS.values()))


def demonstrations(seed: int, count: int) -> list[Demonstration]:
    tasks = [task("train", derived_seed("shown", seed, i)) for i in range(count)]
    return [Demonstration(e.messages, replies_only=False) for e in play_baseline(SPEC, "guess", tasks, seed)]


SPEC = EnvironmentSpec(
    name="traffic-lights",
    task=task,
    local=TrafficLights,
    metrics=(Metric("right", "right answers", ".1%", headline=True, per="step"),),
    outcome=lambda episode: "safe" if episode.reward > 0.99 else "crash",
    reward_range=(0, 1),
    baselines={"guess": guess},
    demonstrations=demonstrations,
    defaults=DEFAULTS,
)
