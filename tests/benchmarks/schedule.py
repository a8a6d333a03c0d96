"""How long a training would take on a cluster: its compiled graph laid on pods, with the times of a measured run.

    make schedule                                                      # measures a run of six iterations first
    PYTHONPATH=tests python tests/benchmarks/schedule.py --run runs/monday --pods rollout=8 --start rollout=120
    … --config FILE --seconds rollout=240,train=180 --mb policy=3100    # what another machine or model took

First it predicts the run that it has the times of: one process, one stage after another. Then lag 0 and 1, with one and
with several workers for a rollout. What it assumes it prints; none of it has been compared with a cluster.
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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from tasks.rollout.rollout import groups_to_play

from benchmarks.layout import Cost, Placed, critical_path, laid_out, wall_time
from graphs import Node, unrolled
from tasks.config import GrpoConfig, RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.evaluation.pictures import LIGHT, figure_of, save
from tasks.rollout.shards import groups_of_shard
from tasks.settings import require
from tasks.stages import read_metrics
from tasks.tracking.mlflow_store import client
from workflows.grpo import grpo

ROOT = Path(__file__).parents[2]
WORKERS = (1, 2, 4, 8)
LIMIT = 0.1  # the prediction of the measured run is to be nearer than this
# Seconds from a task that is due to its first line of work: a node found, the image there, imports, weights, engine. By
# role, and of the join, which plays nothing in most batches and then opens no engine.
START = {"cpu": 15.0, "graph": 15.0, "policy": 40.0, "training": 60.0, "rollout": 90.0, "join_rollout": 40.0}
UNMEASURED = 1.0  # seconds that a stage works which the run does not measure: prepare, a compilation, retire, a join
# What a stage reads, by the name of its input, and what it writes: policies, trainer states, batches.
READ = {"policy": "policy", "reference": "policy", "sampler": "policy", "state": "state"} | dict.fromkeys(
    ("batch", "batches", "shards"), "batch"
)
WRITTEN = {"initial_policy": ("policy",), "train": ("policy", "state")} | dict.fromkeys(
    ("rollout", "rollout_shard", "join_rollout", "score_reference", "compute_advantages"), ("batch",)
)


@dataclass(frozen=True)
class Measured:
    """What one local run says: its inputs, the seconds of each stage the first time, when much is still to be loaded,
    and later (the mean, for what is predicted is a sum); the bytes of a policy, a trainer state and a batch; the
    seconds of the whole; and the share of the last batch's groups whose rewards differ."""

    inputs: dict[str, object]
    first: dict[str, float]
    later: dict[str, float]
    sizes: dict[str, float]
    seconds: float
    has_reward_variance: float


@contextmanager
def a_run(iterations: int) -> Iterator[Path]:
    """The folder of a run with the default settings, made by the command line in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        line = [str(Path(sys.executable).with_name("pyflyte")), "run", str(ROOT / "workflows/grpo.py"), "grpo"]
        line += ["--run_name", "measured", "--iterations", str(iterations)]
        own = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
        own |= {"FLYTE_LOCAL_CACHE_ENABLED": "false", "PYTHONPATH": str(ROOT)}
        subprocess.run(line, cwd=home, env=own, check=True)
        yield Path(home) / "runs" / "measured"


def measured(folder: Path) -> Measured:
    """Read a run's folder, and MLflow beside it or where MLFLOW_TRACKING_URI says."""
    record = json.loads((folder / "run.json").read_text())
    inputs = {**record["inputs"], "config": record["config"]}
    workers = GrpoConfig.from_dict(inputs["config"]).rollout.workers
    require(workers == 1, f"rollout.workers of {folder}", workers, "1, shares are reckoned from a whole rollout's time")
    summary = json.loads((folder / "summary.json").read_text())
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute().parent / 'mlflow.db'}"
    stages = dict.fromkeys(node.stage for node in graph(inputs, iterations=1, lag=0))
    times = {}
    for stage in stages:
        points = client(uri).get_metric_history(summary["mlflow_run_id"], f"stage/{stage}_s")
        if points:
            times[stage] = [point.value for point in sorted(points, key=lambda point: point.step)]
    last = read_metrics(max((folder / "trajectories").iterdir()))
    return Measured(
        inputs=inputs,
        first={stage: values[0] for stage, values in times.items()},
        later={stage: statistics.fmean(values[1:] or values) for stage, values in times.items()},
        sizes={
            kind: sum(path.stat().st_size for path in max((folder / of).iterdir()).rglob("*") if path.is_file())
            for kind, of in {"policy": "policies", "state": "states", "batch": "trajectories"}.items()
        },
        seconds=summary["seconds"],
        has_reward_variance=last["rollout/groups_with_variance"] / last["rollout/groups"],
    )


