"""BlackJack trained by this project and by TRL's GRPOTrainer, in turn, from the same first policy on the same cores.

    make bench-peers

TRL is tuned first: each of SEARCH trains for a part of the time, and the one with the lowest regret goes on. Then both
train in turns. Every checkpoint of both is judged by our evaluation, greedily on the same test decks, after the
training, and the clock counts only training: no start, no cold start, no evaluation, no writing of TRL's checkpoints.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.evaluation.evaluate import TaskSet
from tasks.evaluation.metrics import measure
from tasks.folders import use_scratch_folder
from tasks.policy.checkpoint import import_checkpoint
from tasks.training.cold_start import tiny_policy

HERE = Path(__file__).resolve()
PEER = HERE.parents[2] / ".peers" / "bin" / "python"
TARGETS = (0.05, 0.02)  # regrets
# What TRL is tried with: micro-batches of 64, generation batches of 512 and 1,024, groups of 2 to 16, with and without
# a KL term. Groups of 8 and no KL are TRL's own defaults; the last setting is nearest to ours.
WIDE = {"epsilon": 0.5, "epsilon_high": 1.0}  # the clip that we use
TWICE = {"num_iterations": 2, **WIDE}  # with two epochs
BASE = {"per_device_train_batch_size": 64, "scale_rewards": "none"}
SEARCH: tuple[dict[str, Any], ...] = (
    {"learning_rate": 5e-4, "num_generations": 8, "beta": 0.0, "steps_per_generation": 8},
    {"learning_rate": 2e-3, "num_generations": 8, "beta": 0.0, "steps_per_generation": 8},
    {"learning_rate": 1e-3, "num_generations": 8, "beta": 0.04, "steps_per_generation": 8},
    {"learning_rate": 1e-3, "num_generations": 8, "beta": 0.0, "steps_per_generation": 8, **WIDE},
    {"learning_rate": 1e-3, "num_generations": 8, "beta": 0.15, "steps_per_generation": 8, **WIDE},
    {
        "learning_rate": 1e-3,
        "num_generations": 16,
        "beta": 0.0,
        "steps_per_generation": 16,
        "num_iterations": 2,
        **WIDE,
    },
    {"learning_rate": 1e-3, "num_generations": 8, "beta": 0.0, "steps_per_generation": 8, "scale_rewards": "group"},
    {
        "learning_rate": 1e-3,
        "num_generations": 2,
        "beta": 0.15,
        "steps_per_generation": 16,
        "num_iterations": 2,
        **WIDE,
    },
)


@dataclass(frozen=True)
class Point:
    """A checkpoint."""

    seconds: float  # of training
    episodes: int
    decisions: int  # replies sampled
    regret: float


class Judge:
    """Our evaluation of checkpoints on the same decks."""

    def __init__(self, config: GrpoConfig, folder: Path):
        self.config, self.folder, self.seen = config, folder, 0
        self.set = TaskSet("blackjack", config.evaluation.tasks, config.evaluation.seed)
        self.spec = self.set.spec(config.rollout)
        self.tasks = self.set.choose(self.spec)

    def regret(self, checkpoint: Path) -> float:
        """Of greedy play."""
        self.seen += 1
        policy = self.folder / f"judged-{self.seen}"
        import_checkpoint(checkpoint, policy)
        episodes = self.set.play(policy, self.config.rollout, self.tasks)
        return measure(self.spec, episodes).metrics["regret"].mean


def ours(policy: Path, name: str, seed: int, iterations: int, judge: Judge) -> list[Point]:
    """A run with the default settings; every policy of it."""
    line = ["grpo", "--policy", str(policy), "--seed", str(seed), "--iterations", str(iterations), "--run_name", name]
    settings = {"evaluation": {"every": 10_000, "tasks": 2}}
    run = [str(Path(sys.executable).parent / "pyflyte"), "run", str(HERE.parents[2] / "workflows" / "grpo.py"), *line]
    subprocess.run([*run, "--config", json.dumps(settings)], check=True, stdout=subprocess.DEVNULL)
    last = Path("runs") / name / "policies" / f"{iterations:05d}" / "_history.jsonl"
    found, seconds, decisions = [], 0.0, 0
    for number, told in enumerate(map(json.loads, last.read_text().splitlines()), 1):
        seconds += told["seconds"]["iteration"]
        decisions += round(told["turns"]["mean"] * told["episodes"])
        regret = judge.regret(last.parents[1] / f"{number:05d}")
        found.append(Point(seconds, told["played"], decisions, regret))
    return found


def trl(policy: Path, folder: Path, seed: int, seconds: float, settings: dict[str, Any], judge: Judge) -> list[Point]:
    """A training by TRL; its checkpoints."""
    given = BASE | settings | {"seconds": seconds, "snapshot_s": max(5.0, seconds / 20), "seed": seed}
    subprocess.run(
        [str(PEER), str(HERE.parent / "peer_trl.py"), str(policy), str(folder), json.dumps(given)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return [
        Point(told["seconds"], told["episodes"], told["replies"], judge.regret(folder / told["name"]))
        for told in json.loads((folder / "snapshots.json").read_text())
    ]


def reached(points: list[Point], regret: float) -> Point | None:
    """The first checkpoint from which on no regret is above this one, so that luck with one checkpoint is none."""
    good = None
    for point in reversed(points):
        if point.regret > regret:
            break
        good = point
    return good


def told(points: list[Point]) -> list[str]:
    """The cells of one training."""
    last = points[-1]
    cells = [f"{last.seconds:.0f}", f"{last.episodes / last.seconds:,.0f}", f"{last.decisions / last.seconds:,.0f}"]
    for regret in TARGETS:
        at = reached(points, regret)
        cells.append(f"{at.seconds:.0f} s, {at.episodes:,}" if at else "not reached")
    return [*cells, f"{last.regret:.3f}", f"{min(point.regret for point in points):.3f}"]


def main() -> None:
    """Search, then train in turns, then print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="of a training by TRL")
    parser.add_argument("--search-seconds", type=float, default=90, help="of a training in the search")
    parser.add_argument("--iterations", type=int, default=16, help="of a run of ours")
    parser.add_argument("--rounds", type=int, default=2, help="trainings of each, with other seeds")
    given = parser.parse_args()
    use_scratch_folder()
    config = GrpoConfig().resolved(get_environment("blackjack").defaults)
    policy = tiny_policy(config.tiny, config.training, "blackjack", seed=0)
    folder = Path("peers").absolute()
    judge, console = Judge(config, folder), Console(width=150)
    console.print(f"policy 0: regret {judge.regret(policy):.3f}")

    columns = ("seconds", "episodes/s", "decisions/s", *(f"to {r}" for r in TARGETS), "last regret", "best regret")
    table = Table(title=f"TRL, {given.search_seconds:.0f} s each: the search")
    for column in ("settings", *columns):
        table.add_column(column)
    best: tuple[float, dict[str, Any]] = (float("inf"), {})
    for number, settings in enumerate(SEARCH):
        points = trl(policy, folder / f"search-{number}", 0, given.search_seconds, settings, judge)
        best = min(best, (points[-1].regret, settings), key=lambda one: one[0])
        table.add_row(" ".join(f"{name}={value}" for name, value in settings.items()), *told(points))
    console.print(table)

    table = Table(title=f"in turns; TRL with {best[1]}")
    for column in ("", *columns):
        table.add_column(column)
    ratios = []
    for seed in range(given.rounds):
        mine = ours(policy, f"ours-{seed}", seed, given.iterations, judge)
        theirs = trl(policy, folder / f"trl-{seed}", seed, given.seconds, best[1], judge)
        for name, points in (("this project", mine), ("TRL", theirs)):
            table.add_row(f"{name}, seed {seed}", *told(points))
        at, peers = reached(mine, TARGETS[0]), reached(theirs, TARGETS[0])
        if at:  # what TRL did not reach in its time took it longer than that
            ratios.append((peers.seconds if peers else theirs[-1].seconds) / at.seconds)
    console.print(table)
    if ratios:
        console.print(f"to a regret of {TARGETS[0]}: {statistics.mean(ratios):.1f} times sooner than TRL, or more")


if __name__ == "__main__":
    main()
