"""Two policies on the same tasks: which one gets more, by the difference of their rewards on each task.

Tasks differ far more in what can be got on them than two good policies do. Both policies play each task greedily, and
the variance between tasks cancels in the difference of their rewards.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tasks.config import RolloutConfig, require
from tasks.environments.interface import Episode
from tasks.evaluation.evaluate import TaskSet, play_baselines
from tasks.evaluation.metrics import ended, mean_of, measure
from tasks.evaluation.records import Results
from tasks.evaluation.sequential import ENOUGH, Evidence, reward_range
from tasks.folders import atomic_directory
from tasks.json_records import Record
from tasks.policy.checkpoint import read_manifest

FILE = "comparison.json"
ROUND = 1024  # tasks between two looks of a sequential comparison


@dataclass(frozen=True)
class Comparison(Record):
    """The paired difference of two policies' rewards, and what each got.

    Example: `Comparison(policy="5f0c…", other="b2a1…", tasks=10000, seed=7, difference=0.031, difference_ci95=0.012,
    better=912, worse=601, same=8487, results={"policy": Results(…), "other": Results(…)}, baselines={…})`.
    """

    policy: str  # digests
    other: str
    tasks: int  # that both played to their end
    seed: int  # which test tasks
    difference: float  # of the mean rewards, the policy's less the other's
    difference_ci95: float  # half the width of its two-sided 95 % interval
    better: int  # tasks on which the policy got more than the other
    worse: int
    same: int
    evidence: float | None = None  # of a sequential comparison, see sequential.py; None: of a fixed number of tasks
    results: dict[str, Results] = field(default_factory=dict)  # of "policy" and "other"
    baselines: dict[str, Results] = field(default_factory=dict)

    @property
    def surely_better(self) -> bool:
        """Whether the whole interval is above 0, or the evidence is enough: for two equal policies that happens in
        2.5 % of the comparisons, or in at most so many."""
        if self.evidence is not None:
            return self.evidence >= ENOUGH
        return self.difference - self.difference_ci95 > 0

    @property
    def in_words(self) -> str:
        """`+0.0311 ±0.0076 an episode on 10,000 tasks (better on 912, worse on 601, the same on 8,487)`"""
        found = "" if self.evidence is None else f", evidence {self.evidence:.3g} of {ENOUGH:g} needed"
        counts = f"better on {self.better:,}, worse on {self.worse:,}, the same on {self.same:,}"
        return (
            f"{self.difference:+.4f} ±{self.difference_ci95:.4f} an episode on {self.tasks:,} tasks ({counts}){found}"
        )


def paired(policy: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float | int]:
    """Mean difference of two policies' rewards by task id, with its 95 % half-width, and how many go either way.

    Only tasks that both have count. Raises RuntimeError for fewer than two.
    """
    gains = [reward - other[task] for task, reward in policy.items() if task in other]
    if len(gains) < 2:
        raise RuntimeError(f"both policies played {len(gains)} of the tasks to their end; 2 are needed to compare them")
    mean = mean_of(gains)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    counts = {"tasks": len(gains), "better": better, "worse": worse, "same": len(gains) - better - worse}
    return {"difference": mean.mean, "difference_ci95": mean.ci95, **counts}


def check_tasks(tasks: int, seed: int = 0) -> None:
    """Raise ValueError for a number of tasks, or a seed of an evaluation or a larger `fresh_seed`, that cannot be."""
    require(tasks == 0 or tasks >= 2, "tasks", tasks, "2 or more, or 0 for the environment's own number")
    require(0 <= seed < 2**61, "seed", seed, "0 to 2305843009213693951")


def compare_into(
    folder: Path,
    policy: Path,
    other: Path,
    rollout: RolloutConfig,
    task_set: TaskSet,
    other_rollout: RolloutConfig | None = None,
    *,
    sequential: bool = False,
) -> Comparison:
    """Play the same test tasks with both policies, 0 for as many as the environment says; write FILE into `folder`.

    A `sequential` comparison plays ROUND of them at a time, until the policy is surely better or all are played.

    The other policy plays with `other_rollout`, if it is given: without the tool, say. Raises ValueError where that
    makes other tasks.
    """
    spec = task_set.spec(rollout)
    task_set = replace(task_set, tasks=task_set.tasks or spec.comparison_tasks)
    tasks = task_set.choose(spec)
    other_rollout = other_rollout or rollout
    if task_set.choose(task_set.spec(other_rollout)) != tasks:
        raise ValueError("other_config makes other tasks; allowed: settings that change how the same tasks are played.")
    sides = {"policy": (policy, rollout), "other": (other, other_rollout)}
    played: dict[str, list[Episode]] = {name: [] for name in sides}
    rewards: list[dict[str, float]] = [{}, {}]
    evidence: Evidence | None = None
    if sequential:
        lowest, highest = reward_range(spec, task_set.environment)
        evidence = Evidence(highest - lowest)
    for start in range(0, len(tasks), ROUND if sequential else len(tasks)):
        now = tasks[start : start + ROUND] if sequential else tasks
        for (name, (of, settings)), by_task in zip(sides.items(), rewards, strict=True):
            episodes = task_set.play(of, settings, now)
            played[name] += episodes
            by_task |= {episode.task.id: episode.reward for episode in ended(episodes)}
        if evidence is not None:
            policys, others = rewards
            evidence.add([policys[t.id] - others[t.id] for t in now if t.id in policys and t.id in others])
            if evidence.most >= ENOUGH:
                break
    task_set = replace(task_set, tasks=len(played["policy"]))
    comparison = Comparison(
        policy=read_manifest(policy).digest,
        other=read_manifest(other).digest,
        seed=task_set.seed,
        **paired(*rewards),  # type: ignore[arg-type]
        evidence=None if evidence is None else evidence.most,
        results={name: measure(task_set.spec(sides[name][1]), episodes) for name, episodes in played.items()},
        baselines=play_baselines(task_set, rollout),  # type: ignore[arg-type]  # settings have a hash
    )
    with atomic_directory(folder) as new:
        (new / FILE).write_text(json.dumps(comparison.to_dict(), indent=1) + "\n")
    return comparison
