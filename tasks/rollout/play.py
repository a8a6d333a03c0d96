"""Plays tasks with one policy: the entry for evaluations and comparisons."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tasks.config import RolloutConfig
from tasks.environments.interface import EnvironmentSpec, Episode, Task
from tasks.policy.chat import open_chat
from tasks.rollout.engine import open_engine
from tasks.rollout.episode import SampledEpisode
from tasks.rollout.groups import ErrorShare
from tasks.rollout.loop import EpisodeLoop, Job


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
    schedule = TaskSchedule(tasks, config, reply_seed, ended)
    chat = open_chat(policy, config.thinking, spec.tools, config.date)
    EpisodeLoop(open_engine(policy, config), chat, spec, url, config, temperature).run(schedule)
    return [schedule.episodes[number] for number in range(len(tasks))]


class TaskSchedule:
    """A `Schedule` of all tasks, one episode each."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: RolloutConfig,
        reply_seed: Callable[[int, int], int],
        ended: Callable[[Episode], None],
    ):
        self.ended = ended
        self.jobs: Iterator[Job | None] = (
            Job(task, number, partial(reply_seed, number)) for number, task in enumerate(tasks)
        )
        self.episodes: dict[int, Episode] = {}
        self.errors = ErrorShare(config, len(tasks))

    def finished(self, job: Job, episode: SampledEpisode) -> bool:
        """Take note of an episode; all tasks are played in any case."""
        self.errors.count(episode)
        self.episodes[job.number] = episode
        self.ended(episode)
        return False
