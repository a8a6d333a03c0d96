"""How long a training would take on a cluster: its compiled graph laid on pods, with the times of a measured run.

    make schedule                                                      # measures a run of six iterations first
    PYTHONPATH=tests python tests/benchmarks/schedule.py --run runs/monday --pods rollout=8 --start rollout=120
    … --config FILE --seconds rollout=240,train=180 --mb policy=3100    # what another machine or model took

    … --model 1.5                                    # invented times and sizes of a model of 0.5, 1.5 or 8 B, no run

First it predicts the run that it has the times of: one process, one stage after another. Then lag 0 with warm pods and
with pods apart, larger lags, and several workers for a rollout. It prints what it assumes; none of it has been compared
with a cluster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.layout import Cost, Placed, critical_path, laid_out, wall_time
from graphs import Node, unrolled
from tasks.config import DEFAULT_ENVIRONMENT, GrpoConfig, require
from tasks.environments.catalog import get_environment
from tasks.tracking.mlflow_store import client

ROOT = Path(__file__).parents[2]
# Lag, workers of a rollout, iterations of a warm pod (0: pods apart).
PLANS = (*((0, 1, n) for n in (0, 4, 8, 16)), *((0, n, 0) for n in (4, 8)), *((n, 1, 0) for n in (1, 2)), (1, 4, 0))
LIMIT = 0.1  # the prediction of the measured run is to be nearer than this
# Seconds from a task that is due to its first line of work: a node found, the image there, imports, weights, engine. By
# role, and of the join, which plays nothing in most batches and then opens no engine.
START = {"cpu": 15.0, "graph": 15.0, "policy": 40.0, "training": 60.0, "rollout": 90.0, "join_rollout": 40.0}
START["warm"] = 120.0  # opens both
WITHIN = ("rollout", "score_reference", "compute_advantages", "select_training_batch", "train")  # of a warm pod
# Invented, for one GPU of 80 GB: seconds of stages, MB of folders, seconds of starts. 8 B trains adapters only.
MODELS: dict[str, tuple[dict[str, float], dict[str, float], dict[str, float]]] = {
    "0.5": ({"rollout": 60, "train": 45, "evaluate": 40}, {"policy": 1000, "state": 6000, "batch": 20}, {}),
    "1.5": ({"rollout": 240, "train": 120, "evaluate": 120}, {"policy": 3100, "state": 18500, "batch": 20}, {}),
    "8": (
        {"rollout": 600, "train": 480, "evaluate": 300},
        {"policy": 16000, "state": 33000, "batch": 20},
        {"rollout": 180, "training": 120, "warm": 240},
    ),
}
UNMEASURED = (
    1.0  # seconds of work of a stage that the run does not measure: create_run, a compilation, retention, a join
)
# What a stage reads, by the name of its input, and what it writes: policies, trainer states, batches.
READ = {"policy": "policy", "reference": "policy", "sampler": "policy", "state": "state"} | dict.fromkeys(
    ("batch", "batches", "shards"), "batch"
)
WRITTEN = {"initial_policy": ("policy",), "train": ("policy", "state")} | dict.fromkeys(
    ("rollout", "rollout_shard", "join_rollout", "score_reference", "compute_advantages"), ("batch",)
)


@dataclass(frozen=True)
class Measured:
    """What one local run says: its inputs; the seconds of each stage the first time, when much is still to be loaded,
    and later (the mean, because what is predicted is a sum); the bytes of a policy, a trainer state and a batch; the
    seconds of the whole run."""

    inputs: dict[str, object]
    first: dict[str, float]
    later: dict[str, float]
    sizes: dict[str, float]
    seconds: float

    def graph(self, *, iterations: int, lag: int, workers: int = 1, per_pod: int = 0) -> list[Node]:
        """The nodes of the same training, with other iterations, lag, workers of a rollout and iterations a pod."""
        config = GrpoConfig.from_dict(self.inputs["config"])  # type: ignore[arg-type]
        last = max(config.retention.last, lag + 2)
        config = config.replace(
            rollout=config.rollout.replace(workers=workers),
            retention=config.retention.replace(last=last),
            cluster=config.cluster.replace(iterations_per_pod=per_pod),
        )
        return unrolled(config, iterations=iterations, lag=lag)


def run_for(iterations: int, home: Path) -> Path:
    """The folder of a run with the default settings, made by the command line in a process of its own."""
    line = [str(Path(sys.executable).with_name("pyflyte")), "run", str(ROOT / "workflows/grpo.py"), "grpo"]
    line += ["--run_name", "measured", "--iterations", str(iterations)]
    own = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    own |= {"FLYTE_LOCAL_CACHE_ENABLED": "false", "PYTHONPATH": str(ROOT)}
    subprocess.run(line, cwd=home, env=own, check=True)
    return home / "runs" / "measured"


def measured(folder: Path) -> Measured:
    """Read a run's folder, and MLflow beside it or where MLFLOW_TRACKING_URI says."""
    record = json.loads((folder / "run.json").read_text())
    inputs = {**record["inputs"], "config": record["config"]}
    workers = GrpoConfig.from_dict(inputs["config"]).rollout.workers
    require(workers == 1, f"rollout.workers of {folder}", workers, "1, shares are computed from a whole rollout's time")
    summary = json.loads((folder / "summary.json").read_text())
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute().parent / 'mlflow.db'}"
    times = Measured(inputs, {}, {}, {}, summary["seconds"])
    for stage in dict.fromkeys(node.stage for node in times.graph(iterations=1, lag=0)):
        points = client(uri).get_metric_history(summary["mlflow_run_id"], f"stage/{stage}_s")
        if values := [point.value for point in sorted(points, key=lambda point: point.step)]:
            times.first[stage], times.later[stage] = values[0], statistics.fmean(values[1:] or values)
    for kind, of in {"policy": "policies", "state": "states", "batch": "trajectories"}.items():
        newest = max((folder / of).iterdir())
        times.sizes[kind] = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return times


