"""Coding as the rest of the project sees it."""

import random
from collections.abc import Mapping
from typing import Any

from tasks.environments.coding.answer import is_partial
from tasks.environments.coding.source import ProblemSource
from tasks.environments.interface import Environment, EnvironmentSpec, Episode, Metric, Task
from tasks.environments.tool_use import TOOL_METRICS, ToolOptions, tool_fields
from tasks.settings import require

METRICS = (
    Metric("success", "solved", ".1%", headline=True),
    Metric("tests_passed", "tests passed", ".1%", headline=True),
    Metric("tests_timed_out", "tests timed out", ".1%"),
)
REWARDS = ("tests", "all")
MOST_S = 10.0  # of a call
DEFAULTS: Mapping[str, Any] = {
    "rollout": {"max_tokens": 384, "max_turns": 8, "group_size": 8, "groups": 16, "max_groups": 64},
    "training": {"seq_len": 1024, "rows": 4, "score_rows": 8, "learning_rate": 1e-5},
    "evaluation": {"tasks": 256},
}


def outcome(episode: Episode) -> str:
    """solved, partly, timeout or wrong; invalid, truncated or error where nothing was graded."""
    if episode.finish_reason != "finished":
        return episode.finish_reason
    seen = episode.steps[-1].metrics
    if seen["success"]:
        return "solved"
    return "timeout" if seen["tests_timed_out"] else "partly" if seen["tests_passed"] else "wrong"


def score(episode: Episode) -> dict[str, float]:
    """The grading's numbers; 0 where an episode came to none."""
    seen = episode.steps[-1].metrics if episode.steps else {}
    return {metric.key: seen.get(metric.key, 0.0) for metric in METRICS}


def parts(task: Task) -> list[str]:
    """The family, and the difficulty of a generated problem."""
    level = task.data.get("level")
    return [task.data["family"], *([f"difficulty {level}"] if level else [])]


def reference_solution(environment: Any, rng: random.Random) -> str:
    """What the tests were made from; nothing where a user's problem has no reference."""
    return f"```python\n{environment.problem.reference}\n```"


def empty_answer(environment: Any, rng: random.Random) -> str:
    """A block with nothing in it."""
    return "```python\npass\n```"


def coding(
    *,
    problems: str = "generated",
    families: Any = None,
    difficulty: Any = None,
    path: str = "",
    reward: str = "tests",
    tools: ToolOptions = ToolOptions(tool=False),
) -> EnvironmentSpec:
    """Coding. `problems` is generated, humaneval (for evaluation only) or file, a JSONL file at `path`.

    `families` and `difficulty` choose among the generated ones; `reward` is the share of tests passed ("tests"), or 1
    where all pass and 0 else ("all"). With a tool code can be tried before the answer.
    """
    require(reward in REWARDS, "reward", reward, ", ".join(REWARDS))
    fenced = "tool_call, line: a fenced block is the answer"
    require(not tools.tool or tools.format in ("tool_call", "line"), "format", tools.format, fenced)
    # A grading may take three times as long and some more, and the rollout waits a minute for an answer.
    require(not tools.timeout_s > MOST_S, "timeout_s", tools.timeout_s, f"up to {MOST_S:g} s")
    source = ProblemSource(problems, families, difficulty, path)

    def local() -> Environment:
        from tasks.environments.coding.environment import Coding

        return Coding(source, tools, reward == "all")

    return EnvironmentSpec(
        name="coding",
        task=source.task,
        local=local,
        partial_format=is_partial,
        metrics=(*METRICS, *TOOL_METRICS) if tools.tool else METRICS,
        outcome=outcome,
        parts=parts,
        score=score,
        reward_range=(0, 1),
        test_tasks=source.test_tasks,
        baselines={"reference_solution": reference_solution, "empty_answer": empty_answer},
        defaults=DEFAULTS,
        **tool_fields(tools),
    )


SPEC = coding
