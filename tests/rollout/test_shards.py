"""Rollouts by several workers, by a real engine and a real environment: the batch is that of one worker."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollouts import sample_batch
from tasks.config import RolloutConfig
from tasks.rollout.shards import join_shards, sample_shard, shard_numbers
from tasks.rollout.worker import RolloutWorker

# Nearly half of the groups have reward variance.
CONFIG = RolloutConfig(
    groups=24, max_groups=200, group_size=4, concurrent_episodes=64, max_tokens=4, max_turns=16, max_episode_tokens=256
)
TIMES = {"time/rollout_s": 2.0, "time/rollout_setup_s": 1.0}
OF_SHARDS = {"rollout/joined_share", "rollout/spare_share", "rollout/lost_shards", "rollout/lost_groups"}


def worker(policy: Path, config: RolloutConfig) -> RolloutWorker:
    return RolloutWorker(policy, config, "blackjack", "", run_seed=0, iteration=2)


def one(policy: Path, config: RolloutConfig) -> tuple[pa.Table, dict[str, float]]:
    """What a single worker samples."""
    return sample_batch(policy, config, environment="blackjack", url="", run_seed=0, iteration=2)


def joined(policy: Path, config: RolloutConfig, shards: Sequence[pa.Table | None]) -> tuple[pa.Table, dict[str, float]]:
    return join_shards(worker(policy, config), shards, [TIMES for shard in shards if shard])


def sampled(policy: Path, config: RolloutConfig) -> list[pa.Table]:
    """What each worker samples."""
    return [sample_shard(worker(policy, config), number) for number in range(config.workers)]


def played(policy: Path, config: RolloutConfig, groups: Sequence[int]) -> pa.Table:
    return worker(policy, config.replace(groups=1000, max_groups=1000)).play(groups)[0]


def check_same(found: tuple[pa.Table, dict[str, float]], wanted: tuple[pa.Table, dict[str, float]]) -> None:
    """The same rows and the same metrics; log-probabilities may differ by rounding, as vLLM computes other batches."""
    (table, metrics), (reference, expected) = found, wanted
    assert table.schema == reference.schema
    assert table.drop(["logprobs"]).equals(reference.drop(["logprobs"]))
    logprobs, others = (np.concatenate(t["logprobs"].to_pylist()) for t in (table, reference))
    assert np.abs(logprobs - others).max() < 1e-5
    assert metrics.keys() == expected.keys() | OF_SHARDS
    timed = {name for name in expected if name.startswith("time/") or name.endswith("_per_s")}
    assert {name: metrics[name] for name in expected.keys() - timed} == {
        name: expected[name] for name in expected.keys() - timed
    }
    assert metrics["rollout/lost_shards"] == metrics["rollout/lost_groups"] == 0


@pytest.fixture(scope="module")
def reference(tiny_policy: Path) -> tuple[pa.Table, dict[str, float]]:
    return one(tiny_policy, CONFIG)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_several_workers_sample_what_one_does(
    tiny_policy: Path, reference: tuple[pa.Table, dict[str, float]], workers: int
) -> None:
    config = CONFIG.replace(workers=workers)
    shards = sampled(tiny_policy, config)
    for number, shard in enumerate(shards):
        groups = {int(group[-5:]) for group in shard["group_id"].to_pylist()}
        assert groups == set(range(number, 200, workers)[: len(groups)])
        assert len(groups) < 200 // workers  # it knew when to stop
    table, metrics = joined(tiny_policy, config, shards)
    check_same((table, metrics), reference)
    of_shards, of_batch = sum(s.num_rows for s in shards), reference[0].num_rows
    unused = of_shards - of_batch * (1 - metrics["rollout/joined_share"])
    assert metrics["rollout/spare_share"] == pytest.approx(unused / of_shards)


def test_what_the_workers_lack_the_join_plays_and_what_they_have_too_many_it_leaves_out(
    tiny_policy: Path, reference: tuple[pa.Table, dict[str, float]]
) -> None:
    config = CONFIG.replace(workers=2)
    groups = int(reference[1]["rollout/groups"])
    even, odd = (shard_numbers(config, [shard]) for shard in (0, 1))
    few, many = played(tiny_policy, config, even[:3]), played(tiny_policy, config, odd)
    table, metrics = joined(tiny_policy, config, [few, many])
    check_same((table, metrics), reference)
    assert metrics["rollout/joined_share"] == (-(-groups // 2) - 3) / groups > 0.4
    assert metrics["rollout/spare_share"] == (100 - groups // 2) / 103
    assert metrics["time/rollout_s"] > 2.0 and metrics["time/rollout_setup_s"] > 1.0  # the longest and the join's own
    assert metrics["rollout/episodes_per_s"] == pytest.approx(4 * groups / metrics["time/rollout_s"])


def test_where_all_groups_are_played_none_is_played_twice(tiny_policy: Path) -> None:
    config = CONFIG.replace(max_groups=25)
    wanted = one(tiny_policy, config)
    assert wanted[1]["rollout/groups"] == 25 > wanted[1]["rollout/groups_with_variance"]  # the limit ended it
    for workers in (2, 24):
        found = joined(
            tiny_policy, config.replace(workers=workers), sampled(tiny_policy, config.replace(workers=workers))
        )
        check_same(found, wanted)
        assert found[1]["rollout/joined_share"] == found[1]["rollout/spare_share"] == 0
        assert found[1]["time/rollout_s"] == 2.0 and found[1]["time/rollout_setup_s"] == 1.0  # no engine was opened


def test_partial_formats_and_dropped_episodes_are_counted_as_by_one_worker(tiny_policy: Path) -> None:
    for config in (
        CONFIG.replace(max_groups=24, max_tokens=1, invalid_reward=-2, partial_format_bonus=0.25),
        CONFIG.replace(max_groups=24, max_turns=1, truncated="drop"),
    ):
        several = config.replace(workers=3)
        check_same(joined(tiny_policy, several, sampled(tiny_policy, several)), one(tiny_policy, config))


def test_a_lost_workers_groups_are_left_out_and_counted(
    tiny_policy: Path, reference: tuple[pa.Table, dict[str, float]]
) -> None:
    config = CONFIG.replace(workers=3)
    first, _, last = sampled(tiny_policy, config)
    table, metrics = joined(tiny_policy, config, [first, None, last])
    groups = [int(group[-5:]) for group in table["group_id"].unique().to_pylist()]
    # Two thirds of the batch: the others' groups in their order, until 16 of them have reward variance.
    assert groups == [number for number in range(groups[-1] + 1) if number % 3 != 1]
    assert metrics["rollout/groups_with_variance"] == 16
    assert metrics["rollout/groups"] == len(groups)
    assert metrics["rollout/lost_shards"] == 1
    assert metrics["rollout/lost_groups"] == groups[-1] + 1 - len(groups)
    rows = {row["trajectory_id"]: row for row in reference[0].drop(["logprobs"]).to_pylist()}
    shared = [row for row in table.drop(["logprobs"]).to_pylist() if row["trajectory_id"] in rows]
    assert len(shared) > 60 and all(row == rows[row["trajectory_id"]] for row in shared)

    few = config.replace(groups=5, max_groups=5, workers=2)  # of five groups three are lost with the first worker
    table, metrics = joined(tiny_policy, few, [None, played(tiny_policy, few, [1, 3])])
    assert [group[-1] for group in table["group_id"].unique().to_pylist()] == ["1", "3"]
    assert metrics["rollout/lost_groups"] == 2  # 0 and 2: group 4 comes after the last that was played
