"""Episodes of scripted policies: the baselines of an environment, and what a cold start imitates."""

import asyncio
import random
from collections.abc import Sequence

from tasks.environments.interface import Baseline, Environment, EnvironmentSpec, Episode, Message, Step, Task
from tasks.seeds import derived_seed


def play_baseline(spec: EnvironmentSpec, name: str, tasks: Sequence[Task], seed: int = 0) -> list[Episode]:
    """The episodes of one of `spec.baselines`, one a task, in this process. `seed` fixes what it draws."""

    async def play_all() -> list[Episode]:
        environment, act = spec.make(), spec.baselines[name]
        try:
            draws = [random.Random(derived_seed("baseline", name, seed, task.id)) for task in tasks]
            return [await _play(environment, act, task, rng) for task, rng in zip(tasks, draws, strict=True)]
        finally:
            await environment.close()

    return asyncio.run(play_all())


async def _play(environment: Environment, act: Baseline, task: Task, rng: random.Random) -> Episode:
    episode = Episode(task)
    step = add_step(episode, await environment.reset(task))
    while not step.done:
        reply = {"role": "assistant", "content": act(environment, rng)}
        episode.messages.append(reply)
        episode.turns += 1
        step = add_step(episode, await environment.step(reply))
    episode.finish_reason = "finished" if step.valid else "invalid"
    return episode


def add_step(episode: Episode, step: Step) -> Step:
    """Put what the environment answered behind the conversation."""
    episode.steps.append(step)
    episode.messages.extend(step.messages)
    episode.reward += step.reward
    return step


def annotated(episode: Episode) -> list[Message]:
    """The conversation; each reply has beside it the reward, the note and the validity of the step that answered it."""
    messages = list(map(dict, episode.messages))
    place = len(episode.steps[0].messages) if episode.steps else 0  # of the first reply, behind the initial messages
    for step in episode.steps[1:]:
        messages[place] |= {"reward": step.reward, "note": step.note, "valid": step.valid}
        if step.tool_calls:
            messages[place]["tool_calls"] = list(step.tool_calls)
        place += 1 + len(step.messages)
    return messages
