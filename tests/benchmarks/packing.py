"""Packed against unpacked training, on the BlackJack trajectories that `make run` samples.

    make bench

The same optimizer steps, with BlackJack's default settings, by several layouts of the same trajectories:

    packed               several trajectories in a row of training.seq_len, what they have in common once
    padded to longest    each trajectory in its own row, all as long as the longest of the optimizer step
    padded to seq_len    each trajectory in its own row of training.seq_len

First with the pairs of the default settings, then with groups of 16. The layouts take turns within one run, because
machines are noisy. The rates are medians over the rounds; they count the trajectories' own tokens, without padding, and
shared tokens once for each trajectory.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rollouts import sample_batch
from tasks.advantage.advantages import add_advantages
from tasks.buffer.selection import gather, select_groups
from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.folders import use_scratch_folder
from tasks.reference.score import score_batch
from tasks.training.cold_start import tiny_policy
from tasks.training.packing import FlatSamples, Rows, build_rows
from tasks.training.train import batch_loss, trainable
from tasks.training.trainer import Trainer

ROUNDS = 8
STEPS = 8  # optimizer steps a round


class Padded(Trainer):
    """Each sample in its own row, all of an optimizer step in one microbatch, padded to the longest."""

    def plan(self, data: FlatSamples, samples: Sequence[int]) -> list[list[int]]:
        return [[r] for r in samples]


class PaddedToSeqLen(Padded):
    """The same with rows of seq_len."""

    def _microbatches(self, data: FlatSamples, samples: Sequence[int], size: int) -> list[Rows]:
        plan = self.plan(data, samples)
        parts = [plan[i : i + size] for i in range(0, len(plan), size)]
        return [build_rows(data, part, multiple_of=self.config.seq_len) for part in parts]


def blackjack_batch(config: GrpoConfig) -> tuple[pa.Table, Path]:
    """The training batch of the first stage of a run, and the policy that it trains."""
    policy = tiny_policy(config.tiny, config.training, "blackjack", seed=0)
    batch, _ = sample_batch(policy, config.rollout, environment="blackjack", url="", run_seed=0, iteration=0)
    batch, _ = score_batch(batch, policy, config.training, config.rollout)
    batch, _ = add_advantages(batch)
    chosen = select_groups([batch], config.buffer, wanted=config.rollout.groups, uses={}, policy_version=0, seed=0)
    return gather([batch], chosen.group_ids), policy


def compare(config: GrpoConfig) -> None:
    """Print how fast each layout trains with groups of `config.rollout.group_size`."""
    minibatch = config.training.minibatch_size
    training_batch, policy = blackjack_batch(config)
    data, _ = trainable(training_batch)
    steps = np.array_split(np.arange(len(data)), round(len(data) / minibatch))[:STEPS]
    tokens = sum(int(data.lengths_R[samples].sum()) for samples in steps)

    trainers, seconds = {}, {}
    for name, layout, changes in (
        ("packed", Trainer, {}),
        ("padded to longest", Padded, {"rows": 2 * minibatch}),
        ("padded to seq_len", PaddedToSeqLen, {}),
    ):
        training = config.training.replace(**changes)
        trainers[name] = layout(policy, training, temperature=config.rollout.temperature, schedule_steps=1)
        seconds[name] = []
    for number in track(range(ROUNDS + 1), "rounds"):
        for name, trainer in trainers.items():
            loss = batch_loss(training_batch, data, trainer, config.algorithm)
            started = time.perf_counter()
            for samples in steps:
                trainer.step(data, samples.tolist(), loss)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)

    lengths, size = data.lengths_R, config.rollout.group_size
    title = f"groups of {size}: {len(data):,} trajectories of {lengths.mean():.0f} tokens, at most {lengths.max()}"
    table = Table(title=title)
    table.add_column("layout")
    table.add_column("training tokens/s", justify="right")
    table.add_column("packed is so many times as fast", justify="right")
    packed = statistics.median(seconds["packed"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        table.add_row(name, f"{tokens / median:,.0f}", f"{median / packed:.2f}")
    Console().print(table)


def main() -> None:
    """Compare with the default pairs, and with groups of 16."""
    use_scratch_folder()
    pairs = GrpoConfig().resolved(get_environment("blackjack").defaults)
    compare(pairs)
    compare(pairs.replace(rollout=pairs.rollout.replace(groups=64, max_groups=512, group_size=16)))


if __name__ == "__main__":
    main()
