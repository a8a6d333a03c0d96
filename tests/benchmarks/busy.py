"""A rollout and a training stage alone, and beside one busy process a core.

    PYTHONPATH=tests python tests/benchmarks/busy.py [SPINCOUNT …]

For each number of spins that a waiting thread of OpenMP makes (this project's own, and libgomp's 300,000, unless others
are given) a process of its own samples a batch and trains on it, with BlackJack's default settings, on random weights
after a short cold start. It is measured in turns, alone and beside as many processes as there are cores, which do
nothing but compute; the table has medians of wall time, and of the processor time that it took.
"""

import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.threads import SPINS

ROUNDS = 3  # of each setting, alone and beside others
STAGES = 3  # of each kind in a process, after one that warms up
LIBGOMPS_OWN = 300_000


def measured_here(folder: Path) -> dict[str, list[float]]:
    """Seconds, and seconds of processor time, of each stage; the first ones are cold."""
    from rollouts import sample_batch
    from runs import a_run
    from tasks.advantage.advantages import add_advantages
    from tasks.buffer.selection import gather, select_groups
    from tasks.config import GrpoConfig
    from tasks.environments.catalog import get_environment
    from tasks.reference.score import score_batch
    from tasks.training.cold_start import make_tiny
    from tasks.training.train import next_policy

    config = GrpoConfig.from_dict({"tiny": {"cold_start_steps": 40}}).resolved(get_environment("blackjack").defaults)
    found: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def clocked(name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        found.setdefault(name, []).append(time.perf_counter() - wall)
        found.setdefault(f"{name}, processor", []).append(time.process_time() - cpu)

    policy, run = folder / "policy", a_run()
    with clocked("cold start"):
        make_tiny(policy, config.tiny, config.training, "blackjack", seed=0)
    for iteration in range(1 + STAGES):
        with clocked("rollout"):
            batch, _ = sample_batch(policy, config.rollout, environment="blackjack", url="", run_seed=0, iteration=0)
        batch, _ = score_batch(batch, policy, config.training, config.rollout)
        batch, _ = add_advantages(batch)
        chosen = select_groups([batch], config.buffer, wanted=config.rollout.groups, uses={}, policy_version=0, seed=0)
        rows = gather([batch], chosen.group_ids)
        new = {"target": folder / f"new-{iteration}", "target_state": folder / f"state-{iteration}"}
        with clocked("training"):
            next_policy(rows, policy, policy, None, config, run, **new)
    return found


def measured(spins: int) -> dict[str, list[float]]:
    """The same in a process whose waiting threads spin so often."""
    environment = {**os.environ, "GOMP_SPINCOUNT": str(spins)}
    environment.pop("OMP_WAIT_POLICY", None)
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, __file__, "--here", folder]
        done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _compute() -> None:
    while True:
        sum(range(10_000))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute, until the block ends."""
    started = [multiprocessing.get_context("spawn").Process(target=_compute, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    time.sleep(2)  # until they are at work
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


def main(spins: list[int]) -> None:
    """Print the table."""
    cores = len(os.sched_getaffinity(0))
    taken: dict[tuple[int, int], list[dict[str, list[float]]]] = {}
    for _ in range(ROUNDS):
        for others in (0, cores):
            with busy(others):
                for count in spins:
                    taken.setdefault((count, others), []).append(measured(count))
    table = Table(title=f"seconds on {cores} cores (of them on a processor)")
    table.add_column("spins")
    table.add_column("busy processes beside", justify="right")
    names = [name for name in taken[spins[0], 0][0] if "," not in name]
    for name in names:
        table.add_column(name, justify="right")
    for (count, others), rounds in taken.items():
        cells = []
        for name in names:
            warm = slice(1, None) if name != "cold start" else slice(None)
            wall, cpu = (
                statistics.median(value for one in rounds for value in one[key][warm])
                for key in (name, f"{name}, processor")
            )
            cells.append(f"{wall:.2f} ({cpu:.2f})")
        table.add_row(f"{count:,}", str(others), *cells)
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measured_here(Path(sys.argv[2]))))
    else:
        main([int(count) for count in sys.argv[1:]] or [int(SPINS["GOMP_SPINCOUNT"]), LIBGOMPS_OWN])