def invented(model: str) -> Measured:
    """Times and sizes of a model that nobody has measured, for 32 iterations with the default settings."""
    seconds, sizes, _ = MODELS[model]
    config = GrpoConfig().resolved(get_environment(DEFAULT_ENVIRONMENT).defaults).to_dict()
    inputs: dict[str, object] = {"iterations": 32, "lag": 0, "config": config}
    return Measured(inputs, seconds, seconds, {kind: 1e6 * mb for kind, mb in sizes.items()}, 0.0)


def in_one_process(times: Measured, nodes: Sequence[Node]) -> float:
    """Seconds of the nodes one after another in one process: what is loaded stays loaded, nothing is moved."""
    return sum((times.later if node.number else times.first).get(node.stage, 0.0) for node in nodes)


def on_a_cluster(times: Measured, start: Mapping[str, float], bytes_per_s: float) -> Callable[[Node], Cost]:
    """Seconds of a node in a pod of its own."""

    def cost(node: Node) -> Cost:
        if node.stage == "warm_iterations":  # its share is the number of its iterations
            each = sum(times.later.get(stage, UNMEASURED) for stage in WITHIN)
            sizes = sum(times.sizes[kind] for kind in ("policy", "state", "batch"))
            return Cost(start["warm"], sizes * (1 + node.share) / bytes_per_s, each * node.share)
        stage = "rollout" if node.stage == "rollout_shard" else node.stage
        read = sum(times.sizes[READ[var]] * count for var, count in node.reads.items() if var in READ)
        written = sum(times.sizes[kind] for kind in WRITTEN.get(node.stage, ())) * node.share
        return Cost(
            start=start.get(stage, start[node.role]),
            move=(read + written) / bytes_per_s,
            work=times.later.get(stage, UNMEASURED) * node.share,
        )

    return cost


def gpu_shares(placed: Sequence[Placed], pods: Mapping[str, int]) -> tuple[int, float, float]:
    """How many GPUs these pods have; and the share of the seconds of all of them, from the first node to the last, that
    pods held them, and that they worked."""
    gpus = sum(of * max([p.node.gpus for p in placed if p.node.role == role], default=0) for role, of in pods.items())
    whole = wall_time(placed) * gpus
    held = sum((p.end - p.begin) * p.node.gpus for p in placed)
    worked = sum(p.cost.work * p.node.gpus for p in placed)
    return gpus, held / whole, worked / whole


def path_shares(placed: Sequence[Placed]) -> str:
    """What the critical path consists of, the longest first."""
    seconds: Counter[str] = Counter()
    for step in critical_path(placed):
        seconds[step.node.stage] += step.cost.work
        seconds["pods start"] += step.cost.start
        seconds["data moves"] += step.cost.move
    whole = wall_time(placed)
    return ", ".join(f"{k} {value / whole:.0%}" for k, value in seconds.most_common(4) if value >= 0.005 * whole)


