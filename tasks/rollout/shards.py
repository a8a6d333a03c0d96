"""A rollout by several workers: each plays its share of the groups, a join makes the batch that one would have made.

    worker 0: groups 0, 3, 6, …  ─┐
    worker 1: groups 1, 4, 7, …  ─┼─► join: the first groups until enough of them have reward variance
    worker 2: groups 2, 5, 8, …  ─┘

No worker knows the rewards of the others; each takes its own for representative, and plays a few more groups than its
share. The join plays what is missing nevertheless, and leaves out what is left over.

The episodes are the same where vLLM computes a prompt alike whatever else it computes at once. On a CPU it does, bit
for bit, in float32 and in bfloat16. Where it does not, log-probabilities differ by rounding, and here and there a
token, where its draw falls that close to the border between two.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.json_files import read_object
from tasks.progress import no_progress
from tasks.rollout import processes
from tasks.rollout.batch import batch_metrics
from tasks.rollout.worker import RolloutWorker, rows_by_group

# Standard deviations of the number of groups with variance, about the root of a share of them, that a worker plays
# beyond its share. With the default settings and two to eight workers the join then plays 0.3 % of the groups at most.
SPARE = 1.0


def shard_numbers(config: RolloutConfig, shards: Sequence[int]) -> list[int]:
    """The numbers of the groups that these workers may play, in their order."""
    return [number for number in range(config.max_groups) if number % config.workers in shards]


def sample_shard(worker: RolloutWorker, shard: int) -> pa.Table:
    """The episodes that worker `shard` plays, of 0 to `config.workers` - 1."""
    config, share = worker.config, worker.config.groups / worker.config.workers
    worker.config = _with_groups(config, math.ceil(share + SPARE * math.sqrt(share)))
    return worker.play(shard_numbers(config, [shard]))[0]


def join_shards(
    worker: RolloutWorker, shards: Sequence[pa.Table | None], times: Sequence[Mapping[str, float]]
) -> tuple[pa.Table, dict[str, float]]:
    """The batch and its metrics, from what every worker played; None stands for one that is lost.

    The groups of a lost worker are left out, and the batch is smaller by its share. `times` has of each other worker
    how long it played and set up; those of the batch are the longest of each, and the join's own.
    """
    config = worker.config
    present = [number for number, shard in enumerate(shards) if shard is not None]
    known = pa.concat_tables([shard for shard in shards if shard is not None]).combine_chunks()
    numbers = shard_numbers(config, present)
    worker.config = _with_groups(config, math.ceil(config.groups * len(present) / config.workers))
    batch, count = worker.play(numbers, known)
    used, found = set(numbers[:count]), set(rows_by_group(known))
    seconds, setup_seconds = (max(t[name] for t in times) for name in ("time/rollout_s", "time/rollout_setup_s"))
    return batch, {
        **batch_metrics(batch, seconds + worker.play_s, setup_seconds + worker.setup_s),
        "rollout/joined_share": len(used - found) / count,  # of the batch's groups, played by the join
        "rollout/spare_share": len(found - used) / len(found),  # of the workers' groups, left out
        "rollout/lost_shards": float(config.workers - len(present)),
        "rollout/lost_groups": float(numbers[count - 1] + 1 - count),
    }


def sample_batch(worker: RolloutWorker) -> tuple[pa.Table, dict[str, float]]:
    """The batch of one worker, and its metrics: by itself, or by processes of this machine that are workers of it."""
    config = worker.config
    number = min(processes.count(read_object(worker.policy / "config.json"), config), config.groups)
    if number == 1:
        batch, _ = worker.play(range(config.max_groups))
        return batch, batch_metrics(batch, worker.play_s, worker.setup_s)
    began, progress = time.perf_counter(), worker.progress
    each = config.replace(
        workers=number,
        concurrent_episodes=math.ceil(config.concurrent_episodes / number),
        environment_concurrency=math.ceil(config.environment_concurrency / number),
    )
    first, *others = (replace(worker, config=each, progress=no_progress) for _ in range(number))
    first.progress = lambda done, wanted, note: progress(min(done * number, config.groups), config.groups, note)
    shards = processes.together(
        lambda: sample_shard(first, 0), sample_shard, [(other, shard) for shard, other in enumerate(others, 1)]
    )
    batch, _ = worker.play(range(config.max_groups), pa.concat_tables(shards).combine_chunks())
    setup_s = first.setup_s + worker.setup_s
    return batch, batch_metrics(batch, time.perf_counter() - began - setup_s, setup_s)


def _with_groups(config: RolloutConfig, groups: int) -> RolloutConfig:
    return config.replace(workers=1, groups=min(groups, config.max_groups))
