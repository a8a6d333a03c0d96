"""What a training prints while it runs: one line for each event, and a table at the end.

On a terminal with colours, and a bar inside long stages; through a pipe plain text, so that a log file holds no
control characters.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tasks.launcher import world_size
from tasks.progress import ProgressCallback, no_progress

STARTED_AT = "GRPO_STARTED_AT"  # the variable that tells ranks when the process that starts them began
STARTED = float(os.environ.get(STARTED_AT, time.monotonic()))  # of this module, which a workflow imports first
PACE_WINDOW = 9  # ends of iterations from which the time left is estimated
LINE_WIDTH = 120  # through a pipe, which has no width


def stage(message: str, *details: str | tuple[str, str], style: str = "bold") -> None:
    """`  1:12  training policy 3 → 4`: what begins now or what came out, and the time since the start.

    Each of the `details` that follow is a text, or a text and its style.
    """
    elapsed = f"{clock(time.monotonic() - STARTED):>7}  "
    lines([Text.assemble((elapsed, "dim"), (message, style), *details)])


@contextlib.contextmanager
def bar(what: str, unit: str) -> Iterator[ProgressCallback]:
    """A bar while a long stage runs: `training policy 4  ━━━━╸──── 31/64 steps  loss -0.0021`.

    Only on a terminal: nothing is drawn in a pod, through a pipe or on several ranks.
    """
    console = _console()
    if not sys.stdout.isatty() or console.is_dumb_terminal or world_size() > 1:
        yield no_progress
        return
    columns = (
        TextColumn("{task.description}", style="bold"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeRemainingColumn(compact=True),
    )
    # Four times a second looks smooth and has no measurable cost.
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as shown:
        task = shown.add_task(what, total=1, visible=False, unit=unit, note="")

        def progress(done: float, total: float, note: str) -> None:
            shown.update(task, completed=done, total=total, note=note, visible=True)

        yield progress


class Pace:
    """How fast iterations follow each other in this process; iterations before an interruption do not count."""

    def __init__(self) -> None:
        self.ends: deque[tuple[int, float]] = deque(maxlen=PACE_WINDOW)

    def seconds_left(self, version: int, iterations: int, seconds: float) -> float:
        """Estimated from the last iterations that ended here, with the evaluations between them; after the first one,
        which took `seconds`, from it alone. Policy `version` was just made."""
        if self.ends and version <= self.ends[-1][0]:
            self.ends.clear()  # another run
        self.ends.append((version, time.monotonic()))
        (first, begin), (last, end) = self.ends[0], self.ends[-1]
        return (end - begin if last > first else seconds) / max(1, last - first) * (iterations - version)


pace = Pace()


def seconds_here(started: float, worked: float, *, here: bool) -> float:
    """Seconds that an iteration took whose rollout began at `started`, seconds since 1970, and whose stages worked
    for `worked` seconds.

    `here`: all stages run in this process, one after another. Then the time between the kill of a run and its restart
    is not counted, because it lies before this process began. On a cluster each stage has its own process, and it is.
    """
    wall = time.time() - started
    return max(worked, min(wall, time.monotonic() - STARTED)) if here else wall


def lines(texts: Iterable[Text]) -> None:
    """Print a few lines of their own."""
    for text in texts:
        _console().print(text, soft_wrap=True)


def table(columns: Iterable[str], rows: Iterable[Sequence[str]], below: Mapping[str, str]) -> None:
    """A table whose rows begin with their label, then a line for each of `below`: `policy  runs/monday/policies/2`."""
    shown = Table(show_edge=False, pad_edge=False, header_style="bold")
    shown.add_column("")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*row)
    console = _console()
    console.print("", shown, "", sep="\n")
    lines(Text(f"{name}  {text}") for name, text in below.items())


def clock(seconds: float) -> str:
    """`1:05`, `2:03:59`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _console() -> Console:
    # A new one each time, because sys.stdout may have been replaced. force_terminal, because FORCE_COLOR would put
    # control characters into a log file.
    terminal = sys.stdout.isatty()
    return Console(force_terminal=terminal, width=None if terminal else LINE_WIDTH, highlight=False, markup=False)
