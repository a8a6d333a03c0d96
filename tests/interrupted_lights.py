"""Traffic lights whose kinds are their first colours, and which stop the process's work as Ctrl-C does, once told to.

`PLACE` in the process's environment names a file: when it is there, the hundredth step after that is interrupted.
"""

import itertools
import os
import random
from dataclasses import replace
from pathlib import Path

import traffic_lights
from tasks.environments.interface import Message, Step, Task

PLACE, STEPS = "INTERRUPT_BEHIND", 100
counted = itertools.count(1)


class Interrupted(traffic_lights.TrafficLights):
    """One episode; one that begins with red has no reward, so that its kind has no variance."""

    async def reset(self, task: Task) -> Step:
        self.worth = first_colour(task) != ("red",)
        return await super().reset(task)

    async def step(self, reply: Message) -> Step:
        behind = os.environ.get(PLACE)
        if behind and Path(behind).exists() and next(counted) == STEPS:
            raise KeyboardInterrupt
        step = await super().step(reply)
        return replace(step, reward=step.reward * self.worth)


def first_colour(task: Task) -> tuple[str, ...]:
    return (random.Random(task.seed).choices(list(traffic_lights.ANSWERS), k=traffic_lights.LIGHTS)[0],)


SPEC = replace(traffic_lights.SPEC, name="interrupted-lights", local=Interrupted, parts=first_colour)
