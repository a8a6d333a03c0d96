"""Maths as the rest of the project sees it."""

import random
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tasks.environments.interface import Environment, EnvironmentSpec, Episode, Metric, Split, Task
from tasks.environments.maths.datasets import ALLOWED, REFUSED
from tasks.environments.maths.items import Items
from tasks.environments.tool_use import TOOL_METRICS, ToolOptions, tool_fields
from tasks.seeds import derived_seed
from tasks.settings import require

EXAMPLES = 8  # at most
METRICS = (Metric("success", "right answers", ".1%", headline=True),)
DEFAULT_DATASETS = ("chain_sum", "basic_arithmetic", "products", "gcd", "simple_equations", "gsm_symbolic")
DEFAULTS: Mapping[str, Any] = {
    "rollout": {"max_tokens": 256, "max_turns": 8, "group_size": 8, "groups": 16, "max_groups": 64},
    "training": {"seq_len": 1024, "rows": 4, "score_rows": 8, "learning_rate": 1e-5},
    "evaluation": {"tasks": 256},
}


def outcome(episode: Episode) -> str:
    """solved or wrong; invalid, truncated or error where nothing was compared."""
    if episode.finish_reason != "finished":
        return episode.finish_reason
    return "solved" if episode.reward == 1 else "wrong"


def known_answer(environment: Any, rng: random.Random) -> str:
    """The data set's own answer."""
    return f"<answer>{environment.item.answer}</answer>"


def no_answer(environment: Any, rng: random.Random) -> str:
    """Nothing between the marks."""
    return "<answer></answer>"


def maths(
    *,
    datasets: Any = DEFAULT_DATASETS,
    difficulty: int | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    examples: int = 0,
    tools: ToolOptions = ToolOptions(),
) -> EnvironmentSpec:
    """Maths. `datasets` are names of reasoning-gym, or a mapping of names to weights.

    `difficulty` is a level of their curricula, from 0; `parameters` are settings of a data set, by its name; another
    `seed` gives other tasks. The prompt has this many solved `examples` of the task's data set.
    """
    weights = _weights(datasets)
    is_level = difficulty is None or (type(difficulty) is int and difficulty >= 0)
    require(is_level, "difficulty", difficulty, "a level from 0, or none")
    require(type(seed) is int and seed >= 0, "seed", seed, "a whole number, 0 or more")
    require(type(examples) is int and 0 <= examples <= EXAMPLES, "examples", examples, f"0 to {EXAMPLES}")
    for name in parameters or {}:
        require(name in weights, "parameters", name, f"the chosen data sets, {', '.join(weights)}")
    if find_spec("reasoning_gym") is None or find_spec("math_verify") is None:
        raise ValueError('maths needs the packages reasoning-gym and math-verify: pip install "flyte-grpo[maths]".')
    items = Items(difficulty, parameters or {})
    if difficulty is not None or parameters:
        for name in weights:
            items.settings(name)

    def task(split: Split, index: int) -> Task:
        drawn = derived_seed("maths", seed, split, index)
        (name,) = random.Random(drawn).choices(list(weights), list(weights.values()))
        item = items.find(name, split, drawn)
        return Task(id=item.id, split=split, seed=item.seed, data={"dataset": name})

    def local() -> Environment:
        from tasks.environments.maths.environment import Maths

        return Maths(items, tools, examples)

    return EnvironmentSpec(
        name="maths",
        task=task,
        local=local,
        partial_format=lambda reply: "<answer>" in reply,
        metrics=(*METRICS, *TOOL_METRICS) if tools.tool else METRICS,
        outcome=outcome,
        score=lambda episode: {"success": float(episode.reward == 1)},  # also of what a limit ended
        parts=lambda task: [task.data["dataset"]],
        reward_range=(0, 1),
        baselines={"known_answer": known_answer, "no_answer": no_answer},
        defaults=DEFAULTS,
        **tool_fields(tools),
    )


def _weights(datasets: Any) -> dict[str, float]:
    """The weights of data sets by their names."""
    names = [datasets] if isinstance(datasets, str) else datasets
    require(isinstance(names, list | tuple | Mapping) and bool(names), "datasets", datasets, "names of data sets")
    found = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, 1.0)
    for name, weight in found.items():
        if name in REFUSED:
            raise ValueError(f'datasets has "{name}"; allowed: another one, for {REFUSED[name]}.')
        require(name in ALLOWED, "datasets", name, ", ".join(sorted(ALLOWED)))
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        require(is_number and 0 < weight < float("inf"), f"the weight of {name}", weight, "a number above 0")
    return found


SPEC = maths
