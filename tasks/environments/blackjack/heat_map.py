"""The policy's choices beside the optimum's: the player's total down, the dealer's open card across."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, withStroke

from tasks.environments.blackjack.optimum import best_move_by_total
from tasks.evaluation.pictures import LIGHT, Theme, figure_of

DEALER = ("2", "3", "4", "5", "6", "7", "8", "9", "10", "A")
TOTALS = {"hard": range(4, 22), "soft": range(12, 22)}
STAND, EITHER, HIT = "#0072B2", "#F7F4EE", "#D55E00"


def choice_heat_map(choices: Sequence[Sequence[Any]], title: str, theme: Theme = LIGHT) -> Figure:
    """The policy's choices, as `count_choices` gives them, beside the optimum's, for hard and for soft hands.

    Situations never met stay grey. A frame marks each situation in which the policy's more frequent choice is not the
    optimum's; an even split is a STAND.
    """
    best = best_move_by_total()
    with figure_of((10.5, 9.4), title, theme) as figure:
        colours = LinearSegmentedColormap.from_list("choices", [STAND, EITHER, HIT])
        colours = colours.with_extremes(bad=theme.neutral)
        heights = [len(totals) for totals in TOTALS.values()]
        axes = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=heights)
        colouring = ScalarMappable(Normalize(0, 1), colours)
        for row, (kind, totals) in enumerate(TOTALS.items()):
            shares = np.full((2, len(totals), len(DEALER)), np.nan)
            for name, dealer, met, hit in choices:
                of_kind, total = name.split()
                if of_kind == kind:
                    cell = int(total) - totals.start, DEALER.index(dealer)
                    shares[0][cell], shares[1][cell] = hit / met, best[name, dealer] == "HIT"
                    if (hit / met > 0.5) != shares[1][cell]:
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


def _frame(panel: Axes, row: int, column: int, theme: Theme) -> None:
    inset = 0.08  # so that frames of neighbours do not touch
    corner, side = (column - 0.5 + inset, row - 0.5 + inset), 1 - 2 * inset
    frame = Rectangle(corner, side, side, fill=False, edgecolor=theme.ink, linewidth=2.2, gid="disagreement")
    halo = withStroke(linewidth=4, foreground=theme.ground)  # without it the frame is lost on the strong colours
    frame.set_path_effects([halo, Normal()])
    panel.add_patch(frame)


def _cells(panel: Axes, totals: range, theme: Theme) -> None:
    panel.set_xticks(range(len(DEALER)), DEALER)
    panel.set_yticks(range(len(totals)), [str(total) for total in totals])
    panel.set_xticks([i - 0.5 for i in range(1, len(DEALER))], minor=True)
    panel.set_yticks([i - 0.5 for i in range(1, len(totals))], minor=True)
    panel.grid(which="minor", color=theme.ground, linewidth=1.5)
    panel.tick_params(which="both", length=0)
    panel.spines[:].set_visible(False)
