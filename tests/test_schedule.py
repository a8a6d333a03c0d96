"""The schedule simulator: small graphs worked by hand, and the workflow's own with whole numbers for seconds."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.layout import Cost, critical_path, laid_out, wall_time
from benchmarks.schedule import Measured, gpu_shares, in_one_process, measured, on_a_cluster, path_shares
from graphs import Node
from runs import a_run
from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.tracking import mlflow_run

INPUTS = {
    "run_name": "monday",
    "policy": "tiny",
    "environment": "blackjack",
    "environment_url": "",
    "iterations": 4,
    "seed": 0,
    "lag": 0,
    "config": GrpoConfig().resolved(get_environment("blackjack").defaults).to_dict(),
}
TIMES = Measured(
    inputs=INPUTS,
    first={"initial_policy": 7, "evaluate": 20, "rollout": 10, "train": 5},
    later={"initial_policy": 7, "evaluate": 3, "rollout": 2, "train": 4},
    sizes={"policy": 100, "state": 300, "batch": 10},
    seconds=60,
)


def node(name: str, after: str = "", role: str = "cpu", gpus: int = 0) -> Node:
    return Node(name, name, 0, role, frozenset(after.split()), {}, gpus)


def seconds(**of: float) -> Callable[[Node], Cost]:
    """Nothing but work, by stage; 0 for the others."""
    return lambda node: Cost(start=0, move=0, work=of.get(node.stage, 0.0) * node.share)


@cache  # it takes a second
def training(lag: int, iterations: int = 4, workers: int = 1) -> list[Node]:
    return TIMES.graph(iterations=iterations, lag=lag, workers=workers)


def spans(placed: Sequence) -> dict[str, tuple[float, float, int]]:
    return {p.node.name: (p.begin, p.end, p.pod) for p in placed}


def test_nodes_take_the_pods_that_are_free_in_the_order_of_the_graph() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d", "b c")]
    placed = laid_out(nodes, seconds(a=2, b=3, c=1, d=2), pods={"cpu": 2})
    assert spans(placed) == {"a": (0, 2, 0), "b": (0, 3, 1), "c": (2, 3, 0), "d": (3, 5, 0)}
    assert wall_time(placed) == 5
    # c waited for the pod of a, d for c.
    assert [p.node.name for p in critical_path(placed)] == ["a", "c", "d"]
    assert wall_time(laid_out(nodes, seconds(a=2, b=3, c=1, d=2), pods={})) == 5
    assert wall_time(laid_out(nodes, seconds(a=2, b=3, c=1, d=2), pods={"cpu": 1})) == 8


def test_nodes_are_served_in_the_order_in_which_they_are_ready() -> None:
    # b is ready at 1, c at 2, when the only pod of their role is taken until 4: b goes before c, whatever their order.
    nodes = [
        node("busy", role="training"),
        node("second"),
        node("c", "second", "training"),
        node("first"),
        node("b", "first", "training"),
    ]
    placed = laid_out(nodes, seconds(busy=4, first=1, second=2, b=1, c=1), pods={"training": 1})
    assert [p.node.name for p in placed if p.node.role == "training"] == ["busy", "b", "c"]
    assert [p.node.name for p in critical_path(placed)] == ["busy", "b", "c"]


def test_the_critical_path_has_no_gap() -> None:
    placed = laid_out(training(lag=1), seconds(rollout=3, train=2, evaluate=1), pods={"rollout": 1, "training": 1})
    path = critical_path(placed)
    assert path[0].begin == 0 and path[-1].end == wall_time(placed)
    assert all(a.end == b.begin for a, b in pairwise(path))


def test_lag_one_overlaps_rollout_and_training() -> None:
    pods, cost = {"rollout": 1, "training": 1}, seconds(rollout=3, train=2)
    # Each rollout waits for the training before: 4 x (3 + 2).
    assert wall_time(laid_out(training(lag=0), cost, pods=pods)) == 20
    # Rollouts follow one another without a pause, and the last training follows: 4 x 3 + 2.
    placed = laid_out(training(lag=1), cost, pods=pods)
    assert wall_time(placed) == 14
    assert [p.node.stage for p in critical_path(placed) if p.cost.work] == ["rollout"] * 4 + ["train"]
    # With two pods the rollouts of two iterations run side by side: 0-3 both, then 5-8 and 7-10, trained 10-12.
    assert wall_time(laid_out(training(lag=1), cost, pods={"rollout": 2, "training": 1})) == 12


def test_workers_share_a_rollout_where_there_are_pods() -> None:
    nodes = training(lag=0, workers=4)
    stages = Counter(n.stage for n in nodes)
    assert (stages["rollout_shard"], stages["join_rollout"], stages["rollout"]) == (16, 4, 0)
    cost = seconds(rollout_shard=12, join_rollout=1, train=2)
    assert wall_time(laid_out(nodes, cost, pods={"rollout": 4})) == 4 * (3 + 1 + 2)
    assert wall_time(laid_out(nodes, cost, pods={"rollout": 2})) == 4 * (6 + 1 + 2)


def test_a_training_of_several_ranks_has_as_many_gpus() -> None:
    config = {**GrpoConfig().to_dict(), "training": {"ranks": 4}}
    times = replace(TIMES, inputs={**INPUTS, "config": config})
    found = {(n.stage, n.gpus) for n in times.graph(iterations=1, lag=0, workers=2) if n.gpus}
    assert found == {
        ("train", 4),
        *((one, 1) for one in ("rollout_shard", "join_rollout", "evaluate", "score_reference")),
    }


def test_one_process_adds_up_its_stages_and_loads_once() -> None:
    # Policy 0; evaluations of the first policy and of the last; four iterations.
    assert in_one_process(TIMES, training(lag=0)) == 7 + (20 + 3) + (10 + 3 * 2) + (5 + 3 * 4)


def test_a_pod_starts_reads_works_and_writes() -> None:
    cost = on_a_cluster(
        TIMES, {"training": 60, "rollout": 90, "cpu": 15, "graph": 15, "join_rollout": 40}, bytes_per_s=10
    )
    last = [n for n in training(lag=0) if n.stage == "train"][-1]
    # Four batches; present policy and sampler, one and the same, twice; the trainer's state. Then policy and state.
    assert cost(last) == Cost(start=60, move=(4 * 10 + 2 * 100 + 300 + 100 + 300) / 10, work=4)
    # Policy 0 is an input of the loop, and a folder too. Each of two workers plays half of a rollout.
    nodes = training(lag=0, workers=2)
    (part, *_) = [n for n in nodes if n.stage == "rollout_shard"]
    assert cost(part) == Cost(start=90, move=(100 + 10 / 2) / 10, work=2 / 2)
    (join, *_) = [n for n in nodes if n.stage == "join_rollout"]  # reads the shards and the policy, writes the batch
    assert cost(join) == Cost(start=40, move=(10 + 100 + 10) / 10, work=1)
    (unrolls,) = [n for n in training(lag=0) if n.stage == "iterate"]
    assert cost(unrolls) == Cost(start=15, move=0, work=1)  # not measured in any run


def test_what_gpus_do_is_counted_in_seconds_of_all_of_them() -> None:
    nodes = [node("r", role="rollout", gpus=1), node("t", "r", role="training", gpus=2), node("other", "r")]
    work = {"r": 2, "t": 4, "other": 1}
    placed = laid_out(nodes, lambda n: Cost(start=1, move=0, work=work[n.stage]), pods={"rollout": 1, "training": 1})
    # 3 + 5 seconds by three GPUs: one held for 3, the other two for 5; they work 2 and 4.
    assert gpu_shares(placed, {"rollout": 1, "training": 1}) == (3, 13 / 24, 10 / 24)
    assert path_shares(placed) == "t 50%, r 25%, pods start 25%"


def test_a_long_training_is_a_chain_of_segments() -> None:
    nodes = training(lag=1, iterations=120)
    stages = Counter(n.stage for n in nodes)
    assert stages["rollout"] == stages["train"] == 120 and stages["iterate"] == 4 and stages["report"] == 1
    # Within a segment a rollout waits for the training before the last; the first of one for the whole segment before.
    cost = seconds(rollout=3, train=2)
    assert wall_time(laid_out(nodes, cost, pods={"rollout": 1, "training": 1})) == 2 * (50 * 3 + 2) + 20 * 3 + 2


def test_a_run_says_what_its_stages_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri, folder = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "monday"
    run_id = mlflow_run.open_run(uri=uri, name="monday", token="6f9c", parameters={}, tags={})
    run = a_run("monday", uri, run_id)
    for step, took in ((1, 2.0), (0, 10.0), (3, 4.0), (2, 3.0)):
        mlflow_run.log_metrics(run, {"stage/rollout_s": took, "rollout/episodes": 8.0}, step)
    for name, size in {
        "policies/00004": 100,
        "policies/00003": 1,
        "states/00004": 300,
        "trajectories/00003": 10,
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_bytes(bytes(size))
    (folder / "run.json").write_text(json.dumps({"inputs": INPUTS, "config": INPUTS["config"]}))
    (folder / "summary.json").write_text(json.dumps({"seconds": 60.0, "mlflow_run_id": run_id}))
    sizes = {"policy": 100.0, "state": 300.0, "batch": 10.0}
    assert measured(folder) == Measured(INPUTS, {"rollout": 10.0}, {"rollout": 3.0}, sizes, 60.0)


def test_a_run_of_several_workers_is_not_measured(tmp_path: Path) -> None:
    config = {**GrpoConfig().to_dict(), "rollout": {"workers": 4}}
    (tmp_path / "run.json").write_text(json.dumps({"inputs": INPUTS, "config": config}))
    with pytest.raises(ValueError, match=r"rollout.workers of .* is 4; allowed: 1, shares are computed"):
        measured(tmp_path)
