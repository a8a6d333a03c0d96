"""A rollout by several workers: each plays its share of the groups, a join makes the batch that one would have made.

    worker 0: groups 0, 3, 6, …  ─┐
    worker 1: groups 1, 4, 7, …  ─┼─► join: the groups of one worker's schedule, in their order
    worker 2: groups 2, 5, 8, …  ─┘

No worker knows how many groups of the others are decided; each takes its own for representative, and plays a few more
than its share. What one lacks nevertheless, the join plays; what is left over, it leaves out.

The same are the games where vLLM computes a prompt alike whatever else it computes at once. On a CPU it did, bit for
bit, in float32 and in bfloat16. Where it does not, log-probabilities differ by rounding, and here and there a token,
where its draw falls that close to the border between two.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.rollout.rollout import PARTIAL_FORMAT, Player, batch_metrics, play_until_enough

# Standard deviations of the number of decided groups, about the root of a share of them, that a worker plays beyond its
# share. With the default settings and two to eight workers the join then plays 0.3 % of the groups at most, in most
# batches none, and needs no engine; eight workers play a quarter too many. Without, it plays 1 to 3 % in nearly every
# batch, and eight play a seventh too many; with two, a third.
SPARE = 1.0


def shard_numbers(config: RolloutConfig, shards: Sequence[int]) -> list[int]:
    """The numbers of the groups that these workers may play, in their order."""
    return [number for number in range(config.max_groups) if number % config.workers in shards]


def groups_of_shard(config: RolloutConfig) -> int:
    """Decided groups that each worker looks for: its share, and a few more."""
    share = config.groups / config.workers
    return math.ceil(share + SPARE * math.sqrt(share))


def sample_shard(player: Player, shard: int) -> pa.Table:
    """The games that worker `shard` plays, of 0 to `config.workers` - 1, with the column PARTIAL_FORMAT."""
    config = player.config
    return play_until_enough(*_part(config, [shard], groups_of_shard(config)), player.play)[0]


def join_shards(
    player: Player, shards: Sequence[pa.Table | None], times: Sequence[Mapping[str, float]]
) -> tuple[pa.Table, dict[str, float]]:
    """The batch and its metrics, from what every worker played; None stands for one that is lost.

    The groups of a lost worker are left out, nobody plays them: as much smaller is the batch. `times` has of each other
    worker how long it played and set up; those of the batch are the longest of each, and the join's own.
    """
    config = player.config
    there = [number for number, shard in enumerate(shards) if shard is not None]
    sampled = pa.concat_tables([shard for shard in shards if shard is not None]).combine_chunks()
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(_numbers(sampled)):
        rows_of.setdefault(int(number), []).append(row)
    found = set(rows_of)

    def play(numbers: Sequence[int]) -> pa.Table:
        nonlocal sampled
        missing = [number for number in numbers if number not in rows_of]
        if missing:
            played = player.play(missing)
            for row, number in enumerate(_numbers(played), start=sampled.num_rows):
                rows_of.setdefault(int(number), []).append(row)
            sampled = pa.concat_tables([sampled, played]).combine_chunks()
        return sampled.take([row for number in numbers for row in rows_of[number]])

    numbers, wanted = _part(config, there, config.groups * len(there) / config.workers)
    games, played = play_until_enough(numbers, wanted, play)
    used = set(numbers[:played])
    seconds, setup_seconds = (max(t[name] for t in times) for name in ("time/rollout_s", "time/rollout_setup_s"))
    metrics = {
        **batch_metrics(games, seconds + player.play_s, setup_seconds + player.setup_s),
        "rollout/joined_share": len(used - found) / played,  # of the batch's groups, played by the join
        "rollout/spare_share": len(found - used) / len(found),  # of the workers' groups, left out
        "rollout/lost_shards": float(config.workers - len(there)),
        "rollout/lost_groups": float(numbers[played - 1] + 1 - played),
    }
    return games.drop([PARTIAL_FORMAT.name]), metrics


def _part(config: RolloutConfig, shards: Sequence[int], groups: float) -> tuple[list[int], RolloutConfig]:
    """The numbers that these workers may play, and the settings to find `groups` decided ones among them."""
    numbers = shard_numbers(config, shards)
    most = len(numbers)
    return numbers, replace(config, workers=1, groups=min(most, math.ceil(groups)), max_groups=most)


def _numbers(games: pa.Table) -> np.ndarray:
    """The number of each row's group."""
    return np.array([int(group.rsplit("-", 1)[1]) for group in games["group_id"].to_pylist()])
