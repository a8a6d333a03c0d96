"""What a person watches while a training runs: a line an event, and one table at the end, on stdout.

On a terminal with colours; through a pipe plain text, so that a log file holds no control characters.
"""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

STARTED = time.monotonic()  # of this module, which a workflow imports first
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


def iteration_line(
    *,
    version: int,
    iterations: int,
    reward: float,
    kl: float,
    entropy: float,
    kept_share: float,
    games_per_second: float,
    seconds: float,
    seconds_left: float,
    reward_se: float | None = None,
) -> None:
    """One line an iteration: `version` is the policy it made, `reward` the mean of the games it learned from.

    `reward_se` is a standard error; the line shows the 95 % half-width. `kept_share` is the share of groups
    whose rewards differ, the ones that carry a gradient.
    """
    spread = "" if reward_se is None else f" ±{1.96 * reward_se:.3f}"
    width = len(str(iterations))
    _line(
        Text.assemble(
            _elapsed(),
            (f"policy {version:>{width}}/{iterations}", "bold cyan"),
            f"  reward {reward:+.3f}{spread}  KL {kl:.4f}  entropy {entropy:.3f}  kept {kept_share:4.0%}",
            (f"  {games_per_second:>5,.0f} games/s {seconds:>6.1f} s  left {clock(seconds_left)}", "dim"),
        )
    )


def evaluation_line(version: int, summary: Mapping[str, float]) -> None:
    """One line an evaluation; the keys of `summary` are those of ROWS."""
    parts = [
        f"{label} {_value(summary, key, half_width)}"
        for label, key, half_width, _ in ROWS
        if key in ("expected_reward", "win_rate", "regret", "invalid_rate") and key in summary
    ]
    name = f"evaluation of policy {version}"
    _line(Text.assemble(_elapsed(), (name, "bold green"), f"  {'  '.join(parts)}"))


def summary_table(before: Mapping[str, float], after: Mapping[str, float], policy: str, ui_command: str) -> None:
    """The table at the end: before, after, the optimum; then where the policy lies and how to see the curves.

    `before` and `after` have the keys of ROWS, rates as shares; `after` may also hold the optimum's results,
    as `optimum_expected_reward`, `optimum_win_rate` and so on. A row that neither has is left out.
    """
    _table({"before": before, "after": after}, after)
    _line(Text(f"policy  {policy}"))
    _line(Text(f"curves  {ui_command}"))


def evaluation_table(policy: Mapping[str, float], players: Mapping[str, Mapping[str, float]], where: str) -> None:
    """One evaluation: the policy beside the scripted players on the same decks, and where the rest of it lies."""
    optimum = {f"optimum_{key}": value for key, value in players["optimum"].items()}
    others = {name.replace("_", " "): found for name, found in players.items() if name != "optimum"}
    _table({"policy": policy, **others}, optimum)
    _line(Text(f"details  {where}"))


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
    for label, key, half_width, ideal in ROWS:
        if all(key not in found for found in columns.values()):
            continue
        best = optimum.get(f"optimum_{key}", ideal)
        values = [_value(found, key, half_width) for found in columns.values()]
        table.add_row(label, *values, "-" if best is None else _value({key: best}, key, None))
    console = _console()
    console.print()
    console.print(table)
    console.print()


def clock(seconds: float) -> str:
    """`1:05`, `2:03:59`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _value(summary: Mapping[str, float], key: str, half_width: str | None) -> str:
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
