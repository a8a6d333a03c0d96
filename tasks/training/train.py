"""One training stage: several epochs of optimizer steps on a training batch, then the next policy version.

Axes: R samples.

    training batch ──batch.py──► checks, loss    ──minibatches──► Trainer.step ──► metrics, policy, trainer state
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from tasks.config import AlgorithmConfig, GrpoConfig, Run, TrainingConfig
from tasks.policy.checkpoint import read_manifest, write_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.training.batch import batch_loss, batch_names, mismatch, trainable
from tasks.training.packing import FlatSamples, group_by_prompt
from tasks.training.ranks import atomic_directory_of_ranks, is_first
from tasks.training.trainer import Trainer
from tasks.training.warm import for_scoring, keep_warm, resume

STEPS = "_steps.csv"  # beside the weights: what every optimizer step measured


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
    of the stage before, None for the first stage. Nothing is written when the training fails. All ranks call this
    function; their results are equal, except for the seconds.
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
    A sampled token without a finite log-probability of the generator is not trained on, and counted.

    Raises ValueError for a batch in which no token has one, and FloatingPointError for a loss or gradient that is not
    finite. Both errors name policy version and batch.
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
    one step, with all its samples. With shared prefixes, trajectories with the same prompt stay together."""
    samples: dict[int, list[int]] = defaultdict(list)  # of each trajectory
    for r in np.flatnonzero(data.sampled_R).tolist():
        samples[int(data.trajectory_R[r])].append(r)
    first = [first for first, *_ in samples.values()]
    together = group_by_prompt(data, first) if config.share_prefixes else [[r] for r in first]
    for epoch in range(config.epochs if samples else 0):
        shuffled = np.random.default_rng([seed, policy_version, epoch]).permutation(len(together))
        order = np.array([data.trajectory_R[r] for i in shuffled for r in together[i]])
        steps = max(1, round(len(order) / config.minibatch_size))
        for number, trajectories in enumerate(np.array_split(order, steps)):
            yield epoch, number, np.array([r for t in trajectories.tolist() for r in samples[t]])
