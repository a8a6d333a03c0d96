"""Several environments at once, by weight: `sums:2,words:1`, or with names of one's own `easy=sums:2,hard=sums`.

A mixture is an EnvironmentSpec like any other. Each of its tasks is of one environment, and is a part of that name:
results are broken down by it. How an episode is played (tools, stop strings, partial formats) is its environment's.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from tasks.environments.interface import (
    Demonstration,
    Environment,
    EnvironmentSpec,
    Episode,
    Figure,
    Message,
    Metric,
    Split,
    Step,
    Task,
)
from tasks.seeds import BITS, derived_seed
from tasks.settings import merged, require

# Settings of which a mixture has the largest, since every episode must have room.
ROOM = (("rollout", "max_tokens"), ("rollout", "max_turns"), ("training", "seq_len"))


class Member(NamedTuple):
    """One environment of a mixture. Example: `Member("easy", "sums", 2.0)`."""

    label: str
    environment: str
    weight: float


def is_mixture(name: str) -> bool:
    """Whether the name is of a mixture, rather than of one environment."""
    return any(mark in name for mark in ",:=")


def read_members(name: str) -> list[Member]:
    """What `label=name:weight,…` says; a label is the name by default, a weight is 1. ValueError for anything else."""
    form = "name:weight,name:weight with weights above 0; with label=name:weight where a name comes twice"
    members = []
    for text in name.split(","):
        found = re.fullmatch(r"(?:([A-Za-z0-9_-]+)=)?([\w.]+)(?::([^:]*))?", text.strip())
        require(found is not None, "environment", name, form)
        label, environment, given = found.groups()  # type: ignore[union-attr]
        try:
            weight = float(given or 1)
        except ValueError:
            weight = math.nan
        require(math.isfinite(weight) and weight > 0, f"the weight of {label or environment}", given, "more than 0")
        members.append(Member(label or environment, environment, weight))
    require(len({member.label for member in members}) == len(members), "environment", name, form)
    return members


def make_mixture(
    name: str, options: Mapping[str, Any], open_member: Callable[[str, Mapping[str, Any]], EnvironmentSpec]
) -> EnvironmentSpec:
    """The mixture of this name; `options` has those of its environments by their labels."""
    members = read_members(name)
    labels = ", ".join(member.label for member in members)
    for label, given in options.items():
        known = label in {member.label for member in members} and isinstance(given, Mapping)
        require(known, "an option of the mixture", label, f"options by the name of the environment: {labels}")
    specs = {member.label: open_member(member.environment, options.get(member.label, {})) for member in members}
    return mixture(name, specs, {member.label: member.weight for member in members})


def mixture(name: str, specs: Mapping[str, EnvironmentSpec], weights: Mapping[str, float]) -> EnvironmentSpec:
    """The environments `specs`, by their labels, with these weights."""
    every = list(specs.values())
    labels, total, bounds = list(specs), sum(weights.values()), list(accumulate(weights.values()))
    tests = count_tests(specs, weights)
    ends = list(accumulate(tests.values()))

    def task(split: Split, index: int) -> Task:
        if split == "test" and tests:
            place = index % ends[-1]
            label = labels[bisect_right(ends, place)]
            place -= ends[-1] - sum(tests[one] for one in labels[labels.index(label) :])
            index = place if specs[label].test_tasks else derived_seed("mixture", label, place)
        else:
            drawn = derived_seed("mixture", split, index) / 2**BITS * total
            label = labels[min(bisect_right(bounds, drawn), len(labels) - 1)]
        own = specs[label].task(split, index)
        return Task(f"{label}/{own.id}", split, own.seed, {"environment": label, "id": own.id, "data": dict(own.data)})

    def member(given: Task) -> EnvironmentSpec:
        return specs[given.data["environment"]]

    def parts(given: Task) -> Sequence[str]:
        label = given.data["environment"]
        return [label, *(f"{label}/{part}" for part in specs[label].parts(own_task(given)))]

    def outcome(episode: Episode) -> str:
        return f"{episode.task.data['environment']}: {member(episode.task).outcome(own_episode(episode))}"

    def details(episodes: Sequence[Episode]) -> Any:
        found = {}
        for label, spec in specs.items():
            own = [own_episode(episode) for episode in episodes if episode.task.data["environment"] == label]
            found[label] = spec.details(own) if spec.details else None
        return found

    def demonstrations(seed: int, count: int) -> list[Demonstration]:
        shares = {label: math.ceil(count * weight / total) for label, weight in weights.items()}
        return [one for label, spec in specs.items() for one in spec.demonstrations(seed, shares[label])]  # type: ignore[misc]

    async def check() -> None:
        for spec in every:
            if spec.check:
                await spec.check()

    metrics: dict[str, Metric] = {}  # where two have one of the same key, the first one's
    for metric in (metric for spec in every for metric in spec.metrics):
        metrics.setdefault(metric.key, metric)
    ranges = {spec.reward_range for spec in every}
    return EnvironmentSpec(
        name=name,
        task=task,
        local=lambda: Mixture(specs),
        metrics=tuple(metrics.values()),
        outcome=outcome,
        parts=parts,
        member=member,
        reward_range=ranges.pop() if len(ranges) == 1 else None,
        test_tasks=sum(tests.values()) or None,
        score=lambda episode: member(episode.task).score(own_episode(episode)),
        baselines=baselines(specs),
        details=details if any(spec.details for spec in every) else None,
        figures=tuple(_figure(label, figure) for label, spec in specs.items() for figure in spec.figures),
        demonstrations=demonstrations if all(spec.demonstrations for spec in every) else None,
        defaults=defaults(specs, weights),
        comparison_tasks=max(spec.comparison_tasks for spec in every),
        check=check,
    )


class Mixture:
    """An episode of the environment that its task is of; each is opened once."""

    def __init__(self, specs: Mapping[str, EnvironmentSpec]):
        self.specs = specs
        self.opened: dict[str, Environment] = {}
        self.label = ""

    @property
    def current(self) -> Environment:
        """The environment of the present episode."""
        return self.opened[self.label]

    async def reset(self, task: Task) -> Step:
        """Begin an episode of the task's environment."""
        self.label = task.data["environment"]
        if self.label not in self.opened:
            self.opened[self.label] = self.specs[self.label].make()
        return await self.current.reset(own_task(task))

    async def step(self, reply: Message) -> Step:
        """What that environment answers."""
        return await self.current.step(reply)

    async def close(self) -> None:
        """Close all that were opened."""
        opened, self.opened = self.opened, {}
        for environment in opened.values():
            await environment.close()


