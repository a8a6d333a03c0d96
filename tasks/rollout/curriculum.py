"""Curriculum: tasks are drawn by how often recent groups of their kind had rewards that differ, and thus taught.

    last batches ──record──► policies/00007/_curriculum.json ──► rollout of policy 7: each task drawn is kept with the
                                                                 weight of its kind, else another one is drawn

A kind is all that the environment says a task belongs to (`EnvironmentSpec.parts`): its family and difficulty. What is
drawn depends on the policy's folder, the seed, the iteration and the number of the group alone, so that several workers
and a resumed run draw the same.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.environments.interface import EnvironmentSpec, Task
from tasks.rollout.batch import part_metric
from tasks.seeds import BITS, derived_seed, training_index

FILE = "_curriculum.json"  # the underscore keeps it out of the policy's digest, and through retention
LEAST = 0.1  # of the largest weight: no kind is given up, for a policy may forget
TRIES = 100  # at most, then the last one is taken


def record(policy: Path, batches: Sequence[pa.Table]) -> None:
    """Write beside the weights of `policy` how many groups of each kind the batches have, and how many of them differ.

    Example: `{"2 numbers": [40, 3], "4 numbers": [38, 31]}`.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for batch in batches:
        groups, rewards = batch["group_id"].to_pylist(), batch["reward"].to_numpy()
        varies = dict(zip(groups, has_reward_variance(rewards, groups).tolist(), strict=True))
        for group, parts in dict(zip(groups, batch["parts"].to_pylist(), strict=True)).items():
            counted = counts[_kind(parts)]
            counted[0] += 1
            counted[1] += varies[group]
    (policy / FILE).write_text(json.dumps(dict(sorted(counts.items()))) + "\n")


@dataclass(frozen=True)
class Curriculum:
    """Draws training tasks. Without weights it takes the first of each group, as a run without a curriculum does.

    Example: `Curriculum({"2 numbers": 0.1, "4 numbers": 0.8})`.
    """

    weights: Mapping[str, float] = field(default_factory=dict)  # by kind

    @classmethod
    def read(cls, policy: Path) -> "Curriculum":
        """That of a rollout with `policy`: of a kind with n groups, k of them with variance, (k + 1) / (n + 2), and at
        least LEAST of the largest. Without weights for a policy without a record, as the first one is."""
        if not (policy / FILE).is_file():
            return cls()
        counts = json.loads((policy / FILE).read_text())
        shares = {kind: (varied + 1) / (groups + 2) for kind, (groups, varied) in counts.items()}
        return cls({kind: max(share, LEAST * max(shares.values())) for kind, share in shares.items()})

    def task(self, spec: EnvironmentSpec, run_seed: int, iteration: int, number: int) -> Task:
        """The task of a group. A kind that was not met yet has the largest weight."""
        index = training_index(run_seed, iteration, number)
        task, most = spec.task("train", index), max(self.weights.values(), default=1.0)
        for attempt in range(TRIES):
            kept = self.weights.get(_kind(spec.parts(task)), most) / most
            if kept >= 1 or derived_seed("kept", index, attempt) < kept * 2**BITS:
                break
            task = spec.task("train", derived_seed("another", index, attempt))
        return task

    @property
    def metrics(self) -> dict[str, float]:
        """The weight of each kind, beside its share of the episodes: `rollout.4 numbers/weight`."""
        return {part_metric("rollout", kind, "weight"): weight for kind, weight in self.weights.items()}


def _kind(parts: Sequence[str]) -> str:
    return ", ".join(parts)
