"""Pictures of a training: which choices a policy makes, how it got there, and where the time went.

Plain matplotlib figures without global state, on an opaque ground: LIGHT reads on any page, DARK is for dark ones.
Colours are from the Okabe-Ito palette, which the colour-blind can tell apart.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.history import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEALER = ("2", "3", "4", "5", "6", "7", "8", "9", "10", "A")
TOTALS = {"hard": range(4, 22), "soft": range(12, 22)}
STAND, EITHER, HIT = "#0072B2", "#F7F4EE", "#D55E00"


@dataclass(frozen=True)
class Theme:
    """The colours that hang on the ground."""

    ground: str
    ink: str
    faint: str
    never_met: str
    palette: tuple[str, ...]


LIGHT = Theme(
    ground="#FFFFFF",
    ink="#1F2328",
    faint="#6E7781",
    never_met="#C9CED6",
    palette=("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"),
)
DARK = Theme(
    ground="#0D1117",
    ink="#E6EDF3",
    faint="#8B949E",
    never_met="#343B45",
    palette=("#56B4E9", "#E69F00", "#2DBE92", "#CC79A7", "#3E8FC7", "#F0793A", "#F0E442", "#999999"),
)
AXES_POINTS, LABEL_POINTS = 290, 14  # heights of the learning curve and of a label in it, about
STACKED = 6  # values at most that a distribution shows one by one; the highest share a colour


def choice_heat_map(
    choices: Mapping[tuple[str, int, str], tuple[float, bool]], title: str, theme: Theme = LIGHT
) -> "Figure":
    """The policy's choices beside the optimum's, for hard and for soft hands.

    `choices` maps ("hard" or "soft", own total, dealer's open card "2" … "10" or "A") to (the share of HIT in
    the policy's choices there, whether the optimum hits). Situations never met stay grey. A frame marks each
    situation in which the policy's more frequent choice is not the optimum's; an even split is a STAND.
    """
    import numpy as np
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    with figure_of((10.5, 9.4), title, theme) as figure:
        colours = LinearSegmentedColormap.from_list("choices", [STAND, EITHER, HIT])
        colours = colours.with_extremes(bad=theme.never_met)
        heights = [len(totals) for totals in TOTALS.values()]
        axes = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=heights)
        colouring = ScalarMappable(Normalize(0, 1), colours)
        for row, (kind, totals) in enumerate(TOTALS.items()):
            shares = np.full((2, len(totals), len(DEALER)), np.nan)
            for (of_kind, total, dealer), (share, hits) in choices.items():
                if of_kind == kind:
                    cell = total - totals.start, DEALER.index(dealer)
                    shares[0][cell], shares[1][cell] = share, float(hits)
                    if (share > 0.5) != hits:
                        _frame(axes[row, 0], *cell, theme)
            for column, name in enumerate(("policy", "optimum")):
                panel = axes[row, column]
                panel.imshow(colouring.to_rgba(shares[column]), origin="lower", aspect="auto")
                _cells(panel, totals, theme)
                panel.set_title(f"{name}, {kind} hands", fontsize=13)
            axes[row, 0].set_ylabel("own total")
        for panel in axes[1]:
            panel.set_xlabel("dealer's open card")
        bar = figure.colorbar(colouring, ax=axes, location="bottom", fraction=0.03, aspect=50, pad=0.02)
        bar.set_ticks([0, 0.5, 1], labels=["always STAND", "half of the time HIT", "always HIT"])
        for label, side in zip(bar.ax.get_xticklabels(), ("left", "center", "right"), strict=True):
            label.set_horizontalalignment(side)
        note = "framed: the policy's usual choice is not the optimum's     grey: never met"
        figure.supxlabel(note, fontsize=12, color=theme.faint)
    return figure


def learning_curve(
    points: Sequence[Mapping[str, float]],
    references: Mapping[str, float],
    title: str,
    training: Sequence[tuple[float, float]] = (),
    unreadable: Sequence[tuple[float, float]] = (),
    theme: Theme = LIGHT,
) -> "Figure":
    """Expected reward on held-out decks against games played, with its 95 % band.

    `points` have `version`, `games`, `expected_reward`, `expected_reward_ci95` (half width) and `regret`;
    `references` are other players' expected rewards, `{"optimum": -0.042, "always stand": -0.18}`; `training`
    holds (games played, mean reward) of the batches trained on, which are sampled rather than greedy. `unreadable`
    holds (games played, share of games that an unreadable reply ended) of the same, and has a panel below.
    """
    with figure_of((10, 7.2 if unreadable else 5.6), title, theme) as figure:
        if unreadable:
            axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            _unreadable_share(below, unreadable, theme)
        else:
            axes = below = figure.subplots()
        games = [p["games"] / 1000 for p in points]
        reward = [p["expected_reward"] for p in points]
        half = [p["expected_reward_ci95"] for p in points]
        if training:
            x, y = [g / 1000 for g, _ in training], [r for _, r in training]
            axes.plot(x, y, color=theme.palette[1], alpha=0.8, linewidth=1.2, label="training games, sampled")
        low = [r - h for r, h in zip(reward, half, strict=True)]
        high = [r + h for r, h in zip(reward, half, strict=True)]
        axes.fill_between(games, low, high, color=theme.palette[0], alpha=0.2, linewidth=0, label="95 % confidence")
        axes.plot(games, reward, color=theme.palette[0], linewidth=2.4, marker="o", label="held-out decks, greedy")
        for value in references.values():
            axes.axhline(value, color=theme.faint, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1)
        _name_lines(axes, references)
        _open_axes(axes, theme)
        below.set_xlabel("games played, thousands")
        axes.set_ylabel("expected reward a game")
        if points:
            last = points[-1]
            value = f"{_signed(last['expected_reward'], 3)} ±{last['expected_reward_ci95']:.3f}"
            note = f"policy {last['version']:.0f}: {value}, regret {last['regret']:.3f}"
            axes.set_title(note, loc="left", color=theme.palette[0], fontsize=13)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _name_lines(axes: "Axes", lines: Mapping[str, float]) -> None:
    """Names at the right of horizontal lines; those of lines close together are pushed apart."""
    low, high = axes.get_ylim()
    lowest = -math.inf
    for name, value in sorted(lines.items(), key=lambda line: line[1]):
        place = max((value - low) / (high - low) * AXES_POINTS, lowest + LABEL_POINTS)
        lowest = place
        axes.annotate(
            f"{name}  {_signed(value, 2)}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(6, place - (value - low) / (high - low) * AXES_POINTS),
            textcoords="offset points",
            va="center",
            fontsize=11,
        )


def _unreadable_share(axes: "Axes", shares: Sequence[tuple[float, float]], theme: Theme) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.plot([g / 1000 for g, _ in shares], [share for _, share in shares], color=theme.palette[5], linewidth=2)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("unreadable")
    axes.set_title(
        f"at first {shares[0][1]:.1%}, at last {shares[-1][1]:.1%}", loc="left", color=theme.palette[5], fontsize=13
    )
    _open_axes(axes, theme)


def stage_times(
    iterations: Sequence[int],
    times: Mapping[str, Sequence[float]],
    title: str = "Where the time goes",
    theme: Theme = LIGHT,
) -> "Figure":
    """Seconds of each of these iterations, stacked by stage; the legend gives each stage's share of the whole."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    with figure_of((10, 4.8), title, theme) as figure:
        axes = figure.subplots()
        seconds = {stage: np.asarray(values, dtype=float) for stage, values in times.items()}
        whole = sum(values.sum() for values in seconds.values()) or 1.0
        below = np.zeros(len(iterations))
        for (stage, values), colour in zip(seconds.items(), _colours(len(seconds), theme), strict=True):
            label = f"{stage}  {values.sum() / whole:.0%}"
            axes.bar(iterations, values, _bar_width(iterations), bottom=below, color=colour, label=label)
            below = below + values
        _open_axes(axes, theme)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("iteration")
        axes.set_ylabel("seconds")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def distributions(
    versions: Sequence[int],
    rewards: Sequence[Spread],
    tokens: Sequence[Spread],
    turns: Sequence[Spread],
    title: str = "What the games were like",
    theme: Theme = LIGHT,
) -> "Figure":
    """Rewards, replies and sampled tokens of the games that each policy version played, one panel each.

    A few values are stacked, by their share of the games; many are bands around the median.
    """
    from matplotlib.ticker import MaxNLocator

    with figure_of((10, 9.6), title, theme) as figure:
        panels = figure.subplots(3, 1, sharex=True)
        named = (("reward", rewards), ("replies a game", turns), ("sampled tokens a game", tokens))
        for axes, (name, spreads) in zip(panels, named, strict=True):
            if spreads and all(s.counts for s in spreads):
                _stacked(axes, versions, spreads, theme, signed=name == "reward")
                axes.set_ylabel("share of games")
            else:
                _bands(axes, versions, spreads, theme)
                axes.set_ylabel(name.split(" a ")[0])
            mean = f": {spreads[0].mean:.2f} on average at first, {spreads[-1].mean:.2f} at last" if spreads else ""
            axes.set_title(f"{name}{mean}".replace("-", "\N{MINUS SIGN}"), loc="left", fontsize=13)
            _open_axes(axes, theme)
        panels[-1].set_xlabel("policy version that played")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _stacked(axes: "Axes", versions: Sequence[int], spreads: Sequence[Spread], theme: Theme, *, signed: bool) -> None:
    """Shares of each value, the lowest below; the legend names those of the last version."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import PercentFormatter

    values = sorted({value for spread in spreads for value, _ in spread.counts})
    shown = values[:STACKED]
    ends = [HIT, theme.never_met, STAND] if signed else ["#BFDDF0", "#56B4E9", "#0072B2", "#8E4FA8"]
    shades = LinearSegmentedColormap.from_list("shades", ends)
    below = np.zeros(len(spreads))
    for place, value in enumerate(shown):
        rest = place == STACKED - 1 and len(values) > STACKED
        counted = [sum(n for v, n in s.counts if v == value or (rest and v > value)) for s in spreads]
        shares = np.array(counted) / [sum(n for _, n in s.counts) for s in spreads]
        name = _signed(value, 0 if float(value).is_integer() else 2) if signed and value else f"{value:g}"
        share = "<1%" if 0 < shares[-1] < 0.005 else f"{shares[-1]:.0%}"
        label = f"{name}{' or more' if rest else ''}  {share}"
        colour = shades(place / max(1, len(shown) - 1))
        axes.bar(versions, shares, _bar_width(versions), bottom=below, color=colour, label=label)
        below += shares
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    handles, labels = axes.get_legend_handles_labels()
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "alignment": "left"}
    axes.legend(handles[::-1], labels[::-1], title="at last", **beside)


def _bar_width(places: Sequence[int]) -> float:
    import numpy as np

    return 0.85 * float(np.median(np.diff(places))) if len(places) > 1 else 0.85


def _bands(axes: "Axes", versions: Sequence[int], spreads: Sequence[Spread], theme: Theme) -> None:
    low, lower, median, upper, high = zip(*(s.quantiles for s in spreads), strict=True) if spreads else [()] * 5
    colour = theme.palette[0]
    axes.fill_between(versions, low, high, color=colour, alpha=0.18, linewidth=0, label="90 % of games")
    axes.fill_between(versions, lower, upper, color=colour, alpha=0.35, linewidth=0, label="half of them")
    axes.plot(versions, median, color=colour, linewidth=2.4, label="median")
    axes.plot(versions, [s.mean for s in spreads], color=theme.palette[1], linewidth=2, label="mean")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def save(figure: "Figure", path: Path) -> None:
    """Write a PNG; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(figure))


