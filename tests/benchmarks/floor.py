"""How close rollout and training come to what their parts need, on BlackJack's default settings.

    make bench

In turns within one run, because machines are noisy:

    rollout     a batch, as the stage samples it, against the engine alone: the same requests in one list
    training    a stage's optimizer steps against forward, backward and optimizer alone, on rows laid out before
    processes   a batch by a process for each core against the same batch by one

The ratios are medians over the rounds, of wall time and of processor time. Both sides do the same work to the bit: the
tokens sampled are compared.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from rollouts import sample_batch
from tasks import threads
from tasks.advantage.advantages import add_advantages
from tasks.buffer.selection import gather, select_groups
from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.folders import use_scratch_folder
from tasks.reference.score import score_batch
from tasks.rollout import processes, shards, worker
from tasks.rollout.engine import Completion, Engine, open_engine
from tasks.rollout.loop import rare_garbage_collection
from tasks.training.cold_start import tiny_policy
from tasks.training.losses import StepTotals
from tasks.training.train import batch_loss, minibatches, trainable
from tasks.training.trainer import Trainer

ROUNDS = 7  # the first one warms up


class Recorder:
    """An engine that writes down what it is asked and what it answers."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.asked: dict[str, tuple[Any, dict[str, Any]]] = {}
        self.answered: dict[str, list[int]] = {}

    def add(self, prompt: Any, **settings: Any) -> str:
        request = self.engine.add(prompt, **settings)
        self.asked[request] = (list(prompt), settings)
        return request

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def step(self) -> Iterator[tuple[str, Completion]]:
        for request, completion in self.engine.step():
            self.answered[request] = completion.token_ids
            yield request, completion

    def abort(self, requests: Iterable[str]) -> None:
        self.engine.abort(requests)


def clocked(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, and the seconds and processor seconds that it took."""
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - processor


def rollout(config: GrpoConfig, policy: Path) -> tuple[pa.Table, list[tuple[float, ...]]]:
    """A batch, and of each round the seconds of the stage and the engine alone: wall, wall, processor, processor."""
    engine = open_engine(policy, config.rollout)
    batch, taken = pa.table({}), []
    for number in range(ROUNDS):
        recorder = Recorder(engine)
        engine.llm.reset_prefix_cache()
        worker.open_engine = lambda *_, recorder=recorder: recorder  # type: ignore[assignment]
        (batch, _), wall, processor = clocked(
            lambda: sample_batch(policy, config.rollout, environment="blackjack", url="", run_seed=0, iteration=0)
        )
        worker.open_engine = open_engine
        answered = [recorder.asked[request] for request in recorder.answered]
        engine.llm.reset_prefix_cache()

        def alone(answered: list[Any] = answered) -> list[list[int]]:
            replies: dict[str, list[int]] = {}
            with rare_garbage_collection():
                requests = [engine.add(prompt, **settings) for prompt, settings in answered]
                while engine.busy:
                    replies.update((request, completion.token_ids) for request, completion in engine.step())
            return [replies[request] for request in requests]

        replies, wall_alone, processor_alone = clocked(alone)
        assert replies == list(recorder.answered.values()), "the engine alone sampled other tokens"
        if number:
            taken.append((wall, wall_alone, processor, processor_alone))
    return batch, taken


def training(config: GrpoConfig, policy: Path, batch: pa.Table) -> list[tuple[float, ...]]:
    """The same for the optimizer steps of a training stage."""
    batch, _ = score_batch(batch, policy, config.training, config.rollout)
    batch, _ = add_advantages(batch)
    chosen = select_groups([batch], config.buffer, wanted=config.rollout.groups, uses={}, policy_version=0, seed=0)
    training_batch = gather([batch], chosen.group_ids)
    taken = []
    trainer = Trainer(policy, config.training, temperature=config.rollout.temperature, schedule_steps=1)

    def stage() -> None:
        data, _ = trainable(training_batch)
        loss = batch_loss(training_batch, data, trainer, config.algorithm)
        for _, _, samples in minibatches(data, config.training, seed=0, policy_version=0):
            trainer.step(data, samples.tolist(), loss)

    data, _ = trainable(training_batch)
    loss = batch_loss(training_batch, data, trainer, config.algorithm)
    steps = []
    for _, _, samples in minibatches(data, config.training, seed=0, policy_version=0):
        sampled = data.sampled_R[samples]
        totals = StepTotals(tokens=float(sampled.sum()), trajectories=float((sampled > 0).sum()))
        steps.append((trainer._microbatches(data, samples.tolist(), config.training.rows), totals))

    def parts() -> None:
        for microbatches, totals in steps:
            for rows in microbatches:
                loss(*trainer._forward(rows), rows, totals)[0].backward()
            trainer.optimizers.step()
            trainer.optimizers.zero_grad()

    for number in range(ROUNDS):
        _, wall, processor = clocked(stage)
        _, wall_parts, processor_parts = clocked(parts)
        if number:
            taken.append((wall, wall_parts, processor, processor_parts))
    return taken


def shared(config: GrpoConfig, policy: Path) -> list[tuple[float, float]]:
    """Of each round the seconds of a batch that a process for each core samples, and of one that this one samples."""
    taken = []
    for iteration in range(ROUNDS):
        batches, seconds = [], []
        for number in (threads.cores(), 1):
            os.environ[processes.NUMBER] = str(number)
            sampler = worker.RolloutWorker(policy, config.rollout, "blackjack", "", 0, iteration)
            (batch, _), wall, _ = clocked(lambda sampler=sampler: shards.sample_batch(sampler))
            batches.append(batch)
            seconds.append(wall)
        assert batches[0].equals(batches[1]), "other trajectories"
        if iteration:
            taken.append(tuple(seconds))
    return taken


def main() -> None:
    """Print the ratios."""
    use_scratch_folder()
    config = GrpoConfig().resolved(get_environment("blackjack").defaults)
    policy = tiny_policy(config.tiny, config.training, "blackjack", seed=0)
    batch, sampled = rollout(config, policy)
    table = Table(title=f"{len(batch):,} episodes; seconds, medians of {ROUNDS - 1} rounds in turn")
    for column in ("", "stage", "its parts alone", "ratio", "of processor time"):
        table.add_column(column, justify="left" if not column else "right")
    for name, taken in (("rollout", sampled), ("training", training(config, policy, batch))):
        wall, alone = (statistics.median(values) for values in list(zip(*taken, strict=True))[:2])
        ratio = statistics.median(stage / parts for stage, parts, _, _ in taken)
        processor = statistics.median(stage / parts for _, _, stage, parts in taken)
        table.add_row(name, f"{wall:.2f}", f"{alone:.2f}", f"{ratio:.2f}", f"{processor:.2f}")
    Console().print(table)
    taken = shared(config, policy)
    several, one = (statistics.median(values) for values in zip(*taken, strict=True))
    ratio = statistics.median(several / one for several, one in taken)
    print(f"a batch by {threads.cores()} processes {several:.2f} s, by one {one:.2f} s: {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
