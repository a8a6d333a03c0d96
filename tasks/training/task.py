"""Flyte task of the training stage, on one rank or on several (see `elastic.py`)."""

from pathlib import Path
from typing import NamedTuple

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.buffer.training_batch import TrainingBatch
from tasks.config import GrpoConfig, Run, TrainingConfig
from tasks.here import is_here
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, STARTED, read_metrics, show_iteration, stage, stage_folder
from tasks.training.elastic import Ranks


class Trained(NamedTuple):
    """The next policy version, and the trainer's state from which its training continues."""

    policy: FlyteDirectory
    state: FlyteDirectory


@task(
    task_config=Ranks(),
    cache=True,
    cache_version=CACHE_VERSION,
    cache_ignore_input_vars=("training",),  # a run may continue with other ranks
    **pod("training"),
)
def train(
    run: Run,
    config: GrpoConfig,
    training: TrainingConfig,
    training_batch: TrainingBatch,
    batches: list[FlyteDirectory],
    policy: FlyteDirectory,
    sampler: FlyteDirectory,
    state: FlyteDirectory | None,
    iteration: int,
) -> Trained:
    """Train policy `iteration` on the training batch; returns policy `iteration + 1`.

    `training` is that of `config`, with the ranks of this run; each of them calls this function. `sampler` is the
    policy that sampled the last of the batches: the same as `policy`, or with lag 1 its parent.
    """
    from tasks.buffer.selection import gather
    from tasks.history import carry_on
    from tasks.lineage.records import source_of
    from tasks.lineage.training import record_training
    from tasks.records import read_batch
    from tasks.rollout import curriculum
    from tasks.tracking import console
    from tasks.training.ranks import is_first, leave
    from tasks.training.train import next_policy

    with stage(run, "train", step=iteration) as s:
        folders, before = [Path(batch.download()) for batch in batches], Path(policy.download())
        target, target_state = stage_folder(run, "policies", iteration + 1), stage_folder(run, "states", iteration + 1)
        tables = [read_batch(folder) for folder in folders]
        rows = gather(tables, training_batch.group_ids)
        with console.bar(f"training policy {iteration + 1}", "steps") as progress:
            s.metrics = next_policy(
                rows,
                before,
                Path(sampler.download()),
                Path(state.download()) if state else None,
                config.replace(training=training),
                run,
                target=target,
                target_state=target_state,
                progress=progress,
            )
        if is_first():
            s.result, s.sources = target, [folders[-1], before]
            tokens, sampled = len(rows["token_ids"].combine_chunks().flatten()), read_metrics(folders[-1])
            s.metrics["train/tokens_per_s"] = config.training.epochs * tokens / s.metrics["time/train_s"]
            s.metrics |= {**training_batch.metrics, **iteration_seconds(sampled, s.metrics["time/train_s"])}
            carry_on(before, target, tables[-1], {**sampled, **s.metrics}, iteration)
            if config.rollout.curriculum:
                curriculum.record(target, tables)
            trained_on = {source_of(batch): folder for batch, folder in zip(batches, folders, strict=True)}
            record_training(run, target, source_of(policy), trained_on, training_batch.group_ids)
            show_iteration(run, iteration + 1, {**sampled, **s.metrics})
            if not s.metrics["train/steps"]:
                console.stage(
                    f"policy {iteration + 1} has the weights of policy {iteration}: no rewards of a group differ"
                )
    leave()
    return Trained(policy=FlyteDirectory(str(target)), state=FlyteDirectory(str(target_state)))


def iteration_seconds(sampled: dict[str, float], train_s: float) -> dict[str, float]:
    """How long the iteration took whose batch has the metrics `sampled`, and how much of it between its stages."""
    from tasks.tracking import console

    stages_s = sampled["time/rollout_s"] + sampled.get("time/reference_s", 0.0) + train_s
    seconds = console.seconds_here(sampled[STARTED], stages_s, here=is_here())
    return {"time/iteration_s": seconds, "time/overhead_s": seconds - stages_s}