def png(figure: "Figure") -> bytes:
    """A figure as a PNG."""
    held = io.BytesIO()
    figure.savefig(held, dpi=150, format="png")
    return held.getvalue()


@contextmanager
def figure_of(size: tuple[float, float], title: str, theme: Theme) -> "Iterator[Figure]":
    """A figure of this size in inches, with a title, in the colours of a theme."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style = {
        "font.size": 12,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.faint,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "figure.facecolor": theme.ground,
        "axes.facecolor": theme.ground,
    }
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        figure.suptitle(title, fontsize=16, fontweight="bold", x=0.01, ha="left")
        yield figure


def _frame(panel: "Axes", row: int, column: int, theme: Theme) -> None:
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, withStroke

    inset = 0.08  # so that frames of neighbours do not touch
    corner, side = (column - 0.5 + inset, row - 0.5 + inset), 1 - 2 * inset
    frame = Rectangle(corner, side, side, fill=False, edgecolor=theme.ink, linewidth=2.2, gid="disagreement")
    halo = withStroke(linewidth=4, foreground=theme.ground)  # without it the frame is lost on the strong colours
    frame.set_path_effects([halo, Normal()])
    panel.add_patch(frame)


def _cells(panel: "Axes", totals: range, theme: Theme) -> None:
    panel.set_xticks(range(len(DEALER)), DEALER)
    panel.set_yticks(range(len(totals)), [str(total) for total in totals])
    panel.set_xticks([i - 0.5 for i in range(1, len(DEALER))], minor=True)
    panel.set_yticks([i - 0.5 for i in range(1, len(totals))], minor=True)
    panel.grid(which="minor", color=theme.ground, linewidth=1.5)
    panel.tick_params(which="both", length=0)
    panel.spines[:].set_visible(False)


def _open_axes(axes: "Axes", theme: Theme) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=theme.faint, alpha=0.2)
    axes.set_axisbelow(True)


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _colours(count: int, theme: Theme) -> list[Any]:
    return [theme.palette[i % len(theme.palette)] for i in range(count)]
