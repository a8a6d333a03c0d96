"""A policy, and the environment's baselines, on test tasks that training never sees.

The policy plays greedily, the baselines play the very same tasks. All rewards are the environment's own, unshaped.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import EnvironmentSpec, Episode, Task
from tasks.environments.scripted import annotated, play_baseline
from tasks.evaluation.metrics import PASS_AT, ended, mean_of, measure
from tasks.evaluation.records import Evaluation, Example, Results
from tasks.json_files import read_object
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.rollout import processes
from tasks.rollout.play import play_tasks
from tasks.seeds import derived_seed, evaluation_indices

SAMPLED = 1024  # tasks at most that are also played at the rollout's temperature
PASS_TASKS = 256  # tasks at most for pass@k; each is sampled as often as the largest k
EXAMPLES = 8  # outcomes at most of which an episode is kept


@dataclass(frozen=True)
class TaskSet:
    """Which test tasks are played, and where. Example: `TaskSet("arithmetic", tasks=2048, seed=0)`."""

    environment: str
    tasks: int  # or fewer, where the environment has no more
    seed: int
    url: str = ""  # of an OpenEnv server; "" plays in this process

    def spec(self, rollout: RolloutConfig) -> EnvironmentSpec:
        """The environment as the rollout's settings ask for it."""
        return get_environment(self.environment, rollout.environment_options, thinking=rollout.thinking)

    def choose(self, spec: EnvironmentSpec) -> list[Task]:
        """The tasks."""
        return [spec.task("test", index) for index in evaluation_indices(self.seed, self.tasks, spec.test_tasks)]

    def play(
        self,
        policy: Path,
        rollout: RolloutConfig,
        tasks: Sequence[Task],
        temperature: float = 0.0,
        episode_ended: Callable[[Episode], None] = lambda episode: None,
    ) -> list[Episode]:
        """The policy's episodes on these tasks, in their order, by as many processes as there are."""
        number = min(processes.count(read_object(policy / "config.json"), rollout), len(tasks))
        shares = [range(first, len(tasks), number) for first in range(number)]
        given = [(policy, rollout, [tasks[n] for n in share], share, temperature) for share in shares]
        found = processes.together(lambda: self._play(*given[0], episode_ended), self._play, given[1:])
        for episode in itertools.chain.from_iterable(found[1:]):
            episode_ended(episode)
        return [found[n % number][n // number] for n in range(len(tasks))]

    def _play(
        self,
        policy: Path,
        rollout: RolloutConfig,
        tasks: Sequence[Task],
        numbers: Sequence[int],
        temperature: float,
        episode_ended: Callable[[Episode], None] = lambda episode: None,
    ) -> list[Episode]:
        """`numbers` are those of the tasks among all that are played."""
        return play_tasks(
            policy,
            self.spec(rollout),
            tasks,
            rollout,
            url=self.url,
            temperature=temperature,
            reply_seed=lambda number, turn: derived_seed("evaluation reply", self.seed, numbers[number], turn),
            ended=episode_ended,
        )


@lru_cache(maxsize=16)
def play_baselines(task_set: TaskSet, rollout: RolloutConfig) -> dict[str, Results]:
    """What each baseline gets on the same tasks; played once in a process."""
    spec = task_set.spec(rollout)
    tasks = task_set.choose(spec)
    return {name: measure(spec, play_baseline(spec, name, tasks, task_set.seed)) for name in spec.baselines}


def evaluate_policy(
    policy: Path, rollout: RolloutConfig, task_set: TaskSet, progress: ProgressCallback = no_progress
) -> Evaluation:
    """Play test tasks greedily, the first ones also at the rollout's temperature: once, and several times for pass@k
    where rewards are from 0 to 1.

    `progress` is called with each episode that ends. Raises RuntimeError when too many end in an error.
    """
    spec = task_set.spec(rollout)
    tasks = task_set.choose(spec)
    once = tasks[:SAMPLED]
    further = tasks[:PASS_TASKS] * (max(PASS_AT) - 1) if spec.reward_range == (0, 1) else []
    total = len(tasks) + len(once) + len(further)
    done, rewards = 0, 0.0

    def episode_ended(episode: Episode) -> None:
        nonlocal done, rewards
        done, rewards = done + 1, rewards + episode.reward
        progress(done, total, f"reward {rewards / done:+.3f}" if done <= len(tasks) else "")

    greedy = task_set.play(policy, rollout, tasks, 0.0, episode_ended)
    sampled = task_set.play(policy, rollout, once + further, rollout.temperature, episode_ended)
    return Evaluation(
        **vars(measure(spec, greedy, sampled)),
        policy_version=read_manifest(policy).version,
        environment=task_set.environment,
        environment_options=rollout.environment_options,
        tasks=len(tasks),
        seed=task_set.seed,
        sampled_reward=mean_of([episode.reward for episode in ended(sampled[: len(once)])]),
        baselines=play_baselines(task_set, rollout),  # type: ignore[arg-type]  # settings have a hash
        examples=examples(spec, greedy, sampled),
        details=spec.details(ended(greedy)) if spec.details else None,
    )


def examples(spec: EnvironmentSpec, greedy: Sequence[Episode], sampled: Sequence[Episode]) -> list[Example]:
    """Of each outcome the first episode, rather one with several replies, and rather a greedy one."""
    met: dict[str, list[tuple[Episode, bool]]] = defaultdict(list)
    for of in (greedy, sampled):
        for episode in of:
            outcome = "error" if episode.finish_reason == "error" else spec.outcome(episode)
            met[outcome].append((episode, of is sampled))
    found = []
    for outcome in sorted(met, key=lambda name: -len(met[name]))[:EXAMPLES]:
        episode, is_sampled = min(met[outcome], key=lambda candidate: candidate[0].turns < 2)
        messages = annotated(episode)
        found.append(Example(outcome, episode.reward, is_sampled, messages, episode.error))
    return found
