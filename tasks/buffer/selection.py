"""The off-policy buffer: the last batches, from which each training stage selects groups.

batches          v-3   v-2   v-1   v          one directory each, written once
training batch    └── whole groups, freshest first, none older than max_age or used reuse times ──┘
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tasks.buffer.training_batch import TrainingBatch
from tasks.config import BufferConfig
from tasks.seeds import derived_seed

COLUMNS = ["group_id", "policy_version", "advantage", "trajectory_id"]  # that a selection needs


def select_groups(
    batches: Sequence[pa.Table],
    config: BufferConfig,
    *,
    wanted: int,
    uses: Mapping[str, int],
    policy_version: int,
    seed: int,
) -> TrainingBatch:
    """Select at most `wanted` whole groups for training on policy `policy_version`, the freshest first.

    `uses` is that of the previous selection. Left out are groups whose advantages are all 0 (they have no gradient),
    that are older than `config.max_age` versions, or that `config.reuse` stages have learned from.
    """
    rows = pa.concat_tables([b.select(COLUMNS) for b in batches]).to_pandas()
    rows["advantage"] = rows["advantage"].abs()
    groups = rows.groupby("group_id", sort=True).agg(
        version=("policy_version", "min"), size=("trajectory_id", "nunique"), advantage_range=("advantage", "max")
    )
    fresh = groups["version"] >= policy_version - config.max_age
    informative = groups["advantage_range"] > 0
    unspent = np.array([uses.get(group, 0) < config.reuse for group in groups.index], dtype=bool)
    eligible = groups[fresh & informative & unspent].copy()
    eligible["tie"] = [derived_seed("buffer", seed, policy_version, group) for group in eligible.index]
    chosen = eligible.sort_values(["version", "tie"], ascending=[False, True]).head(wanted)
    ages = policy_version - chosen["version"].to_numpy()
    counts = {group: uses.get(group, 0) + (group in chosen.index) for group in groups.index[fresh]}
    return TrainingBatch(
        group_ids=chosen.index.tolist(),
        uses={group: count for group, count in counts.items() if count},
        metrics={
            "buffer/groups_in_reach": float(len(groups)),
            "buffer/groups_too_old": float((~fresh).sum()),
            "buffer/groups_without_gradient": float((fresh & ~informative).sum()),
            "buffer/groups_used_up": float((fresh & informative & ~unspent).sum()),
            "buffer/groups_waiting": float(len(eligible) - len(chosen)),
            "buffer/groups": float(len(chosen)),
            "buffer/trajectories": float(chosen["size"].sum()),
            "buffer/staleness_mean": float(np.average(ages, weights=chosen["size"])) if len(chosen) else 0.0,
            "buffer/staleness_max": float(ages.max(initial=0)),
        },
    )


def gather(batches: Sequence[pa.Table], group_ids: Sequence[str]) -> pa.Table:
    """The rows of the chosen groups, groups in the order given, the rows of a group as they were written."""
    rows = pa.concat_tables(batches)
    rank = {group: i for i, group in enumerate(group_ids)}
    order = sorted((rank[group], i) for i, group in enumerate(rows["group_id"].to_pylist()) if group in rank)
    return rows.take(pa.array([i for _, i in order], type=pa.int64()))
