"""A rollout whose sandbox takes 50 ms a call, beside one whose sandbox takes none: calls overlap with sampling.

    PYTHONPATH=tests python tests/benchmarks/slow_sandbox.py [POLICY]

The calculator's training tasks, as many as an iteration plays at most, by a policy such as `make run-tools` leaves, or
by one after a short cold start, which calls in a third of its episodes. Both are measured in turns, each first in every
other round, so that what else the machine does falls on both; the table has the medians of the seconds, of the
processor's seconds and of the ratios of the rounds, and the calls an episode.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.config import GrpoConfig, RolloutConfig
from tasks.environments.calculator.environment import Calculator
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Environment, EnvironmentSpec
from tasks.environments.tool_use import ToolOptions
from tasks.interpreter.interface import Execution, Interpreter, Session
from tasks.rollout.play import play_tasks
from tasks.seeds import derived_seed

ROUNDS, DELAY_S = 6, 0.05
SHORT = {"cold_start_steps": 80, "drill_steps": 0}  # of a policy made here


@dataclass
class Slow:
    """An interpreter that is also its only session, and takes so long for each call, whatever else is called."""

    session: Session
    seconds: float
    description = "slow"

    async def open(self) -> "Slow":
        return self

    async def run(self, code: str, timeout_s: float) -> Execution:
        done = await self.session.run(code, timeout_s)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return done

    async def close(self) -> None: ...


def slowed(spec: EnvironmentSpec, options: ToolOptions, seconds: float) -> EnvironmentSpec:
    """The calculator with such a sandbox behind the real one."""

    class Behind(Calculator):
        def __init__(self) -> None:
            super().__init__(options, [])
            real = self.interpreter

            def interpreter() -> Interpreter:
                return Slow(real(), seconds)  # type: ignore[arg-type]  # the calculator's is its own session

            self.interpreter = interpreter

    def local() -> Environment:
        return Behind()

    return replace(spec, local=local)


def measured(policy: Path, spec: EnvironmentSpec, config: RolloutConfig) -> tuple[float, float, float]:
    """Seconds of a rollout, those of the processor, and tool calls an episode."""
    tasks = [spec.task("train", index) for index in range(config.max_groups) for _ in range(config.group_size)]
    began, worked = time.perf_counter(), time.process_time()
    episodes = play_tasks(
        policy, spec, tasks, config, temperature=1.0, reply_seed=lambda number, turn: derived_seed(number, turn)
    )
    seconds, processor = time.perf_counter() - began, time.process_time() - worked
    return (
        seconds,
        processor,
        sum(len(step.tool_calls) for episode in episodes for step in episode.steps) / len(episodes),
    )


def main(policy: Path) -> None:
    """Print the table."""
    spec = get_environment("calculator")
    config = GrpoConfig().resolved(spec.defaults).rollout
    options = ToolOptions(format="line", stop=False, calls=1)
    measured(policy, spec, config.replace(groups=8, max_groups=8))  # warms up
    delays, calls = [0.0, DELAY_S], 0.0
    rounds: list[dict[float, tuple[float, float]]] = []
    for number in range(ROUNDS):
        rounds.append({})
        for delay in delays if number % 2 == 0 else delays[::-1]:
            *taken, calls = measured(policy, slowed(spec, options, delay), config)
            rounds[-1][delay] = (taken[0], taken[1])
    table = Table("a call takes", "rollout", "processor", "ratio", title=f"{calls:.2f} calls an episode")
    for delay in delays:
        seconds, processor = (statistics.median(found[delay][i] for found in rounds) for i in (0, 1))
        ratio = statistics.median(found[delay][0] / found[0.0][0] for found in rounds)
        table.add_row(f"{delay * 1000:.0f} ms more", f"{seconds:.2f} s", f"{processor:.2f} s", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        from tasks.training.cold_start import make_tiny

        settings = GrpoConfig.from_dict({"tiny": SHORT}).resolved(get_environment("calculator").defaults)
        with tempfile.TemporaryDirectory() as folder:
            make_tiny(Path(folder, "policy"), settings.tiny, settings.training, "calculator", seed=0)
            main(Path(folder, "policy"))
