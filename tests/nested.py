"""A small workflow of the kinds of node that a graph may have: a map, a join, and a loop that unrolls in segments."""

from flytekit import dynamic, map_task, task, workflow
from flytekit.types.directory import FlyteDirectory

from tasks.resources import pod


@task(**pod("cpu"))
def begin(count: int) -> FlyteDirectory:
    return FlyteDirectory("nowhere")


@task(**pod("rollout"))
def play(part: int) -> FlyteDirectory:
    return FlyteDirectory("nowhere")


@task(**pod("training"))
def join(parts: list[FlyteDirectory], before: list[FlyteDirectory]) -> FlyteDirectory:
    return FlyteDirectory("nowhere")


@dynamic(**pod("graph"))
def loop(count: int, made: list[FlyteDirectory]) -> list[FlyteDirectory]:
    """Two steps at most; more are a chain of such loops. How much was `made` before decides how many parts play."""
    if count > 2:
        for size in (2, count - 2):
            made = loop(count=size, made=made)
        return made
    for _ in range(count):
        parts = map_task(play)(part=list(range(1 + len(made))))
        made = [*made, join(parts=parts, before=made)]
    return made


@workflow
def whole(count: int) -> list[FlyteDirectory]:
    return loop(count=count, made=[begin(count=count)])
