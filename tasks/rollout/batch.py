"""What a batch of trajectories, sampled by one policy version, measures."""

import math
import re

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.records import trajectory_numbers


def batch_metrics(batch: pa.Table, seconds: float, setup_seconds: float) -> dict[str, float]:
    """Metrics of a batch. Each episode counts once, however many samples it is in."""
    once = batch.take(trajectory_numbers(batch)[1])
    tokens, sampled = (batch[name].combine_chunks().flatten() for name in ("token_ids", "loss_mask"))
    count = once.num_rows
    groups, rewards = once["group_id"].to_numpy(), once["reward"].to_numpy()

    def share(reason: str) -> float:
        return float(np.mean(once["finish_reason"].to_numpy() == reason))

    return {
        "rollout/groups": float(len(set(groups))),
        "rollout/groups_with_variance": float(len(set(groups[has_reward_variance(rewards, groups)]))),
        "rollout/episodes": float(count),
        "rollout/reward_mean": _mean(rewards),  # as training sees it
        "rollout/raw_reward": _mean(once["raw_reward"].to_numpy()),  # the environment's own
        "rollout/invalid_share": share("invalid"),
        "rollout/truncated_share": share("truncated"),
        "rollout/error_share": share("error"),
        "rollout/turns_mean": float(np.mean(once["turns"].to_numpy())),
        "rollout/samples_mean": batch.num_rows / count,
        "rollout/tokens_mean": len(tokens) / count,
        "rollout/episodes_per_s": count / seconds,
        "rollout/sampled_tokens_per_s": sampled.to_numpy(zero_copy_only=False).sum() / seconds,
        "time/rollout_s": seconds,
        "time/rollout_setup_s": setup_seconds,
        **environment_metrics(once),
        **part_metrics(once),
    }


def part_metrics(once: pa.Table) -> dict[str, float]:
    """`rollout.<part>/raw_reward`, and the share of the episodes that each part of the environment has."""
    found = {}
    rewards, parts = once["raw_reward"].to_numpy(), once["parts"].to_pylist()
    for part in sorted({name for of in parts for name in of}):
        own = np.array([part in of for of in parts])
        found[part_metric("rollout", part, "raw_reward")] = _mean(rewards[own])
        found[part_metric("rollout", part, "share")] = float(own.mean())
    return found


def part_metric(section: str, part: str, name: str) -> str:
    """A metric of one part as MLflow takes it: a section for each, `eval.addition/reward`."""
    return f"{section}.{re.sub(r'[^A-Za-z0-9_. -]', '.', part)}/{name}"


def environment_metrics(once: pa.Table) -> dict[str, float]:
    """`environment/<metric>`: means over the episodes that have it."""
    maps = once["metrics"].combine_chunks()
    names, values = maps.keys.to_numpy(zero_copy_only=False), maps.items.to_numpy(zero_copy_only=False)
    return {f"environment/{name}": float(np.mean(values[names == name])) for name in dict.fromkeys(names)}


def _mean(values: np.ndarray) -> float:
    """Over those that are known: null is NaN."""
    known = values[np.isfinite(values)].astype(np.float64)
    return float(known.mean()) if len(known) else math.nan
