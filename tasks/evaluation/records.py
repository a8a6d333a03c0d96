"""What an evaluation found, as evaluation.json keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.folders import versions
from tasks.json_files import read_record
from tasks.json_records import Record

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Mean(Record):
    """A mean, and half the width of its 95 % interval. Example: `Mean(-0.048, 0.021)`."""

    mean: float
    ci95: float


@dataclass(frozen=True, kw_only=True)
class Results(Record):
    """What a policy or a baseline got on some tasks.

    Example: `Results(reward=Mean(-0.036, 0.021), metrics={"tool_calls": Mean(1.7, 0.02), "invalid": Mean(0.0, 0.0)},
    parts={"addition": Results(…), "division": Results(…)})`.
    """

    reward: Mean
    # By the keys of the spec's metrics, and the shares of episodes that ended as "invalid", "truncated" or "error".
    metrics: dict[str, Mean] = field(default_factory=dict)
    pass_at: dict[str, float] = field(default_factory=dict)  # by k; empty where rewards are not from 0 to 1
    parts: dict[str, "Results"] = field(default_factory=dict)  # on the tasks of each part, by `EnvironmentSpec.parts`

    def means(self) -> dict[str, float]:
        """The mean reward and metrics."""
        return {"reward": self.reward.mean, **{name: found.mean for name, found in self.metrics.items()}}

    def numbers(self) -> dict[str, Any]:
        """The same as summary.json has it: reward, reward_ci95, metrics, pass_at and parts where there are some."""
        metrics = {name: found.to_dict() for name, found in self.metrics.items()}
        more = {"pass_at": self.pass_at, "parts": {name: found.numbers() for name, found in self.parts.items()}}
        found = {"reward": self.reward.mean, "reward_ci95": self.reward.ci95, "metrics": metrics}
        return found | {name: value for name, value in more.items() if value}


@dataclass(frozen=True)
class Example(Record):
    """One episode of an evaluation, for people to read.

    Example: `Example(outcome="solved", reward=1.0, sampled=False, messages=[{"role": "user", "content": "2+2=?"},
    {"role": "assistant", "content": "4", "reward": 1.0, "note": "right", "valid": True}])`.
    """

    outcome: str  # in the environment's own words, or error
    reward: float
    sampled: bool  # at the rollout's temperature rather than greedily
    # A reply has beside it what the environment answered: "reward", "note" and "valid".
    messages: list[dict[str, Any]]
    error: str = ""  # why it ended as an error


@dataclass(frozen=True, kw_only=True)
class Evaluation(Results):
    """What one policy got on the test tasks: greedily, unless a field says otherwise.

    Example: `Evaluation(reward=Mean(0.71, 0.02), metrics={…}, policy_version=40, environment="arithmetic", tasks=2048,
    seed=0, sampled_reward=Mean(0.66, 0.03), baselines={"random": Results(…)}, pass_at={"1": 0.66, "8": 0.91})`.
    """

    policy_version: int
    environment: str
    environment_options: dict[str, Any] = field(default_factory=dict)
    tasks: int
    seed: int  # which test tasks
    sampled_reward: Mean  # of the first tasks, at the rollout's temperature
    baselines: dict[str, Results] = field(default_factory=dict)  # on the same tasks
    examples: list[Example] = field(default_factory=list)  # one of each outcome that was met, the most frequent first
    details: Any = None  # of the environment's own, for its figures


def each_evaluation(folders: Sequence[Path]) -> list[Path]:
    """The folders of single evaluations; those of `gather_evaluations` hold several, in order."""
    return [one for of in folders for one in ([of] if (of / EVALUATION).is_file() else versions(of))]


def read_evaluation(folder: Path) -> Evaluation:
    """What an evaluation wrote into `folder`."""
    return read_record(folder / EVALUATION, Evaluation)
