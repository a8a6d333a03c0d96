"""One training stage: several epochs of optimizer steps on a window, then the next policy version.

Axes: R samples, N tokens, K sampled tokens of a forward pass (see `rows.py`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch

from tasks.config import AlgorithmConfig, GrpoConfig, TrainingConfig
from tasks.policy.checkpoint import read_manifest, write_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.training.checks import batch_names, check_fits, mismatch, trainable
from tasks.training.losses.catalog import LOSSES
from tasks.training.losses.correction import importance_weights
from tasks.training.losses.tokens import SampledTokens, Totals
from tasks.training.packing import FlatSamples, by_prompt, flat
from tasks.training.ranks import atomic_directory_of_ranks, is_first
from tasks.training.rows import Rows
from tasks.training.trainer import Loss, Trainer, for_scoring, resume, retire

STEPS = "_steps.csv"  # beside the weights: what every optimizer step measured


def next_policy(
    training_batch: pa.Table,
    policy: Path,
    sampler: Path,
    state: Path | None,
    config: GrpoConfig,
    *,
    run_token: str,
    seed: int,
    iterations: int,
    target: Path,
    target_state: Path,
    progress: ProgressCallback = no_progress,
) -> dict[str, float]:
    """Train `policy` on `training_batch`; write the next version to `target` and the trainer's state to `target_state`.

    `sampler` is the policy that sampled the newest batch: `policy` itself, or with lag 1 an older one. `state` is what
    the stage before left, None for the first. Nothing is written when the training fails. `progress` is told of the
    optimizer steps. All ranks call it; what they return is the same, but for the seconds.
    """
    info, temperature = read_manifest(policy), config.rollout.temperature
    trainer = resume(
        policy,
        state,
        config.training,
        run_token=run_token,
        seed=seed,
        temperature=temperature,
        iterations=iterations,
    )
    sampled_by, scorer = read_manifest(sampler), trainer
    if sampled_by.digest != info.digest:
        scorer = Trainer(sampler, for_scoring(config.training), temperature=temperature, schedule_steps=1)
    started = time.perf_counter()
    check_fits(training_batch, config.training.seq_len)
    metrics = mismatch(scorer, training_batch, config.algorithm, policy_version=sampled_by.version)
    del scorer
    found, steps = train_on(
        training_batch, trainer, config.algorithm, policy_version=info.version, seed=seed, progress=progress
    )
    metrics |= {**found, "time/train_s": time.perf_counter() - started}
    with atomic_directory_of_ranks(target_state) as folder:
        trainer.save_state(folder)
    with atomic_directory_of_ranks(target) as folder:
        trainer.export(policy, folder)
        if is_first():
            if steps:
                pa_csv.write_csv(pa.Table.from_pylist(steps), folder / STEPS)
            sealed = write_manifest(folder, info.version + 1, info.digest)
            retire(trainer, run_token, sealed.digest)
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
    A sampled token without a finite log-probability of the generator is not trained on, and counted.

    Raises ValueError for a window in which no token has one, and FloatingPointError for a loss or gradient that is not
    finite; both name policy version and batch, and no weights have been written.
    """
    config, (data, dropped) = trainer.config, trainable(training_batch)
    if dropped and not data.loss_mask_N.any():
        raise ValueError(
            f"no sampled token of {batch_names(training_batch)} for policy version {policy_version} has a log-probability of "
            f"the generator that is finite; allowed: finite numbers."
        )
    loss = batch_loss(training_batch, data, trainer, algorithm)
    steps: list[dict[str, float]] = []
    planned = list(minibatches(data, config, seed=seed, policy_version=policy_version))
    for epoch, number, members in planned:
        try:
            result = trainer.step(data, members.tolist(), loss)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"training of policy version {policy_version} stopped in epoch {epoch}, minibatch {number} of "
                f"{batch_names(training_batch.take(members))}: {error}"
            ) from None
        square = result.pop("ratio_square")
        result["ess_share"] = result["ratio_mean"] ** 2 / square if square else math.nan
        steps.append({"epoch": epoch, "minibatch": number, "learning_rate": trainer.learning_rate, **result})
        progress(len(steps), len(planned), f"loss {result['loss']:+.4f}")
    measured: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, value in step.items():
            measured[name].append(value)
    metrics = {
        f"train/{name}": max(values) if name.endswith("_max") else sum(values) / len(values)
        for name, values in measured.items()
        if name not in ("epoch", "minibatch")
    }
    metrics["train/grad_norm_max"] = max(measured["grad_norm"], default=0.0)
    metrics["train/dropped_tokens"] = float(dropped)
    metrics["train/steps"] = float(len(steps))
    metrics["train/learning_rate"] = trainer.learning_rate
    trainer.schedule.step()
    return metrics, steps


