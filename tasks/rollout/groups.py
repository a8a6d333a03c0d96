"""Which groups a batch holds: the first ones, in the order of their numbers, until enough of them can teach.

    number            0  1  2  3  4  5  6  7  …
    reward variance   x  -  x  -  -  x              groups = 3: the batch is 0 to 5

A group of equal rewards teaches nothing, and further ones replace it: DAPO's dynamic sampling (arXiv:2503.14476). The
batch depends on the rewards alone, not on which episode ends first or how many are played at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tasks.advantage.advantages import differ
from tasks.config import RolloutConfig
from tasks.infrastructure import InfrastructureError
from tasks.progress import ProgressCallback, no_progress
from tasks.rollout.episode import SampledEpisode
from tasks.rollout.loop import Job

SPARE = 0.5  # standard deviations of the groups still needed that are begun beyond their expected number


class ErrorShare:
    """Counts episodes that failed in the environment, and ends the stage when they are too many."""

    def __init__(self, config: RolloutConfig, least: int):
        self.allowed, self.least = config.max_error_share, least  # episodes that there will be at least
        self.episodes = self.errors = self.lost = 0
        self.first = ""

    def count(self, episode: SampledEpisode) -> None:
        """Raise RuntimeError, one sentence with the first reason, where more than the allowed share failed; a kind that
        a cluster tries again where each of them lost its server."""
        self.episodes += 1
        if episode.finish_reason == "error":
            self.errors += 1
            self.lost += episode.server_lost
            self.first = self.first or episode.error
        if self.errors > self.allowed * max(self.episodes, self.least):
            kind = InfrastructureError if self.lost == self.errors else RuntimeError
            raise kind(
                f"{self.errors} of {self.episodes} episodes failed in the environment; allowed: a share of "
                f"rollout.max_error_share = {self.allowed}. The first: {self.first}"
            )


class GroupSchedule:
    """A `Schedule` of the groups `numbers`, until `config.groups` of the first ones have reward variance.

    `job(number, member)` makes one episode of a group, `reward(episode)` is what training sees of it. Groups in
    `known`, played elsewhere, have these rewards already.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        config: RolloutConfig,
        job: Callable[[int, int], Job],
        reward: Callable[[SampledEpisode], float | None],
        known: Mapping[int, Sequence[float | None]] | None = None,
        progress: ProgressCallback = no_progress,
    ):
        self.numbers, self.config, self.job, self.reward, self.progress = numbers, config, job, reward, progress
        self.size = config.group_size
        self.known = known or {}
        self.episodes: dict[int, dict[int, SampledEpisode]] = {}  # by number and member, of groups played here
        self.varies: dict[int, bool] = {}  # whether the rewards of a finished group differ
        self.begun = self.checked = self.kept = 0  # of `numbers`, in order; `kept` of those checked
        self.jobs = self._jobs()
        self.errors = ErrorShare(config, config.groups * self.size)
        self._rewards = 0.0
        for number, rewards in self.known.items():
            self._judge(number, rewards)
        self._advance()

    @property
    def enough(self) -> bool:
        """Whether the batch is complete: `numbers[:checked]`."""
        return self.kept >= self.config.groups or self.checked >= len(self.numbers)

    def finished(self, job: Job, episode: SampledEpisode) -> bool:
        """Take note of an episode; True when the batch is complete."""
        self.errors.count(episode)
        number, member = divmod(job.number, self.size)
        members = self.episodes.setdefault(number, {})
        members[member] = episode
        self._rewards += episode.reward
        if len(members) == self.size:
            self._judge(number, map(self.reward, members.values()))
            self._advance()
            note = f"reward {self._rewards / self.errors.episodes:+.3f}"
            self.progress(self.kept, self.config.groups, note)
        return self.enough

    def _jobs(self) -> Iterator[Job | None]:
        """The members of a group after those of another; a new group only while those begun will not do."""
        for number in self.numbers:
            while number not in self.known and (self.enough or not self._more_are_needed()):
                yield None
            self.begun += 1
            if number not in self.known:
                yield from (self.job(number, member) for member in range(self.size))

    def _judge(self, number: int, rewards: Iterable[float | None]) -> None:
        on_record = [float(np.float32(reward)) for reward in rewards if reward is not None]
        known = [reward for reward in on_record if math.isfinite(reward)]
        self.varies[number] = bool(known) and bool(differ(min(known), max(known)))

    def _more_are_needed(self) -> bool:
        """Whether the groups that are being played will probably not do, at the share of variance found so far."""
        # By the first groups alone: among all that are finished, those with short episodes are too many.
        share = (self.kept + 1) / (self.checked + 1)
        needed = self.config.groups - self.kept
        return (self.begun - self.checked) * share < needed + SPARE * math.sqrt(needed * (1 - share))

    def _advance(self) -> None:
        while not self.enough and (number := self.numbers[self.checked]) in self.varies:
            self.kept += self.varies[number]
            self.checked += 1