def graph(inputs: Mapping[str, object], *, iterations: int, lag: int, workers: int = 1) -> list[Node]:
    """The nodes of the training with these inputs, but for the iterations, the lag and the workers of a rollout."""
    config = GrpoConfig.from_dict(inputs["config"])  # type: ignore[arg-type]
    config = config.replace(rollout=config.rollout.replace(workers=workers))
    return unrolled(grpo, {**inputs, "config": config, "iterations": iterations, "lag": lag})


def parts_of_workers(rollout: RolloutConfig, has_reward_variance: float, draws: int = 1000) -> list[float]:
    """What each of `rollout.workers` plays of what one alone would, the fewest first: means over draws.

    Each looks for its share of decided groups and a few more, in waves as large as the groups before let expect, and
    any group is decided with the same probability. The last of the list is the one that the join waits for.
    """
    draw, workers = np.random.default_rng(0), rollout.workers

    def played(settings: RolloutConfig) -> int:
        groups = kept = 0
        while more := groups_to_play(groups, kept, settings):
            groups += more
            kept += draw.binomial(more, has_reward_variance)
        return groups

    most = rollout.max_groups // workers
    shard = rollout.replace(workers=1, groups=min(most, groups_of_shard(rollout)), max_groups=most)
    alone = np.mean([played(rollout.replace(workers=1)) for _ in range(draws)])
    return (np.mean([sorted(played(shard) for _ in range(workers)) for _ in range(draws)], axis=0) / alone).tolist()


def in_one_process(times: Measured) -> Callable[[Node], Cost]:
    """Seconds of a node of the measured run itself: what it loads stays loaded, nothing is moved."""

    def cost(node: Node) -> Cost:
        seconds = times.first if node.number == 0 else times.later
        return Cost(start=0.0, move=0.0, work=seconds.get(node.stage, 0.0))

    return cost


def on_a_cluster(times: Measured, start: Mapping[str, float], bytes_per_s: float) -> Callable[[Node], Cost]:
    """Seconds of a node in a pod of its own."""
    rollout = GrpoConfig.from_dict(times.inputs["config"]).rollout  # type: ignore[arg-type]

    @cache
    def parts(workers: int) -> list[float]:
        return parts_of_workers(rollout.replace(workers=workers), times.has_reward_variance)

    def cost(node: Node) -> Cost:
        stage, share = node.stage, node.share
        if stage == "rollout_shard":
            stage, share = "rollout", parts(round(1 / share))[int(node.name.rsplit("-", 1)[1])]
        read = sum(times.sizes[READ[var]] * count for var, count in node.reads.items() if var in READ)
        written = sum(times.sizes[kind] for kind in WRITTEN.get(node.stage, ())) * share
        work = times.later.get(stage, UNMEASURED) * share
        begin = start.get(stage, start[node.role])
        return Cost(start=begin, move=(read + written) / bytes_per_s, work=work)

    return cost


def gpu_shares(placed: Sequence[Placed], pods: Mapping[str, int]) -> tuple[int, float, float]:
    """How many GPUs these pods have, and of the seconds of all of them from the first node to the last: the share that
    pods held, and that they worked."""
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
    shares = [f"{name} {value / whole:.0%}" for name, value in seconds.most_common(4) if value >= 0.005 * whole]
    return ", ".join(shares)


def draw(panels: Mapping[str, Sequence[Placed]], path: Path) -> None:
    """A bar a node, a row a pod; pale while the pod starts."""
    from matplotlib.patches import Patch

    stages = ("rollout_shard", "train", "score_reference", "evaluate", "initial_policy", "join_rollout")
    colours = dict(zip(stages, LIGHT.palette, strict=False))
    rows = [sorted({(p.node.role, p.pod) for p in placed}, reverse=True) for placed in panels.values()]
    with figure_of((14, 2 + 0.3 * sum(map(len, rows))), "The training on a cluster", LIGHT) as figure:
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=[len(row) for row in rows])
        for axes, row, (title, placed) in zip(all_axes[:, 0], rows, panels.items(), strict=True):
            for p in placed:
                y, colour = row.index((p.node.role, p.pod)), colours.get(p.node.stage, LIGHT.faint)
                axes.barh(y, p.end - p.begin, left=p.begin, color=colour, alpha=0.3)
                axes.barh(y, p.cost.work, left=p.end - p.cost.work, color=colour, edgecolor=LIGHT.ground, linewidth=0.3)
            axes.set_yticks(range(len(row)), [f"{role} {pod}" for role, pod in row])
            axes.set_title(f"{title}: {wall_time(placed):,.0f} s", loc="left")
            axes.spines[["top", "right"]].set_visible(False)
        all_axes[-1, 0].set_xlabel("seconds; pale while a pod starts and data moves")
        handles = [Patch(color=colour, label=stage) for stage, colour in {**colours, "others": LIGHT.faint}.items()]
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
        save(figure, path)


