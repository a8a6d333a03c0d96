"""The calculator as the rest of the project sees it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.environments.calculator.expressions import Arithmetic
from tasks.environments.calculator.players import Move, Players, answer_prefix
from tasks.environments.interface import (
    Demonstration,
    Environment,
    EnvironmentSpec,
    Episode,
    Message,
    Metric,
    Task,
)
from tasks.environments.tool_use import PYTHON, TOOL_METRICS, ToolOptions, tool_fields
from tasks.policy.tool_formats import FORMATS, ToolCall
from tasks.seeds import derived_seed
from tasks.settings import require

# With these `tiny` learns it on a CPU in a few minutes, see docs/tools.md.
DEFAULTS: Mapping[str, Any] = {
    "rollout": {
        "groups": 128,
        "max_groups": 256,
        "group_size": 8,
        "max_tokens": 20,
        "environment_concurrency": 512,  # a call takes a step of the engine, and few at once keep it waiting
    },
    "training": {"epochs": 3, "learning_rate": 1.5e-4, "warmup_iterations": 1, "seq_len": 256},
    "evaluation": {"tasks": 2048, "every": 16},
    "tiny": {
        "cold_start_demonstrations": 4096,
        "cold_start_batch": 16,  # of 32 no fewer steps would do, and each takes nearly twice as long
        "cold_start_learning_rate": 7e-4,  # with 2e-3 copying has not emerged after 1,440 steps, with this after 240
        "layers": 3,  # two copy numbers of repeated digits badly
        "drill_steps": 440,
        "max_drill_loss": 0.03,
        "cold_start_steps": 160,
    },
}
EXAMPLES = 2  # at most
COLD_START = (
    "tiny was taught to copy before: an expression into a call, a number into an answer. Then it imitated random play: "
    "half of the calls lose numbers, half of the answers ignore the output. Which calls and answers pay, it learned "
    "from rewards."
)


def calculator(
    *,
    numbers: int = 4,
    maximum: int = 999,
    operators: str = "+-",
    calls: int = 1,
    examples: int = 0,
    tools: ToolOptions = ToolOptions(format="line", stop=False, timeout_s=2.0, output=64),
) -> EnvironmentSpec:
    """2 to `numbers` numbers up to `maximum`; with `calls` = 2 an expression needs two calls. The prompt has this many
    worked `examples`."""
    arithmetic = Arithmetic(numbers=numbers, maximum=maximum, operators=operators, calls=calls)
    options, tool = replace(tools, calls=calls), tools.tool
    require(examples in range(EXAMPLES + 1), "examples", examples, f"0 to {EXAMPLES}")
    players = Players(
        arithmetic,
        tool,
        lambda code: FORMATS[options.format].render(ToolCall(PYTHON.name, {"code": code})),
        answer_prefix(options.format),
    )

    def local() -> Environment:
        from tasks.environments.calculator.environment import Calculator

        return Calculator(options, worked(players, examples))

    def demonstrations(seed: int, count: int) -> Sequence[Demonstration]:
        from tasks.environments.calculator.environment import system_text

        rng = random.Random(derived_seed("cold start", seed))
        first = {"role": "system", "content": system_text(options)}
        texts = [arithmetic.task("train", derived_seed("cold start", seed, i)).id for i in range(count)]

        def chosen(expression: str, outputs: Sequence[str]) -> Move:
            return players.guess(expression, outputs, rng)

        return [
            Demonstration(players.play([first, {"role": "user", "content": f"{text}=?"}], text, chosen))
            for text in texts
        ]

    def drills(seed: int, count: int) -> Sequence[Demonstration]:
        rng = random.Random(derived_seed("drills", seed))
        first = {"role": "system", "content": "Repeat."}
        return [players.drill(first, rng) for _ in range(count)]

    return EnvironmentSpec(
        name="calculator",
        task=arithmetic.task,
        local=local,
        metrics=(Metric("success", "success", ".1%", headline=True), *(TOOL_METRICS if tool else ())),
        outcome=outcome,
        parts=lambda task: (f"{count_numbers(task)} numbers",),
        reward_range=(0, 1),
        score=lambda episode: {"success": episode.reward},
        baselines={
            "exact": lambda played, rng: players.say(players.exact(played.expression, played.outputs)),
            "random": lambda played, rng: players.say(players.guess(played.expression, played.outputs, rng)),
        },
        demonstrations=demonstrations,
        drills=drills,
        cold_start=COLD_START,
        single_digits=True,
        defaults={**DEFAULTS, "rollout": {**DEFAULTS["rollout"], "max_turns": calls + 1 if tool else 1}},
        **tool_fields(options),
    )


def worked(players: Players, count: int) -> list[Message]:
    """So many worked examples, of expressions that are always the same."""
    messages: list[Message] = []
    rng = random.Random(derived_seed("examples"))
    for _ in range(count):
        expression = players.arithmetic.draw(rng)
        messages += players.play([{"role": "user", "content": f"{expression}=?"}], expression, players.exact)
    return messages


def count_numbers(task: Task) -> int:
    """How many numbers its expression has."""
    return sum(letter in "+-*" for letter in task.data["expression"]) + 1


def outcome(episode: Episode) -> str:
    """right or wrong, and whether the tool was used; how it ended where there was no answer."""
    if episode.finish_reason != "finished":
        return episode.finish_reason
    used = any(step.tool_calls for step in episode.steps)
    return f"{'right' if episode.reward > 0.5 else 'wrong'}{' after a call' if used else ''}"


SPEC = calculator