def minibatches(
    data: FlatSamples, config: TrainingConfig, *, seed: int, policy_version: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """(epoch, number, samples of one optimizer step): each trajectory with a token to train on once an epoch, whole.

    Where prefixes are shared, trajectories that begin with the same one stay together.
    """
    teaching = np.flatnonzero(data.sampled_R)
    samples: dict[int, list[int]] = defaultdict(list)
    for r in teaching.tolist():
        samples[int(data.trajectory_R[r])].append(r)
    begin = [first for first, *_ in samples.values()]
    together = by_prompt(data, begin) if config.share_prefixes else [[r] for r in begin]
    for epoch in range(config.epochs if len(teaching) else 0):
        places = np.random.default_rng([seed, policy_version, epoch]).permutation(len(together))
        order = np.array([data.trajectory_R[r] for place in places for r in together[place]])
        parts = max(1, round(len(order) / config.minibatch_size))
        for number, trajectories in enumerate(np.array_split(order, parts)):
            yield epoch, number, np.array([r for t in trajectories.tolist() for r in samples[t]])


def batch_loss(training_batch: pa.Table, data: FlatSamples, trainer: Trainer, algorithm: AlgorithmConfig) -> Loss:
    """The algorithm's loss on rows of `training_batch`, whose sampled tokens are those of `data`.

    With `importance_sampling` the trainer first scores the whole window: these log-probabilities, from before the first
    step, are what the ratio divides by.
    """
    old_N = generator_N = flat(training_batch, "logprobs")
    weights_N, changed_N = np.ones_like(generator_N), np.zeros_like(generator_N)
    if algorithm.importance_sampling != "none":
        old_N, source = trainer.score(data), np.flatnonzero(data.loss_mask_N)
        trajectory_N = np.repeat(data.trajectory_R, data.lengths_R)
        weights_N[source], changed_N[source] = importance_weights(
            torch.from_numpy(old_N[source]),
            torch.from_numpy(generator_N[source]),
            torch.from_numpy(trajectory_N[source]),
            algorithm,
        )
    reference_N = flat(training_batch, "reference_logprobs") if algorithm.kl_coefficient else None
    advantages_R, tokens_R = training_batch["advantage"].to_numpy(), data.trajectory_sampled_R.astype(np.float32)
    assert reference_N is None or len(reference_N) == len(generator_N), "a group to train on was not scored"

    def loss(
        logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, size: Totals
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        def on_device(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(trainer.device)

        generator_K, old_K = on_device(generator_N[rows.source_K]), on_device(old_N[rows.source_K])
        weights_K, corrected = on_device(weights_N[rows.source_K]), {}
        if algorithm.importance_sampling != "none":
            changed_K = on_device(changed_N[rows.source_K])
            corrected = {"weight_mean": weights_K.sum(), "weight_capped_share": changed_K.sum()}
        tokens = SampledTokens(
            logprobs_K=logprobs_K,
            entropy_K=entropy_K,
            generator_logprobs_K=generator_K,
            old_logprobs_K=old_K,
            weights_K=weights_K,
            reference_logprobs_K=None if reference_N is None else on_device(reference_N[rows.source_K]),
            advantages_K=on_device(advantages_R[rows.sample_K]),
            sample_K=on_device(np.unique(rows.sample_K, return_inverse=True)[1]),
            trajectory_tokens_K=on_device(tokens_R[rows.sample_K]),
        )
        value, metrics = LOSSES[algorithm.name](tokens, size, algorithm)
        return value, metrics | corrected

    return loss
