"""Many episodes at once: the engine samples while environments work, and nobody waits for the slowest.

    schedule ──► worker: one environment, one episode after the other ──await──► sampler ──► engine.step()
                 worker: …                                            ◄─reply──            for all requests at hand

All workers run in one event loop, and the engine takes its steps in it. What a policy samples in an episode depends
only on its prompts and seeds, so that the result is the same for any number of workers (on a GPU up to rounding).
"""

import asyncio
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.config import RolloutConfig
from tasks.environments.interface import Environment, EnvironmentSpec, Task
from tasks.policy.chat import Chat
from tasks.rollout.engine import Completion, Engine
from tasks.rollout.episode import EnvironmentFailure, Player, SampledEpisode

TRIES = 2  # of an episode whose environment fails
CLOSE_S = 10.0  # for an environment to close


@dataclass(frozen=True)
class Job:
    """One episode to play."""

    task: Task
    number: int  # names it to the schedule
    reply_seed: Callable[[int], int]  # of a turn


class Schedule(Protocol):
    """Which episodes are played."""

    jobs: Iterator[Job | None]  # next: an episode to begin now, or None where what runs has to end first

    def finished(self, job: Job, episode: SampledEpisode) -> bool:
        """Take note of an episode; True when that is enough, and those still running are given up."""
        ...


class Sampler:
    """What the engine samples, awaited. Greedy replies are equal for equal prompts: each is sampled once."""

    def __init__(self, engine: Engine, end_ids: Sequence[int], temperature: float):
        self.engine, self.end_ids, self.temperature = engine, end_ids, temperature
        self.added = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._greedy: dict[tuple[Sequence[str] | int, ...], asyncio.Future[Completion]] = {}

    async def sample(self, prompt: Sequence[int], seed: int, max_tokens: int, stop: Sequence[str] = ()) -> Completion:
        """The reply to a prompt, which ends with one of `stop`, if not before."""
        if self.temperature > 0:
            return await self._ask(prompt, seed, max_tokens, stop)
        key = (tuple(stop), max_tokens, *prompt)
        if key not in self._greedy:
            self._greedy[key] = self._ask(prompt, 0, max_tokens, stop)
        return await self._greedy[key]

    def _ask(
        self, prompt: Sequence[int], seed: int, max_tokens: int, stop: Sequence[str]
    ) -> asyncio.Future[Completion]:
        answer = asyncio.get_running_loop().create_future()
        settings: dict[str, Any] = {
            "temperature": self.temperature,
            "max_tokens": max_tokens,
            "end_ids": self.end_ids,
            "seed": seed,
        }
        if stop:
            settings["stop"] = stop
        self._waiting[self.engine.add(prompt, **settings)] = answer
        self.added.set()
        return answer

    def step(self) -> None:
        """Let the engine sample a token for all, and hand out the replies that are whole."""
        for request, completion in self.engine.step():
            answer = self._waiting.pop(request)
            if not answer.done():
                answer.set_result(completion)

    def close(self) -> None:
        """Give up what nobody waits for."""
        self.engine.abort(self._waiting)


class EpisodeLoop:
    """Plays the episodes of a schedule with one policy, `config.concurrent_episodes` at once."""

    def __init__(
        self, engine: Engine, chat: Chat, spec: EnvironmentSpec, url: str, config: RolloutConfig, temperature: float
    ):
        self.engine, self.chat, self.spec, self.url, self.config = engine, chat, spec, url, config
        self.temperature = temperature

    def run(self, schedule: Schedule) -> None:
        """Play until the schedule has none left, or enough."""
        with rare_garbage_collection():
            asyncio.run(self._run(schedule))

    async def _run(self, schedule: Schedule) -> None:
        self.sampler = Sampler(self.engine, self.chat.end_ids, self.temperature)
        self.calls = asyncio.Semaphore(self.config.environment_concurrency)
        self.players: dict[int, Player] = {}
        self.schedule, self.enough = schedule, False
        self.failure: BaseException | None = None
        self.workers: set[asyncio.Task[None]] = set()
        self.idle: list[Environment] = []
        try:
            self._start()
            while self.workers and not self.enough and self.failure is None:
                if self.engine.busy:
                    self.sampler.step()
                    # Once for those who got a reply, and once more for the workers that they started.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                else:
                    self.sampler.added.clear()
                    await self.sampler.added.wait()
        finally:
            for worker in self.workers:
                worker.cancel()
            await asyncio.gather(*self.workers, return_exceptions=True)
            self.sampler.close()
            await asyncio.gather(*map(_close, self.idle))
        if self.failure:
            raise self.failure

    def _start(self) -> None:
        while len(self.workers) < self.config.concurrent_episodes and (job := next(self.schedule.jobs, None)):
            self.workers.add(asyncio.create_task(self._work(job)))

    async def _work(self, job: Job | None) -> None:
        environment = self.idle.pop() if self.idle else None
        try:
            while job and not self.enough:
                environment, episode = await self._play(environment, job)
                self.enough = self.schedule.finished(job, episode) or self.enough
                job = None if self.enough else next(self.schedule.jobs, None)
                self._start()
            if environment:
                self.idle.append(environment)
                environment = None
        except Exception as error:
            self.failure = self.failure or error
        finally:
            self.workers.discard(asyncio.current_task())  # type: ignore[arg-type]
            self.sampler.added.set()
            if environment:
                await _close(environment)

    async def _play(self, environment: Environment | None, job: Job) -> tuple[Environment | None, SampledEpisode]:
        """The episode, and the environment for the next one. A failure of the environment is tried once again."""
        episode = SampledEpisode(job.task)
        for _ in range(TRIES):
            episode = SampledEpisode(job.task)
            try:
                environment = environment or self.spec.make(self.url)
                await self._player(job.task).play(episode, environment, job.reply_seed)
                return environment, episode
            except EnvironmentFailure as error:
                episode.finish_reason, episode.error, episode.reward = "error", str(error), 0.0
                episode.server_lost = isinstance(error.__cause__, ConnectionError)
                if environment:
                    await _close(environment)
                environment = None
        return None, episode

    def _player(self, task: Task) -> Player:
        """One for each environment of a mixture, with its tools and stop strings."""
        spec = self.spec.of(task)
        if id(spec) not in self.players:
            chat = self.chat if spec is self.spec else self.chat.with_tools(spec.tools)
            sample = functools.partial(self.sampler.sample, stop=spec.stop)
            self.players[id(spec)] = Player(chat, spec, self.config, sample, self.calls)
        return self.players[id(spec)]


@contextlib.contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect reference cycles seldom. The many small objects of episodes would have the collector walk again and again
    through all that torch and vLLM hold: a fifth of a rollout of short episodes."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _close(environment: Environment) -> None:
    """Close it; what goes wrong there is no loss."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await environment.close()