def own_task(task: Task) -> Task:
    """The task as its environment knows it."""
    return Task(task.data["id"], task.split, task.seed, task.data["data"])


def own_episode(episode: Episode) -> Episode:
    """The episode as its environment knows it."""
    return replace(episode, task=own_task(episode.task))


def count_tests(specs: Mapping[str, EnvironmentSpec], weights: Mapping[str, float]) -> dict[str, int]:
    """Test tasks of each environment, in proportion to its weight as far as it has so many; empty where none has an
    end."""
    known = {label: spec.test_tasks for label, spec in specs.items() if spec.test_tasks}
    if not known:
        return {}
    scale = max(count / weights[label] for label, count in known.items())
    return {label: min(known.get(label, math.inf), math.ceil(scale * weights[label])) for label in specs}  # type: ignore[misc]


def baselines(specs: Mapping[str, EnvironmentSpec]) -> dict[str, Any]:
    """The first baselines of all environments as one, which plays each task by its environment's own; then the second
    ones, as far as all have them."""

    def together(names: Mapping[str, str]) -> Any:
        def act(environment: Mixture, rng: Any) -> str:
            label = environment.label
            return specs[label].baselines[names[label]](environment.current, rng)

        return act

    rows = zip(*(spec.baselines for spec in specs.values()), strict=False)
    return {"_and_".join(dict.fromkeys(row)): together(dict(zip(specs, row, strict=True))) for row in rows}


def defaults(specs: Mapping[str, EnvironmentSpec], weights: Mapping[str, float]) -> dict[str, Any]:
    """Those of the environment with the largest weight, the first of several; of ROOM the largest of all."""
    from tasks.config import GrpoConfig

    given = {label: merged(GrpoConfig().whole(), spec.defaults) for label, spec in specs.items()}
    room: dict[str, Any] = {}
    for section, name in ROOM:
        room = merged(room, {section: {name: max(values[section][name] for values in given.values())}})
    heaviest = max(specs, key=lambda label: weights[label])
    return merged(specs[heaviest].defaults, room)


def _figure(label: str, figure: Figure) -> Figure:
    def draw(details: Any, title: str, theme: Any) -> Any:
        return figure.draw(details[label], f"{label}, {title}", theme)

    return Figure(f"{label}_{figure.name}", f"{label}: {figure.caption}", draw)
