"""What a person watches while a training runs: a line an event, and one table at the end, on stdout.

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

from tasks.progress import ProgressCallback, no_progress

STARTED_AT = "GRPO_STARTED_AT"  # the variable that tells ranks when the process that starts them began
STARTED = float(os.environ.get(STARTED_AT, time.monotonic()))  # of this module, which a workflow imports first
PACE_WINDOW = 9  # ends of iterations, from which the time left is told
LINE_WIDTH = 120  # through a pipe, where there is no width to ask for

# Rows of the summary: label, key, key of the 95 % half-width, and what the optimum has by definition.
ROWS = (
    ("expected reward", "expected_reward", "expected_reward_ci95", None),
    ("  sampled, not greedy", "sampled_expected_reward", None, None),
    ("wins", "win_rate", "win_rate_ci95", None),
    ("pushes", "push_rate", "push_rate_ci95", None),
    ("losses", "loss_rate", "loss_rate_ci95", None),
    ("regret", "regret", "regret_ci95", 0.0),
    ("invalid replies", "invalid_rate", "invalid_rate_ci95", 0.0),
    ("agreement with the optimum", "agreement", "agreement_ci95", 1.0),
)


def stage(message: str) -> None:
    """`  1:12  training policy 3 → 4`: what begins now, and how long after the start."""
    _line(Text.assemble(_elapsed(), (message, "bold")))


@contextlib.contextmanager
def bar(what: str, unit: str) -> Iterator[ProgressCallback]:
    """A bar while a long stage runs, gone when it ends: `training policy 4  ━━━━╸──── 31/64 steps  loss -0.0021`.

    Only on a terminal: in a pod, through a pipe and on several ranks nothing is drawn.
    """
    console = _console()
    if not sys.stdout.isatty() or console.is_dumb_terminal or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield no_progress
        return
    columns = (
        TextColumn("{task.description}", style="bold"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeRemainingColumn(compact=True),
    )
    # Four times a second is enough to see it move, and costs the stage nothing that can be measured.
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as shown:
        task = shown.add_task(what, total=1, visible=False, unit=unit, note="")

        def progress(done: float, total: float, note: str) -> None:
            shown.update(task, completed=done, total=total, note=note, visible=True)

        yield progress


class Pace:
    """How fast iterations follow each other in this process: what an interrupted run did before does not count."""

    def __init__(self) -> None:
        self.ends: deque[tuple[int, float]] = deque(maxlen=PACE_WINDOW)

    def seconds_left(self, version: int, iterations: int, seconds: float) -> float:
        """From the last iterations that ended here, with the evaluations between them; of the first, which took
        `seconds`, from that one alone. Policy `version` was just made."""
        if self.ends and version <= self.ends[-1][0]:
            self.ends.clear()  # another run
        self.ends.append((version, time.monotonic()))
        (first, begin), (last, end) = self.ends[0], self.ends[-1]
        return (end - begin if last > first else seconds) / max(1, last - first) * (iterations - version)


pace = Pace()


def seconds_here(started: float, worked: float, *, here: bool) -> float:
    """Seconds that an iteration took whose rollout began at `started`, seconds since 1970, and whose stages worked
    for `worked` seconds.

    `here`: all its stages run in this process, one by one. Then the pause of a run that was killed between two of
    them does not count: it lies before this process began. On a cluster, where each stage has a process, it does.
    """
    wall = time.time() - started
    return max(worked, min(wall, time.monotonic() - STARTED)) if here else wall


def iteration_line(
    *,
    version: int,
    iterations: int,
    reward: float,
    regret: tuple[int, float] | None,
    kl: float,
    entropy: float,
    games_per_second: float,
    seconds: float,
    seconds_left: float,
) -> None:
    """One line an iteration: `version` is the policy it made, `reward` the mean of the games it learned from.

    `regret` is that of the last evaluation, and the policy it was of; None where this process knows of none.
    """
    width = len(str(iterations))
    known = "" if regret is None else f"  regret {regret[1]:.3f} at {regret[0]}"
    _line(
        Text.assemble(
            _elapsed(),
            (f"policy {version:>{width}}/{iterations}", "bold cyan"),
            f"  reward {reward:+.3f}{known}  KL {kl:.4f}  entropy {entropy:.3f}",
            (f"  {games_per_second:>5,.0f} games/s {seconds:>6.1f} s  left {clock(seconds_left)}", "dim"),
        )
    )


def evaluation_line(version: int, summary: Mapping[str, float]) -> None:
    """One line an evaluation; the keys of `summary` are those of ROWS."""
    parts = [
        f"{label} {value(summary, key, half_width)}"
        for label, key, half_width, _ in ROWS
        if key in ("expected_reward", "win_rate", "regret", "invalid_rate") and key in summary
    ]
    name = f"evaluation of policy {version}"
    _line(Text.assemble(_elapsed(), (name, "bold green"), f"  {'  '.join(parts)}"))


def lines(texts: Iterable[Text]) -> None:
    """Print a few lines of their own."""
    for text in texts:
        _line(text)


def summary_table(before: Mapping[str, float], after: Mapping[str, float], policy: str, ui: str, report: str) -> None:
    """The table at the end: before, after, the optimum; then where policy and report lie and how to see the curves.

    `before` and `after` have the keys of ROWS, rates as shares; `after` may also hold the optimum's results,
    as `optimum_expected_reward`, `optimum_win_rate` and so on. A row that neither has is left out.
    """
    _table({"before": before, "after": after}, after)
    _line(Text(f"policy  {policy}"))
    _line(Text(f"report  {report}"))
    _line(Text(f"curves  {ui}"))


def evaluation_table(policy: Mapping[str, float], players: Mapping[str, Mapping[str, float]], where: str) -> None:
    """One evaluation: the policy beside the scripted players on the same decks, and where the rest of it lies."""
    optimum = {f"optimum_{key}": value for key, value in players["optimum"].items()}
    others = {name.replace("_", " "): found for name, found in players.items() if name != "optimum"}
    _table({"policy": policy, **others}, optimum)
    _line(Text(f"details  {where}"))


def table_rows(columns: Mapping[str, Mapping[str, float]], optimum: Mapping[str, float]) -> Sequence[Sequence[str]]:
    """A row for each of ROWS that a column knows: its label, a cell a column, and the optimum's."""
    rows = []
    for label, key, half_width, ideal in ROWS:
        if any(key in found for found in columns.values()):
            best = optimum.get(f"optimum_{key}", ideal)
            cells = [value(found, key, half_width) for found in columns.values()]
            rows.append([label, *cells, "-" if best is None else value({key: best}, key, None)])
    return rows


