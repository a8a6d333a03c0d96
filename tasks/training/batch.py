"""The training batch: its tokens to train on, the checks before the first step, and the loss of its rows.

Axes: R samples, N tokens of all samples, K sampled tokens of a microbatch (see `packing.py`).
"""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses import LOSSES, SampledTokens, StepTotals, Value, importance_weights
from tasks.training.packing import FlatSamples, Rows, flat, flat_samples
from tasks.training.trainer import Loss, Trainer

CHECKED = 256  # fresh samples on which trainer and generator are compared


def trainable(training_batch: pa.Table) -> tuple[FlatSamples, int]:
    """The token columns with a mask of the tokens to train on, which were sampled with a finite log-probability of the
    generator, and how many sampled tokens have none."""
    data = flat_samples(training_batch)
    mask_N = data.loss_mask_N & np.isfinite(flat(training_batch, "logprobs"))
    return replace(data, loss_mask_N=mask_N), int((data.loss_mask_N & ~mask_N).sum())


def mismatch(
    scorer: Trainer, training_batch: pa.Table, algorithm: AlgorithmConfig, *, policy_version: int
) -> dict[str, float]:
    """How far the log-probabilities of trainer and generator are apart on samples of one policy version.

    `scorer` holds the weights of that version, so every ratio should be 1. Only the trainable tokens of the first
    CHECKED samples are compared; empty when there are none. Raises ValueError beyond `algorithm.max_mismatch`.
    """
    fresh = pa.array(training_batch["policy_version"].to_numpy() == policy_version)
    batch = training_batch.filter(fresh).slice(0, CHECKED)
    data, _ = trainable(batch)
    if not data.loss_mask_N.any():
        return {}
    gap_K = np.abs(scorer.score(data) - flat(batch, "logprobs"))[data.loss_mask_N]
    mean = float(gap_K.mean())
    if not (math.isfinite(mean) and mean <= algorithm.max_mismatch):
        raise ValueError(
            f"mismatch between generator and trainer on policy version {policy_version}, {batch_names(batch)}, is "
            f"{mean:.4g} nats a token; allowed: at most algorithm.max_mismatch = {algorithm.max_mismatch}."
        )
    return {"train/mismatch_mean": mean, "train/mismatch_max": float(gap_K.max())}


def batch_names(rows: pa.Table) -> str:
    """`batch 00003`, `batches 00002 and 00003`: what the group ids begin with."""
    names: list[str] = sorted({group.split("-")[0] for group in rows["group_id"].to_pylist()})
    return f"batch{'es' if len(names) > 1 else ''} {' and '.join(names)}"


def batch_loss(training_batch: pa.Table, data: FlatSamples, trainer: Trainer, algorithm: AlgorithmConfig) -> Loss:
    """The algorithm's loss on rows of `training_batch`, whose sampled tokens are those of `data`.

    With `importance_sampling` the trainer first scores the whole batch: the ratio is to these log-probabilities, from
    before the first step.
    """
    corrected = algorithm.importance_sampling != "none"
    old_N = generator_N = flat(training_batch, "logprobs")
    weights_N, capped_N = np.ones_like(generator_N), np.zeros_like(generator_N)
    if corrected:
        old_N, sampled_N = trainer.score(data), data.loss_mask_N
        columns = (old_N, generator_N, np.repeat(data.trajectory_R, data.lengths_R))
        old_K, generator_K, trajectory_K = (torch.from_numpy(values_N[sampled_N]) for values_N in columns)
        weights_N[sampled_N], capped_N[sampled_N] = importance_weights(old_K, generator_K, trajectory_K, algorithm)
    reference_N = flat(training_batch, "reference_logprobs") if algorithm.kl_coefficient else None
    assert reference_N is None or len(reference_N) == len(generator_N), "a group to train on was not scored"
    advantages_R = training_batch["advantage"].to_numpy()
    trajectory_tokens_R = data.trajectory_sampled_R.astype(np.float32)

    def loss(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, totals: StepTotals) -> Value:
        def on_device(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(trainer.device)

        token_K, sample_K = rows.flat_index_K, rows.sample_K
        tokens = SampledTokens(
            logprobs_K=logprobs_K,
            entropy_K=entropy_K,
            generator_logprobs_K=on_device(generator_N[token_K]),
            old_logprobs_K=on_device(old_N[token_K]),
            importance_weights_K=on_device(weights_N[token_K]),
            reference_logprobs_K=None if reference_N is None else on_device(reference_N[token_K]),
            advantages_K=on_device(advantages_R[sample_K]),
            sample_K=on_device(np.unique(sample_K, return_inverse=True)[1]),
            trajectory_tokens_K=on_device(trajectory_tokens_R[sample_K]),
        )
        value, metrics = LOSSES[algorithm.name](tokens, totals, algorithm)
        if corrected:
            metrics["weight_mean"] = tokens.importance_weights_K.sum()
            metrics["weight_capped_share"] = on_device(capped_N[token_K]).sum()
        return value, metrics

    return loss
