"""One training stage: several epochs of optimizer steps on a window, then the next policy version.

Axes: R trajectories, N tokens, K sampled tokens of a forward pass (see `packing.py`).
"""

import math
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from tasks.config import AlgorithmConfig, GrpoConfig
from tasks.folders import written_whole
from tasks.policy.checkpoint import read_info, seal
from tasks.training.losses.grpo import grpo_loss
from tasks.training.packing import Rows, flat, ragged
from tasks.training.trainer import Trainer, resume, retire

CHECKED = 256  # fresh trajectories on which trainer and generator are compared


def next_policy(
    window: pa.Table,
    policy: Path,
    state: Path | None,
    config: GrpoConfig,
    *,
    run_token: str,
    seed: int,
    iterations: int,
    target: Path,
    target_state: Path,
) -> dict[str, float]:
    """Train `policy` on `window`; write the next version to `target` and the trainer's state to `target_state`.

    `state` is what the stage before left, None for the first. Nothing is written when the training fails.
    """
    info = read_info(policy)
    trainer = resume(
        policy,
        state,
        config.training,
        run_token=run_token,
        temperature=config.rollout.temperature,
        iterations=iterations,
    )
    metrics = train_on(window, trainer, config.algorithm, policy_version=info.version, seed=seed)
    with written_whole(target_state) as folder:
        trainer.save_state(folder)
    with written_whole(target) as folder:
        trainer.export(policy, folder)
        sealed = seal(folder, info.version + 1, info.digest)
    retire(trainer, run_token, sealed.digest)
    return metrics


def train_on(
    window: pa.Table, trainer: Trainer, algorithm: AlgorithmConfig, *, policy_version: int, seed: int
) -> dict[str, float]:
    """Take `epochs` passes over the trajectories of `window` in minibatches; returns means of what was measured.

    Raises ValueError when trajectories sampled by this very policy version have, on average, other log-probabilities
    here than where they were sampled, and FloatingPointError for a loss or gradient that is not finite; both name
    the policy version, and no weights have been written.
    """
    started = time.perf_counter()
    config, data = trainer.config, ragged(window)
    generator_N = flat(window, "logprobs")
    reference_N = flat(window, "reference_logprobs")
    advantages_R = window["advantage"].to_numpy()
    fresh_R = window["policy_version"].to_numpy() == policy_version

    def columns(rows: Rows) -> dict[str, torch.Tensor]:
        return {
            "generator_logprobs_K": torch.from_numpy(generator_N[rows.source_K]),
            "reference_logprobs_K": torch.from_numpy(reference_N[rows.source_K]),
            "advantages_K": torch.from_numpy(advantages_R[rows.trajectory_K]),
        }

    metrics = mismatch(trainer, window, fresh_R, algorithm, policy_version)
    measured: dict[str, list[float]] = defaultdict(list)
    for epoch in range(config.epochs if len(data) else 0):
        order = np.random.default_rng([seed, policy_version, epoch]).permutation(len(data))
        minibatches = max(1, round(len(data) / config.minibatch_size))
        for number, members in enumerate(np.array_split(order, minibatches)):
            loss = partial(grpo_loss, config=algorithm)
            try:
                result = trainer.step(data, members.tolist(), loss, columns)
            except FloatingPointError as error:
                raise FloatingPointError(
                    f"training of policy version {policy_version}, epoch {epoch}, minibatch {number}: {error}"
                ) from None
            for name, value in result.items():
                measured[name].append(value)
    for name, values in measured.items():
        metrics[f"train/{name}"] = max(values) if name.endswith("_max") else sum(values) / len(values)
    metrics["train/steps"] = float(len(measured["loss"]))
    metrics["train/learning_rate"] = trainer.learning_rate
    metrics["time/train_s"] = time.perf_counter() - started
    trainer.schedule.step()
    return metrics


def mismatch(
    trainer: Trainer,
    window: pa.Table,
    fresh_R: np.ndarray,
    algorithm: AlgorithmConfig,
    policy_version: int,
) -> dict[str, float]:
    """How far the log-probabilities of trainer and generator are apart on trajectories of the present version.

    Both hold the same weights then, so every ratio should be 1. The first CHECKED trajectories answer for all. Empty
    when the window holds none.
    """
    if not fresh_R.any():
        return {}
    fresh = window.filter(pa.array(fresh_R)).slice(0, CHECKED)
    data = ragged(fresh)
    mask_N = data.action_mask_N
    gap_K = (trainer.score(data) - flat(fresh, "logprobs"))[mask_N]
    mean = float(np.abs(gap_K).mean())
    if not (math.isfinite(mean) and mean <= algorithm.max_mismatch):
        raise ValueError(
            f"mismatch between generator and trainer on policy version {policy_version} is {mean:.4g} nats a token; "
            f"allowed: at most algorithm.max_mismatch = {algorithm.max_mismatch}."
        )
    return {"train/mismatch_mean": mean, "train/mismatch_max": float(np.abs(gap_K).max())}