def assumptions(times: Measured, pods: Mapping[str, int], start: Mapping[str, float], mb_per_s: float) -> Iterator[str]:
    """What the simulation takes for granted, a sentence each."""

    def listed(values: Mapping[str, float], form: str) -> str:
        return ", ".join(f"{name} {value:{form}}" for name, value in values.items())

    yield "the graph is the one that a cluster compiles; each node is a pod of its own, first come, first served"
    yield f"seconds of work, as once warm in the measured run or as given: {listed(times.later, '.2f')}"
    yield f"other stages work {UNMEASURED:g} s, also the join of several workers, which plays nothing"
    yield f"seconds until a pod works (node, image, imports, weights, engine): {listed(start, 'g')}"
    sizes = listed({kind: size / 1e6 for kind, size in times.sizes.items()}, ".1f")
    yield f"inputs and results move at {mb_per_s:g} MB/s; in MB: {sizes}"
    yield f"pods at once: {listed(pods, 'g')}, and one for each further worker of a rollout; of other roles any number"
    yield "workers share a rollout evenly; nothing fails, is repeated or found in the cache"


def numbers(kind: type) -> Callable[[str], dict[str, float]]:
    """Reads "rollout=8,training=2"."""

    def read(given: str) -> dict[str, float]:
        return {name: kind(value) for name, _, value in (pair.partition("=") for pair in given.split(","))}

    read.__name__ = "name=number,name=number"
    return read


def main(console: Console) -> None:
    """Measure or read, predict, lay out, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a finished local run (default: one is made)")
    parser.add_argument("--iterations", type=int, help="of the graph (default: the run's own, 6 where one is made)")
    parser.add_argument("--pods", type=numbers(int), default={}, help="pods at once by role")
    parser.add_argument("--start", type=numbers(float), default={}, help="seconds until a pod of a role works")
    parser.add_argument("--seconds", type=numbers(float), default={}, help="of a stage, in the place of measured ones")
    parser.add_argument("--mb", type=numbers(float), default={}, help="of a policy, a state, a batch, likewise")
    parser.add_argument("--config", type=Path, help="settings of the graph, JSON or YAML (default: the run's own)")
    parser.add_argument("--mb-per-s", type=float, default=500.0, help="to and from the object storage")
    parser.add_argument("--model", choices=MODELS, help="invented times and sizes in the place of a run's")
    given = parser.parse_args()
    if given.model:
        times, own_start = invented(given.model), MODELS[given.model][2]
        ran = int(str(times.inputs["iterations"]))
    else:
        own_start = {}
        with tempfile.TemporaryDirectory() as home:
            times = measured(given.run or run_for(given.iterations or 6, Path(home)))
        ran = int(str(times.inputs["iterations"]))
        predicted = in_one_process(times, times.graph(iterations=ran, lag=int(str(times.inputs["lag"]))))
        console.print(
            f"one process, {ran} iterations: predicted {predicted:.1f} s, measured {times.seconds:.1f} s, "
            f"off by {predicted / times.seconds - 1:+.1%} (allowed: {LIMIT:.0%})"
        )
    config = yaml.safe_load(given.config.read_text()) if given.config else times.inputs["config"]
    sizes = {kind: 1e6 * size for kind, size in given.mb.items()}
    times = replace(
        times,
        inputs={**times.inputs, "config": config},
        later={**times.later, **given.seconds},
        sizes={**times.sizes, **sizes},
    )
    start, pods = {**START, **own_start, **given.start}, {"rollout": 2, "training": 2, **given.pods}
    stated = assumptions(times, pods, start, given.mb_per_s)
    console.print("\nassumed:", *(f"  {line}" for line in stated), sep="\n")
    cost, iterations = on_a_cluster(times, start, given.mb_per_s * 1e6), given.iterations or ran
    table = Table(title=f"{iterations} iterations on a cluster", title_justify="left")
    for column in (
        "lag",
        "rollout workers",
        "iterations a pod",
        "wall time, s",
        "GPUs",
        "held",
        "working",
        "the critical path",
    ):
        table.add_column(column, justify="left" if column == "the critical path" else "right")
    for lag, workers, per_pod in PLANS:
        room = {**pods, "rollout": pods["rollout"] + max(workers - 1, lag - 1)}
        if per_pod:
            room |= {"rollout": 1, "training": 0, "warm": 1}  # another pod evaluates
        nodes = times.graph(iterations=iterations, lag=lag, workers=workers, per_pod=per_pod)
        placed = laid_out(nodes, cost, room)
        gpus, held, worked = gpu_shares(placed, room)
        row = (
            lag,
            workers,
            per_pod or "-",
            f"{wall_time(placed):,.0f}",
            gpus,
            f"{held:.0%}",
            f"{worked:.0%}",
            path_shares(placed),
        )
        table.add_row(*map(str, row))
    console.print(table)


if __name__ == "__main__":
    main(Console(width=160, soft_wrap=True))
