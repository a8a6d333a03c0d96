"""Pictures of a training: how the policy got better, what its episodes were like, and where the time went.

Plain matplotlib figures without global state, on an opaque ground: LIGHT reads on any page, DARK is for dark ones.
Colours are from the Okabe-Ito palette, which the colour-blind can tell apart.
"""

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tasks.evaluation.records import Mean
from tasks.evaluation.table import minus
from tasks.history import Distribution, Iteration


@dataclass(frozen=True)
class Theme:
    """The colours that depend on the ground."""

    ground: str
    ink: str
    faint: str
    neutral: str  # neither one end of a scale nor the other
    palette: tuple[str, ...]


PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
LIGHT = Theme("#FFFFFF", "#1F2328", "#6E7781", "#C9CED6", PALETTE)
BRIGHT = ("#56B4E9", "#E69F00", "#2DBE92", "#CC79A7", "#3E8FC7", "#F0793A", "#F0E442", "#999999")
DARK = Theme("#0D1117", "#E6EDF3", "#8B949E", "#343B45", BRIGHT)
AXES_POINTS, LABEL_POINTS = 290, 14  # heights of the learning curve and of a label in it, about
STAGES = ("rollout", "reference", "train", "overhead")
SEEN = 0.1  # the share of invalid and truncated episodes above which they have a panel
STACKED = 6  # values at most that a distribution shows one by one; the highest share a colour
LOW, HIGH = "#D55E00", "#0072B2"  # ends of the scale of rewards
COUNTS = ("#BFDDF0", "#56B4E9", "#0072B2", "#8E4FA8")  # the scale of numbers that count something
BESIDE = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "alignment": "left"}


