"""One iteration, rollout to train: the one order of its stages, for nodes of a graph and for a warm pod alike.

policy ──► sampled ──► score_reference ──► compute_advantages ──► select_training_batch ──► train ──► policy + 1
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flytekit.types.directory import FlyteDirectory

from tasks.advantage.task import compute_advantages
from tasks.buffer.task import TrainingBatch, select_training_batch
from tasks.config import GrpoConfig, Run, TrainingConfig
from tasks.reference.task import score_reference
from tasks.rollout.task import Call, sampled
from tasks.training.task import train


class Iterated(NamedTuple):
    """What an iteration made, and what the next one continues from."""

    trained: Any  # with `policy` and `state`
    batches: list[FlyteDirectory]  # those that the next training batch may draw from, this one's last
    training_batch: TrainingBatch


def one_iteration(
    run: Run,
    config: GrpoConfig,
    training: TrainingConfig,
    v: int,
    *,
    first: FlyteDirectory,
    sampler: FlyteDirectory,
    policy: FlyteDirectory,
    state: FlyteDirectory | None,
    batches: Sequence[FlyteDirectory],
    training_batch: TrainingBatch,
    call: Call = lambda task: task,
) -> Iterated:
    """Iteration `v`, which trains `policy` on what `sampler` plays; `config` is without ranks, `training` has them."""
    batch = sampled(run=run, config=config.rollout, policy=sampler, iteration=v, call=call)
    if config.algorithm.kl_coefficient:
        batch = call(score_reference)(run=run, config=config, batch=batch, reference=first, iteration=v)
    batch = call(compute_advantages)(run=run, config=config, batch=batch, iteration=v)
    within_reach = [*batches, batch][-(config.buffer.max_age + 1) :]
    training_batch = call(select_training_batch)(
        run=run, config=config, batches=within_reach, before=training_batch, policy_version=v
    )
    trained = call(train)(
        run=run,
        config=config,
        training=training,
        training_batch=training_batch,
        batches=within_reach,
        policy=policy,
        sampler=sampler,
        state=state,
        iteration=v,
    )
    return Iterated(trained, within_reach, training_batch)
