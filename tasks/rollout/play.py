"""Plays tasks with one policy: the entry for evaluations and comparisons."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.config import RolloutConfig
from tasks.environments.interface import EnvironmentSpec, Episode, Task


def play_tasks(
    policy: Path,
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    url: str = "",
    temperature: float,
    reply_seed: Callable[[int, int], int],
    ended: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """The episode of each task, in the order of `tasks`, played by `policy`; greedily at a temperature of 0.

    `reply_seed(task number, turn)` gives the seed with which a reply is sampled; `ended` is told of each episode as it
    ends. An episode that failed twice has the finish_reason "error" and counts nowhere.

    Raises RuntimeError, one sentence with the first reason, when more than `config.max_error_share` of them failed.
    """
    raise NotImplementedError
