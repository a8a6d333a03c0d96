"""The pictures show what they were given: artists are counted and read back from the figures."""

import struct
from typing import Any

import numpy as np
import pytest

from tasks.evaluation import pictures
from tasks.evaluation.records import Mean
from tasks.history import Iteration, distribution

ONE = distribution(np.array([1.0]))


def iteration(number: int, **changes: Any) -> Iteration:
    """An iteration of 1,000 episodes that all were the same."""
    known: dict[str, Any] = {
        "iteration": number,
        "episodes": 1000,
        "played": 1000 * (number + 1),
        "raw_reward": 1.0,
        "invalid_share": 0.0,
        "truncated_share": 0.0,
        "seconds": {},
        "rewards": ONE,
        "tokens": ONE,
        "turns": ONE,
        "outcomes": {"finished": 1000},
    }
    return Iteration(**{**known, **changes})


def test_the_learning_curve_shows_points_band_and_labelled_baselines() -> None:
    points = [(0, Mean(-0.4, 0.02)), (10_240, Mean(-0.1, 0.01))]
    note = "policy 10: expected reward -0.100 ±0.010"
    figure = pictures.learning_curve(
        points, {"best": -0.04, "random": -0.4}, "t", note, [iteration(0, raw_reward=-0.38)]
    )
    axes: Any = figure.axes[0]
    lines = {str(line.get_label()): line for line in axes.lines}
    assert list(lines["test tasks, greedy"].get_xydata()[1]) == pytest.approx([10.24, -0.1])
    assert list(lines["training episodes, sampled"].get_xydata()[0]) == pytest.approx([1.0, -0.38])
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == pytest.approx((-0.42, -0.09))
    assert [text.get_text() for text in axes.texts] == ["random  \u22120.40", "best  \u22120.04"]
    assert axes.get_title(loc="left") == "policy 10: expected reward \u22120.100 ±0.010"


def test_names_of_lines_that_lie_close_together_are_pushed_apart() -> None:
    figure = pictures.learning_curve([(0, Mean(-1.0, 0.0))], {"far": -0.5, "a": -0.041, "b": -0.04}, "t")
    figure.canvas.draw()
    axes: Any = figure.axes[0]
    places = {text.get_text().split()[0]: text.get_window_extent() for text in axes.texts}
    assert places["b"].y0 >= places["a"].y1 - 1
    line = axes.transData.transform((0, -0.5))[1]
    assert (places["far"].y0 + places["far"].y1) / 2 == pytest.approx(line, abs=1)  # nothing pushed it


def test_invalid_and_truncated_episodes_have_a_panel_of_their_own() -> None:
    history = [iteration(0, invalid_share=0.99, truncated_share=0.008), iteration(1, invalid_share=0.015)]
    figure = pictures.learning_curve([], {}, "t", history=history)
    (line,) = figure.axes[1].lines
    assert line.get_xydata() == pytest.approx(np.array([[1.0, 0.998], [2.0, 0.015]]))
    assert figure.axes[1].get_title(loc="left") == "invalid or truncated: at first 99.8%, at last 1.5%"
    assert len(pictures.learning_curve([], {}, "t", history=history[1:]).axes) == 1


def test_stage_times_are_stacked() -> None:
    history = [
        iteration(0, seconds={"rollout": 1.0, "train": 3.0}),
        iteration(4, seconds={"rollout": 2.0, "train": 2.0}),
    ]
    axes: Any = pictures.stage_times(history, "t").axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
    assert tops == [1.0, 2.0, 4.0, 4.0]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert middles == [0, 4, 0, 4] and axes.patches[0].get_width() == 0.85 * 4
    assert sorted(axes.get_legend_handles_labels()[1]) == ["rollout  38%", "train  62%"]


def test_few_values_are_stacked_by_their_share_of_the_episodes() -> None:
    rewards = [distribution(np.array([-1, -1, -1, 1.0])), distribution(np.array([-1, 0, 1, 1.0]))]
    turns = [distribution(np.arange(1.0, 9.0)), distribution(np.array([1.0, 1, 2, 8]))]
    figure = pictures.distributions([iteration(i, rewards=rewards[i], turns=turns[i]) for i in (0, 1)], "t")
    reward, replies, _ = figure.axes  # one outcome has no panel
    heights = [round(bar.get_height(), 3) for bar in reward.patches]
    assert heights == [0.75, 0.25, 0, 0.25, 0.25, 0.5]  # -1 in version 0 and 1, then 0, then 1
    labels = reward.get_legend_handles_labels()[1]
    assert labels == ["\u22121  25%", "0  25%", "+1  50%"]
    assert reward.get_title(loc="left") == "reward: \u22120.50 on average at first, 0.25 at last"
    last = replies.get_legend_handles_labels()[1][-1]
    assert last == "6 or more  25%"
    assert [round(bar.get_height(), 3) for bar in replies.patches[-2:]] == [0.375, 0.25]  # of 1 to 8: 6, 7 and 8


def test_outcomes_are_stacked_the_most_frequent_below() -> None:
    outcomes = [{"wrong": 3, "time-out": 1}, {"solved": 997, "wrong": 3}]
    axes: Any = pictures.distributions([iteration(i, outcomes=outcomes[i]) for i in (0, 1)], "t").axes[0]
    assert axes.get_legend_handles_labels()[1] == ["solved  100%", "wrong  <1%", "time-out  0%"]
    assert [bar.get_height() for bar in axes.patches] == [0, 0.997, 0.75, 0.003, 0.25, 0]


def test_many_values_are_bands() -> None:
    tokens = [distribution(np.arange(0.0, 101.0)), distribution(np.arange(0.0, 201.0))]
    axes: Any = pictures.distributions([iteration(3 + i, tokens=tokens[i]) for i in (0, 1)], "t").axes[2]
    median, mean = axes.lines
    assert median.get_xydata().tolist() == mean.get_xydata().tolist() == [[3, 50], [4, 100]]
    widest, half = (band.get_paths()[0].get_extents() for band in axes.collections)
    assert (widest.ymin, widest.ymax, half.ymin, half.ymax) == (5, 190, 25, 150)


def test_a_theme_colours_ground_and_ink() -> None:
    from matplotlib.colors import to_hex

    for theme in (pictures.LIGHT, pictures.DARK):
        drawn = [
            pictures.learning_curve([], {"best": -0.04}, "t", theme=theme),
            pictures.stage_times([iteration(0, seconds={"rollout": 1.0})], "t", theme),
            pictures.distributions([iteration(0, outcomes={"won": 1, "lost": 1})], "t", theme),
        ]
        for figure in drawn:
            assert to_hex(figure.get_facecolor()).upper() == theme.ground
            for axes in figure.axes:
                for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.get_xticklabels()):
                    assert contrast(to_hex(text.get_color()), theme.ground) > 4.5


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours' luminance; text wants 4.5."""
    from matplotlib.colors import to_rgb

    def luminance(colour: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_saved_pictures_are_png_at_150_dots_an_inch() -> None:
    figures = {
        "curve": pictures.learning_curve([], {}, "nothing was evaluated"),
        "times": pictures.stage_times([], "no time was spent"),
        "distributions": pictures.distributions([], "nothing was played"),
    }
    for figure in figures.values():
        data = pictures.png(figure)
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        size = struct.unpack(">II", data[16:24])
        assert size == tuple(round(inches * 150) for inches in figure.get_size_inches())