def assumptions(
    times: Measured, workers: Sequence[int], pods: Mapping[str, int], start: Mapping[str, float], mb_per_s: float
) -> Iterator[str]:
    """What the simulation takes for granted, a sentence each."""

    def listed(values: Mapping[str, float], form: str) -> str:
        return ", ".join(f"{name} {value:{form}}" for name, value in values.items())

    yield "the graph is the one that a cluster compiles; each node is a pod of its own, first come, first served"
    yield f"seconds of work, as once warm in the measured run or as given: {listed(times.later, '.2f')}"
    yield f"other stages work {UNMEASURED:g} s, the join of several workers too, which plays nothing"
    yield f"seconds until a pod works (node, image, imports, weights, engine): {listed(start, 'g')}"
    sizes = listed({kind: size / 1e6 for kind, size in times.sizes.items()}, ".1f")
    yield f"inputs and results move at {mb_per_s:g} MB/s; in MB: {sizes}"
    yield f"pods at once: {listed(pods, 'g')}, and one for each further worker of a rollout; of other roles any number"
    rollout = GrpoConfig.from_dict(times.inputs["config"]).rollout  # type: ignore[arg-type]
    found = {w: parts_of_workers(rollout.replace(workers=w), times.has_reward_variance) for w in workers if w > 1}
    parts = ", ".join(f"{part[-1]:.1%} with {w}, all together {sum(part):.1%}" for w, part in found.items())
    yield f"a group is decided with probability {times.decided:.2f}; so the slowest worker plays of a rollout: {parts}"
    yield "a worker takes as long as it plays; nothing fails, is repeated or found in the cache"


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
    parser.add_argument("--decided", type=float, help="share of the groups whose rewards differ, likewise")
    parser.add_argument("--config", type=Path, help="settings of the graph, JSON or YAML (default: the run's own)")
    parser.add_argument("--mb-per-s", type=float, default=500.0, help="to and from the object storage")
    parser.add_argument("--picture", type=Path, help="where to draw lag 0 and 1 with the most workers, as PNG")
    given = parser.parse_args()
    if given.run:
        times = measured(given.run)
    else:
        with a_run(given.iterations or 6) as folder:
            times = measured(folder)
    ran = int(str(times.inputs["iterations"]))
    own = graph(times.inputs, iterations=ran, lag=int(str(times.inputs["lag"])))
    predicted = wall_time(laid_out(own, in_one_process(times), pods={}, pool=lambda node: "process", at_most=1))
    off = predicted / times.seconds - 1
    console.print(
        f"one process, {ran} iterations: predicted {predicted:.1f} s, measured {times.seconds:.1f} s, "
        f"off by {off:+.1%} (allowed: {LIMIT:.0%})"
    )
    times = replace(
        times,
        later={**times.later, **given.seconds},
        sizes={**times.sizes, **{kind: 1e6 * size for kind, size in given.mb.items()}},
        has_reward_variance=times.has_reward_variance
        if given.has_reward_variance is None
        else given.has_reward_variance,
    )
    if given.config:
        config, spec = yaml.safe_load(given.config.read_text()), get_environment(str(times.inputs["environment"]))
        config = GrpoConfig.from_dict(config).resolved(spec.defaults).to_dict()
        times = replace(times, inputs={**times.inputs, "config": config})
    start = {**START, **given.start}
    pods = {"rollout": 2, "training": 2, **given.pods}
    iterations = given.iterations or ran
    cost = on_a_cluster(times, start, given.mb_per_s * 1e6)
    stated = assumptions(times, WORKERS, pods, start, given.mb_per_s)
    console.print("\nassumed:", *(f"  {line}" for line in stated), sep="\n")
    table = Table(title=f"{iterations} iterations on a cluster", title_justify="left")
    for column in ("lag", "rollout workers", "wall time, s", "GPUs", "held", "working", "the critical path"):
        table.add_column(column, justify="left" if column == "the critical path" else "right")
    panels = {}
    for lag in (0, 1):
        for workers in WORKERS:
            nodes = graph(times.inputs, iterations=iterations, lag=lag, workers=workers)
            room = {**pods, "rollout": pods["rollout"] + workers - 1}
            placed = laid_out(nodes, cost, pods=room)
            gpus, held, worked = gpu_shares(placed, room)
            row = (lag, workers, f"{wall_time(placed):,.0f}", gpus, f"{held:.0%}", f"{worked:.0%}", path_shares(placed))
            table.add_row(*map(str, row))
            panels[f"lag {lag}, {workers} rollout workers"] = placed
    console.print(table)
    if given.picture:
        draw(
            {name: panels[name] for name in (f"lag {lag}, {WORKERS[-1]} rollout workers" for lag in (0, 1))},
            given.picture,
        )
        console.print(f"drawn: {given.picture}")


if __name__ == "__main__":
    main(Console(width=160, soft_wrap=True))
