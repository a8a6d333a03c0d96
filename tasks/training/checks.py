"""What a training stage makes sure of before its first step.

Axes: R trajectories, N tokens, K sampled tokens (see `rows.py`).
"""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tasks.config import AlgorithmConfig
from tasks.training.packing import FlatSamples, flat, flat_samples
from tasks.training.trainer import Trainer

CHECKED = 256  # fresh trajectories on which trainer and generator are compared


def trainable(training_batch: pa.Table) -> tuple[FlatSamples, int]:
    """The token columns of `training_batch` with a mask of the tokens to train on: sampled, with a finite log-probability of
    the generator. Also how many sampled tokens have none."""
    data = flat_samples(training_batch)
    mask_N = data.loss_mask_N & np.isfinite(flat(training_batch, "logprobs"))
    return replace(data, loss_mask_N=mask_N), int((data.loss_mask_N & ~mask_N).sum())


def check_fits(training_batch: pa.Table, seq_len: int) -> None:
    """Raise ValueError, before any training, when a trajectory is longer than a packed row."""
    lengths_R = flat_samples(training_batch).lengths_R
    if lengths_R.max(initial=0) > seq_len:
        r = int(lengths_R.argmax())
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at least {lengths_R[r]}, the tokens of trajectory "
            f"{training_batch['trajectory_id'][r].as_py()}, which would not fit in a row."
        )


def mismatch(
    scorer: Trainer, training_batch: pa.Table, algorithm: AlgorithmConfig, *, policy_version: int
) -> dict[str, float]:
    """How far the log-probabilities of trainer and generator are apart on trajectories of one policy version.

    `scorer` holds the weights of that version, so every ratio should be 1. The first CHECKED trajectories answer for
    all; tokens without a finite log-probability of the generator are left out. Empty when there are none.

    Raises ValueError beyond `algorithm.max_mismatch`, naming policy version and batch.
    """
    fresh = training_batch.filter(pa.array(training_batch["policy_version"].to_numpy() == policy_version)).slice(
        0, CHECKED
    )
    data, _ = trainable(fresh)
    if not data.loss_mask_N.any():
        return {}
    gap_K = (scorer.score(data) - flat(fresh, "logprobs"))[data.loss_mask_N]
    mean = float(np.abs(gap_K).mean())
    if not (math.isfinite(mean) and mean <= algorithm.max_mismatch):
        raise ValueError(
            f"mismatch between generator and trainer on policy version {policy_version}, {batch_names(fresh)}, is "
            f"{mean:.4g} nats a token; allowed: at most algorithm.max_mismatch = {algorithm.max_mismatch}."
        )
    return {"train/mismatch_mean": mean, "train/mismatch_max": float(np.abs(gap_K).max())}


def batch_names(rows: pa.Table) -> str:
    """`batch 00003`, `batches 00002 and 00003`: what the group ids begin with."""
    names: list[str] = sorted({group.split("-")[0] for group in rows["group_id"].to_pylist()})
    return f"batch{'es' if len(names) > 1 else ''} {' and '.join(names)}"
