"""The off-policy buffer: a window over immutable batches.

    batches   v-3   v-2   v-1   v          one directory each, written once
    window          └── the last K, whole groups, none older than max_age ──┘

Appending is a longer list, evicting a shorter one; nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.config import BufferConfig
from tasks.seeds import derived_seed


@dataclass(frozen=True)
class Selection:
    """Which groups of the window are trained on. Example: Selection(group_ids=["00007-00003", …], metrics={…})."""

    group_ids: list[str]
    metrics: dict[str, float]


def select_groups(batches: Sequence[pa.Table], config: BufferConfig, *, policy_version: int, seed: int) -> Selection:
    """Choose whole groups from the last `config.batches` batches for training on policy `policy_version`.

    Left out are groups whose advantages are all 0 (nothing to learn from) and those sampled more than
    `config.max_age` versions ago. With `config.max_groups`, the freshest are taken first, ties by the seed.
    """
    window = list(batches)[-config.batches :]
    rows = pa.concat_tables(
        [b.select(["group_id", "policy_version", "advantage", "trajectory_id"]) for b in window]
    ).to_pandas()
    groups = rows.groupby("group_id", sort=True).agg(
        version=("policy_version", "min"), size=("trajectory_id", "size"), spread=("advantage", lambda a: a.abs().max())
    )
    fresh = groups["version"] >= policy_version - config.max_age
    informative = groups["spread"] > 0
    eligible = groups[fresh & informative].copy()
    eligible["tie"] = [derived_seed("buffer", seed, policy_version, group) for group in eligible.index]
    chosen = eligible.sort_values(["version", "tie"], ascending=[False, True])
    if config.max_groups:
        chosen = chosen.head(config.max_groups)
    ages = policy_version - chosen["version"].to_numpy()
    return Selection(
        group_ids=chosen.index.tolist(),
        metrics={
            "buffer/groups_in_window": float(len(groups)),
            "buffer/groups_too_old": float((~fresh).sum()),
            "buffer/groups_without_gradient": float((fresh & ~informative).sum()),
            "buffer/groups": float(len(chosen)),
            "buffer/trajectories": float(chosen["size"].sum()),
            "buffer/staleness_mean": float(np.average(ages, weights=chosen["size"])) if len(chosen) else 0.0,
            "buffer/staleness_max": float(ages.max(initial=0)),
        },
    )


def take(batches: Sequence[pa.Table], group_ids: Sequence[str]) -> pa.Table:
    """The rows of the chosen groups, groups in the order given, members as they were written."""
    rows = pa.concat_tables(batches)
    place = {group: i for i, group in enumerate(group_ids)}
    order = sorted((place[group], i) for i, group in enumerate(rows["group_id"].to_pylist()) if group in place)
    return rows.take(pa.array([i for _, i in order], type=pa.int64()))