def comparison_table(
    policies: Mapping[str, Mapping[str, float]], optimum: Mapping[str, float], difference: str, where: str
) -> None:
    """Two policies side by side on the same decks, their paired `difference` in words, and where the rest lies."""
    _table(policies, {f"optimum_{key}": value for key, value in optimum.items()})
    _line(Text(f"difference  {difference}"))
    _line(Text(f"details  {where}"))


def _table(columns: Mapping[str, Mapping[str, float]], optimum: Mapping[str, float]) -> None:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in (*columns, "optimum"):
        table.add_column(column, justify="right")
    for row in table_rows(columns, optimum):
        table.add_row(*row)
    console = _console()
    console.print()
    console.print(table)
    console.print()


def clock(seconds: float) -> str:
    """`1:05`, `2:03:59`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def value(summary: Mapping[str, float], key: str, half_width: str | None) -> str:
    """A number as people read it, with its interval where there is one; "-" where there is no number."""
    if key not in summary:
        return "-"
    form = ".1%" if "rate" in key or key == "agreement" else ".3f"
    number = format(summary[key], f"+{form}" if "reward" in key else form)
    return f"{number} ±{summary[half_width]:{form}}" if half_width and half_width in summary else number


def _elapsed() -> tuple[str, str]:
    return f"{clock(time.monotonic() - STARTED):>7}  ", "dim"


def _line(text: Text) -> None:
    _console().print(text, soft_wrap=True)


def _console() -> Console:
    # Made anew, as sys.stdout may be another one by now; told, as FORCE_COLOR would colour a log file.
    terminal = sys.stdout.isatty()
    width = None if terminal else LINE_WIDTH
    return Console(force_terminal=terminal, width=width, highlight=False, markup=False)
