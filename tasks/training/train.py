"""One training stage: several epochs of optimizer steps on a training batch, then the next policy version.

Axes: R samples, N tokens of all samples, K sampled tokens of a microbatch (see `packing.py`).

    training batch ──► checks, loss ──minibatches──► Trainer.step ──► metrics, policy, trainer state
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch

from tasks.config import AlgorithmConfig, GrpoConfig, Run, TrainingConfig
from tasks.policy.checkpoint import read_manifest, write_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.training.losses import LOSSES, SampledTokens, StepTotals, Value, importance_weights
from tasks.training.packing import FlatSamples, Rows, flat, flat_samples, group_by_prompt
from tasks.training.ranks import atomic_directory_of_ranks, is_first
from tasks.training.trainer import Loss, Trainer
from tasks.training.warm import for_scoring, keep_warm, resume

STEPS = "_steps.csv"  # beside the weights: what every optimizer step measured
CHECKED = 256  # fresh samples on which trainer and generator are compared


def next_policy(
    training_batch: pa.Table,
    policy: Path,
    sampler: Path,
    state: Path | None,
    config: GrpoConfig,
    run: Run,
    *,
    target: Path,
    target_state: Path,
    progress: ProgressCallback = no_progress,
) -> dict[str, float]:
    """Train `policy` on `training_batch`; write the next version to `target` and the trainer's state to `target_state`.

    `sampler` is the policy that sampled the newest batch: `policy` itself, or with lag 1 an older one. `state` is that
    of the stage before, None for the first. Nothing is written when the training fails. All ranks call this function.
    """
    manifest, sampled_by = read_manifest(policy), read_manifest(sampler)
    trainer = scorer = resume(policy, state, config, run)
    if sampled_by.digest != manifest.digest:
        settings = for_scoring(config.training)
        scorer = Trainer(sampler, settings, temperature=config.rollout.temperature, schedule_steps=1)
    started = time.perf_counter()
    metrics = mismatch(scorer, training_batch, config.algorithm, policy_version=sampled_by.version)
    del scorer
    measured, steps = train_on(
        training_batch, trainer, config.algorithm, policy_version=manifest.version, seed=run.seed, progress=progress
    )
    metrics |= {**measured, "time/train_s": time.perf_counter() - started}
    with atomic_directory_of_ranks(target_state) as folder:
        trainer.save_state(folder)
    with atomic_directory_of_ranks(target) as folder:
        trainer.export(policy, folder)
        if is_first():
            if steps:
                pa_csv.write_csv(pa.Table.from_pylist(steps), folder / STEPS)
            written = write_manifest(folder, manifest.version + 1, manifest.digest)
            keep_warm(trainer, run, written.digest)
    return metrics


def train_on(
    training_batch: pa.Table,
    trainer: Trainer,
    algorithm: AlgorithmConfig,
    *,
    policy_version: int,
    seed: int,
    progress: ProgressCallback = no_progress,
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Take `epochs` passes over the trajectories of `training_batch` in minibatches.

    Returns metrics, means over the optimizer steps (maxima for names that end in `_max`), and what each step measured.
    Raises ValueError for a batch in which no token can be trained on, and FloatingPointError for a loss or gradient
    that is not finite.
    """
    data, dropped = trainable(training_batch)
    if dropped and not data.loss_mask_N.any():
        raise ValueError(
            f"no sampled token of {batch_names(training_batch)} for policy version {policy_version} has a "
            f"log-probability of the generator that is finite; allowed: finite numbers."
        )
    loss = batch_loss(training_batch, data, trainer, algorithm)
    steps: list[dict[str, float]] = []
    planned = list(minibatches(data, trainer.config, seed=seed, policy_version=policy_version))
    for epoch, number, samples in planned:
        try:
            step = trainer.step(data, samples.tolist(), loss)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"training of policy version {policy_version} stopped in epoch {epoch}, minibatch {number} of "
                f"{batch_names(training_batch.take(samples))}: {error}"
            ) from None
        square = step.pop("ratio_square")
        step["ess_share"] = step["ratio_mean"] ** 2 / square if square else math.nan
        steps.append({"epoch": epoch, "minibatch": number, "learning_rate": trainer.learning_rate, **step})
        progress(len(steps), len(planned), f"loss {step['loss']:+.4f}")
    metrics: dict[str, float] = {}
    for name in [name for name in (steps[0] if steps else {}) if name not in ("epoch", "minibatch")]:
        values = [step[name] for step in steps]
        metrics[f"train/{name}"] = max(values) if name.endswith("_max") else sum(values) / len(values)
    metrics["train/grad_norm_max"] = max((step["grad_norm"] for step in steps), default=0.0)
    metrics |= {"train/dropped_tokens": float(dropped), "train/steps": float(len(steps))}
    metrics["train/learning_rate"] = trainer.learning_rate
    trainer.schedule.step()
    return metrics, steps


def minibatches(
    data: FlatSamples, config: TrainingConfig, *, seed: int, policy_version: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """(epoch, number, samples of one optimizer step): in each epoch each trajectory with a token to train on is once in
    one step, with all its samples. Trajectories with the same prompt stay together: it is computed once for them."""
    samples: dict[int, list[int]] = defaultdict(list)  # of each trajectory
    for r in np.flatnonzero(data.sampled_R).tolist():
        samples[int(data.trajectory_R[r])].append(r)
    first = [first for first, *_ in samples.values()]
    together = group_by_prompt(data, first)
    for epoch in range(config.epochs if samples else 0):
        shuffled = np.random.default_rng([seed, policy_version, epoch]).permutation(len(together))
        order = np.array([data.trajectory_R[r] for i in shuffled for r in together[i]])
        steps = max(1, round(len(order) / config.minibatch_size))
        for number, trajectories in enumerate(np.array_split(order, steps)):
            yield epoch, number, np.array([r for t in trajectories.tolist() for r in samples[t]])


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

    With `importance_sampling` the trainer scores the whole batch now; the ratio is to these log-probabilities.
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