def learning_curve(
    points: Sequence[tuple[int, Mean]],
    baselines: Mapping[str, float],
    title: str,
    note: str = "",
    history: Sequence[Iteration] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """Reward on test tasks against episodes played, with its 95 % band, and the sampled reward of the training.

    `points` hold (episodes played, reward) of each evaluation, `baselines` mean rewards, `{"random": -0.39}`; `note`
    is the result in words. Where more than SEEN of an iteration's episodes were invalid or truncated, a panel
    below has their share.
    """
    trained = [iteration.played / 1000 for iteration in history]
    unusable = [iteration.invalid_share + iteration.truncated_share for iteration in history]
    seen = max(unusable, default=0.0) > SEEN
    with figure_of((10, 7.2 if seen else 5.6), title, theme) as figure:
        if seen:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            below.plot(trained, unusable, color=theme.palette[5], linewidth=2)
            _percent(below, "share")
            first_last = f"at first {unusable[0]:.1%}, at last {unusable[-1]:.1%}"
            _finish(below, theme, f"invalid or truncated: {first_last}", theme.palette[5])
        else:
            axes = below = figure.subplots()
        if history:
            rewards = [iteration.raw_reward for iteration in history]
            label = "training episodes, sampled"
            axes.plot(trained, rewards, color=theme.palette[1], alpha=0.8, linewidth=1.2, label=label)
        _curve(axes, points, theme.palette[0], "test tasks, greedy", "95 % confidence")
        for value in baselines.values():
            axes.axhline(value, color=theme.faint, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1)
        _name_lines(axes, baselines)
        _finish(axes, theme, note, theme.palette[0])
        below.set_xlabel("episodes played, thousands")
        axes.set_ylabel("expected reward")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def part_curves(parts: Mapping[str, Sequence[tuple[int, Mean]]], title: str, theme: Theme = LIGHT) -> Figure:
    """As `learning_curve`, a line for each part of the environment: (episodes played, reward) of each evaluation."""
    with figure_of((10, 4.8), title, theme) as figure:
        axes = figure.subplots()
        for colour, (part, points) in zip(theme.palette, parts.items(), strict=False):
            _curve(axes, points, colour, minus(f"{part}  {points[-1][1].mean:+.2f}"))
        _finish(axes, theme)
        axes.set_xlabel("episodes played, thousands")
        axes.set_ylabel("expected reward")
        axes.legend(title="at last", **BESIDE)
    return figure


def _curve(
    axes: Axes, points: Sequence[tuple[int, Mean]], colour: str, label: str, band_label: str | None = None
) -> None:
    """Rewards with their 95 % band."""
    played, found = [played / 1000 for played, _ in points], [reward for _, reward in points]
    low, high = ([reward.mean + sign * reward.ci95 for reward in found] for sign in (-1, 1))
    axes.fill_between(played, low, high, color=colour, alpha=0.2, linewidth=0, label=band_label)
    axes.plot(played, [reward.mean for reward in found], color=colour, linewidth=2.4, marker="o", label=label)


def _name_lines(axes: Axes, lines: Mapping[str, float]) -> None:
    """Names at the right of horizontal lines; those of lines close together are moved apart."""
    low, high = axes.get_ylim()
    lowest = -math.inf
    for name, value in sorted(lines.items(), key=lambda line: line[1]):
        place = max((value - low) / (high - low) * AXES_POINTS, lowest + LABEL_POINTS)
        lowest = place
        axes.annotate(
            minus(f"{name}  {value:+.2f}"),
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(6, place - (value - low) / (high - low) * AXES_POINTS),
            textcoords="offset points",
            va="center",
            fontsize=11,
        )


def stage_times(history: Sequence[Iteration], title: str, theme: Theme = LIGHT) -> Figure:
    """Seconds of each iteration, stacked by stage; the legend gives each stage's share of the whole."""
    with figure_of((10, 4.8), title, theme) as figure:
        axes = figure.subplots()
        times = {stage: [iteration.seconds.get(stage, 0.0) for iteration in history] for stage in STAGES}
        whole = sum(map(sum, times.values()))
        named = {f"{stage}  {sum(spent) / whole:.0%}": spent for stage, spent in times.items() if any(spent)}
        _bars(axes, [iteration.iteration for iteration in history], named, theme.palette)
        _finish(axes, theme)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("iteration")
        axes.set_ylabel("seconds")
    return figure


def distributions(history: Sequence[Iteration], title: str, theme: Theme = LIGHT) -> Figure:
    """Outcomes (where there are several), rewards, replies and sampled tokens of the episodes of each policy version,
    one panel each.

    A few values are stacked, by their share of the episodes; many are bands around the median.
    """
    versions = [iteration.iteration for iteration in history]
    outcomes = sum((Counter(iteration.outcomes) for iteration in history), Counter())
    named = {
        "reward": [iteration.rewards for iteration in history],
        "replies an episode": [iteration.turns for iteration in history],
        "sampled tokens an episode": [iteration.tokens for iteration in history],
    }
    several = len(outcomes) > 1
    count = len(named) + several
    with figure_of((10, 3.2 * count), title, theme) as figure:
        panels = figure.subplots(count, 1, sharex=True)
        if several:
            totals = [sum(iteration.outcomes.values()) for iteration in history]
            names = [name for name, _ in outcomes.most_common(len(theme.palette))]
            shares = {name: np.divide([i.outcomes.get(name, 0) for i in history], totals) for name in names}
            colours = theme.palette[2:] + theme.palette[:2]  # not first those that mean high and low below
            _shares(panels[0], versions, shares, colours)
            _finish(panels[0], theme, "outcome")
        for axes, (name, found) in zip(panels[several:], named.items(), strict=True):
            if found and all(d.counts for d in found):
                _stacked(axes, versions, found, theme, rewards=name == "reward")
            else:
                _bands(axes, versions, found, theme)
                axes.set_ylabel(name.split(" an ")[0])
            mean = f": {found[0].mean:.2f} on average at first, {found[-1].mean:.2f} at last" if found else ""
            _finish(axes, theme, f"{name}{mean}")
        panels[-1].set_xlabel("policy version that played")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _stacked(
    axes: Axes, versions: Sequence[int], found: Sequence[Distribution], theme: Theme, *, rewards: bool
) -> None:
    """Shares of each value, the lowest below."""
    values = sorted({value for distribution in found for value, _ in distribution.counts})
    shown = values[:STACKED]
    totals = [sum(n for _, n in d.counts) for d in found]
    shares = {}
    for value in shown:
        name = f"{value:+.{0 if float(value).is_integer() else 2}f}" if rewards and value else f"{value:g}"
        if value == shown[-1] != values[-1]:
            name += " or more"
        shares[name] = np.divide([sum(n for v, n in d.counts if min(v, shown[-1]) == value) for d in found], totals)
    shades = LinearSegmentedColormap.from_list("shades", (LOW, theme.neutral, HIGH) if rewards else COUNTS)
    _shares(axes, versions, shares, [to_hex(shade) for shade in shades(np.linspace(0, 1, len(shown)))])


def _shares(axes: Axes, versions: Sequence[int], shares: Mapping[str, np.ndarray], colours: Sequence[str]) -> None:
    """Bars of shares of the episodes, the first below; the legend has those of the last version."""
    last = {name: "<1%" if 0 < share[-1] < 0.005 else f"{share[-1]:.0%}" for name, share in shares.items()}
    named = {minus(f"{name}  {last[name]}"): share for name, share in shares.items()}
    _bars(axes, versions, named, colours, "at last")
    _percent(axes, "share of episodes")


def _bars(
    axes: Axes,
    places: Sequence[int],
    named: Mapping[str, Sequence[float] | np.ndarray],
    colours: Sequence[str],
    legend_title: str | None = None,
) -> None:
    """Stacked bars and a legend in the same order, the first below."""
    width = 0.85 * float(np.median(np.diff(places))) if len(places) > 1 else 0.85
    below = np.zeros(len(places))
    for (label, values), colour in zip(named.items(), colours, strict=False):
        axes.bar(places, values, width, bottom=below, color=colour, label=label)
        below = below + np.asarray(values, dtype=float)
    if named:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], title=legend_title, **BESIDE)


def _bands(axes: Axes, versions: Sequence[int], found: Sequence[Distribution], theme: Theme) -> None:
    low, lower, median, upper, high = zip(*(d.quantiles for d in found), strict=True) if found else [()] * 5
    colour = theme.palette[0]
    axes.fill_between(versions, low, high, color=colour, alpha=0.18, linewidth=0, label="90 % of episodes")
    axes.fill_between(versions, lower, upper, color=colour, alpha=0.35, linewidth=0, label="half of them")
    axes.plot(versions, median, color=colour, linewidth=2.4, label="median")
    axes.plot(versions, [d.mean for d in found], color=theme.palette[1], linewidth=2, label="mean")
    axes.legend(**BESIDE)


def png(figure: Figure) -> bytes:
    """A figure as a PNG."""
    written = io.BytesIO()
    figure.savefig(written, dpi=150, format="png")
    return written.getvalue()


@contextmanager
def figure_of(size: tuple[float, float], title: str, theme: Theme) -> Iterator[Figure]:
    """A figure of this size in inches, with a title, in the colours of a theme."""
    style = {
        "font.size": 12,
        "axes.edgecolor": theme.faint,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), theme.ground),
    }
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        figure.suptitle(title, fontsize=16, fontweight="bold", x=0.01, ha="left")
        yield figure


def _finish(axes: Axes, theme: Theme, title: str = "", colour: str | None = None) -> None:
    """A title at the left, and open sides."""
    axes.set_title(minus(title), loc="left", fontsize=13, color=colour or theme.ink)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=theme.faint, alpha=0.2)
    axes.set_axisbelow(True)


def _percent(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
