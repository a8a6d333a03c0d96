"""A rollout worker: plays groups of one iteration with one policy version, and makes rows of their episodes."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import EnvironmentSpec, Task
from tasks.environments.scripted import annotated
from tasks.policy.chat import open_chat
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.records import Sample, to_table
from tasks.rollout.curriculum import Curriculum
from tasks.rollout.engine import open_engine
from tasks.rollout.episode import SampledEpisode, Segment
from tasks.rollout.groups import GroupSchedule
from tasks.rollout.loop import EpisodeLoop, Job
from tasks.seeds import derived_seed


@dataclass
class RolloutWorker:
    """The same arguments give the same episodes. The engine opens with the first group that is played here."""

    policy: Path
    config: RolloutConfig
    environment: str
    url: str
    run_seed: int
    iteration: int
    progress: ProgressCallback = no_progress  # told of the groups so far that have reward variance
    setup_s: float = 0.0  # seconds until the engine was open
    play_s: float = 0.0  # seconds that episodes took since

    @cached_property
    def curriculum(self) -> Curriculum:
        """What draws the tasks."""
        return Curriculum.read(self.policy) if self.config.curriculum else Curriculum()

    def play(self, numbers: Sequence[int], known: pa.Table | None = None) -> tuple[pa.Table, int]:
        """Play the groups `numbers` until `config.groups` of the first ones have reward variance.

        Returns the rows of these first ones, in order, and how many groups they are. Groups in `known`, played
        elsewhere, are taken as they are. Raises RuntimeError where too many episodes fail in the environment.
        """
        spec = get_environment(self.environment, self.config.environment_options, thinking=self.config.thinking)
        size, rows_of = self.config.group_size, rows_by_group(known)

        @lru_cache(maxsize=1)  # one for all members of a group: some take long to make
        def task(number: int) -> Task:
            return self.curriculum.task(spec, self.run_seed, self.iteration, number)

        def job(number: int, member: int) -> Job:
            key = number * size + member
            return Job(task(number), key, lambda turn: derived_seed("reply", self.run_seed, self.iteration, key, turn))

        rewards = known["reward"].to_pylist() if known else []
        schedule = GroupSchedule(
            numbers,
            self.config,
            job,
            lambda episode: training_reward(episode, self.config),
            {number: [rewards[row] for row in of_group] for number, of_group in rows_of.items()},
            self.progress,
        )
        if not schedule.enough:
            began = time.perf_counter()
            seed = derived_seed("engine", self.run_seed, self.iteration, numbers[0], bits=31)
            engine = open_engine(self.policy, self.config, seed)
            chat = open_chat(self.policy, self.config.thinking, spec.tools, self.config.date)
            loop = EpisodeLoop(engine, chat, spec, self.url, self.config, self.config.temperature)
            opened = time.perf_counter()
            loop.run(schedule)
            self.setup_s, self.play_s = opened - began, time.perf_counter() - opened
        version = read_manifest(self.policy).version
        numbers = numbers[: schedule.checked]
        new = [
            row
            for number in numbers
            if number not in rows_of
            for member, episode in sorted(schedule.episodes[number].items())
            for row in rows(episode, spec, self.config, f"{self.iteration:05d}-{number:05d}", member, version)
        ]
        table = to_table(new)
        if known is not None:
            table = pa.concat_tables([known, table]).combine_chunks()
            rows_of = rows_by_group(table)
            table = table.take([row for number in numbers for row in rows_of[number]])
        return table, schedule.checked


def training_reward(episode: SampledEpisode, config: RolloutConfig) -> float | None:
    """What training sees: the environment's reward, unless the episode is invalid or truncated and the settings say
    otherwise; None where it teaches nothing."""
    if episode.finish_reason == "error" or (episode.finish_reason == "truncated" and config.truncated == "drop"):
        return None
    if episode.finish_reason == "finished":
        return episode.reward
    reward = episode.reward if config.invalid_reward is None else config.invalid_reward
    return reward + (config.partial_format_bonus if episode.partial_format else 0.0)


def rows(
    episode: SampledEpisode, spec: EnvironmentSpec, config: RolloutConfig, group: str, member: int, version: int
) -> list[Sample]:
    """The rows of one episode, one a segment: how it went and ended is the same in all."""
    reward, failed = training_reward(episode, config), episode.finish_reason == "error"
    messages, metrics = annotated(episode), _metrics(episode, spec)
    return [
        Sample(
            trajectory_id=f"{group}-{member}",
            sample=number,
            group_id=group,
            task_id=episode.task.id,
            seed=episode.task.seed,
            policy_version=version,
            token_ids=segment.token_ids,
            loss_mask=[False] * len(segment.token_ids) if reward is None else segment.loss_mask,
            logprobs=[0.0] * len(segment.token_ids) if reward is None else segment.logprobs,
            reward=reward,
            raw_reward=None if failed else episode.reward,
            turns=episode.turns,
            invalid=episode.finish_reason == "invalid",
            finish_reason=episode.finish_reason,
            outcome="error" if failed else spec.outcome(episode),
            error=episode.error,
            metrics=metrics,
            messages=messages[: segment.messages],
            parts=list(spec.parts(episode.task)),
        )
        for number, segment in enumerate(episode.segments or [Segment(len(messages))])
    ]


def _metrics(episode: SampledEpisode, spec: EnvironmentSpec) -> list[tuple[str, float]]:
    """The means of the metrics over the steps that have them, or their totals."""
    found = defaultdict(list)
    totals, timings = ({m.key for m in spec.metrics if kept(m)} for kept in (attrgetter("total"), attrgetter("timing")))
    for step in episode.steps:
        for name, value in step.metrics.items():
            if name not in timings:
                found[name].append(float(value))
    if spec.of(episode.task).partial_format and episode.finish_reason in ("invalid", "truncated"):
        found["partial_format"].append(float(episode.partial_format))
    return [(name, sum(values) / (1 if name in totals else len(values))) for name, values in found.items()]


def rows_by_group(table: pa.Table | None) -> dict[int, list[int]]:
    """The rows of each group by its number."""
    found: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(table["group_id"].to_pylist() if table else []):
        found[int(group.rsplit("-", 1)[1])].append(row)
    return found
