"""The pictures show what they were given: artists are counted and read back from the figures."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.evaluation import pictures
from tasks.history import spread

REWARDS = spread(np.array([-1.0, 1.0]))
CHOICES = {
    ("hard", 16, "10"): (0.9, True),  # agrees
    ("hard", 12, "2"): (0.1, True),  # stands where the optimum hits
    ("soft", 18, "A"): (0.6, False),  # hits where the optimum stands
    ("soft", 20, "5"): (0.0, False),  # agrees
    ("hard", 13, "6"): (0.5, False),  # an even split is a STAND
}


def frames(panel: Any) -> list[tuple[float, float]]:
    return [
        (p.get_x() + p.get_width() / 2, p.get_y() + p.get_height() / 2)
        for p in panel.patches
        if p.get_gid() == "disagreement"
    ]


def cells(panel: Any) -> Any:
    """Red, green, blue and opacity of each situation, from the lowest total and the dealer's 2."""
    return panel.images[0].get_array()


def test_the_heat_map_frames_exactly_the_disagreements() -> None:
    panels = pictures.choice_heat_map(CHOICES, "a title").axes[:4]
    by_name = {panel.get_title(): panel for panel in panels}
    # at (dealer's card after the 2, total above the lowest, which is 4 for hard and 12 for soft hands)
    assert frames(by_name["policy, hard hands"]) == [pytest.approx((0, 12 - 4))]
    assert frames(by_name["policy, soft hands"]) == [pytest.approx((9, 18 - 12))]
    assert frames(by_name["optimum, hard hands"]) == frames(by_name["optimum, soft hands"]) == []


def test_the_heat_map_colours_what_was_met_and_leaves_the_rest_grey() -> None:
    from matplotlib.colors import to_rgb

    panels = {panel.get_title(): panel for panel in pictures.choice_heat_map(CHOICES, "a title").axes[:4]}
    hard, soft = (cells(panels[f"policy, {kind} hands"]) for kind in ("hard", "soft"))
    best = cells(panels["optimum, hard hands"])
    grey = pytest.approx(to_rgb(pictures.LIGHT.never_met), abs=0.01)
    assert tuple(soft[20 - 12, 3][:3]) == pytest.approx(to_rgb(pictures.STAND), abs=0.01)
    assert tuple(best[16 - 4, 8][:3]) == pytest.approx(to_rgb(pictures.HIT), abs=0.01)
    met = sum(tuple(cell[:3]) != grey for panel in (hard, soft) for row in panel for cell in row)
    assert met == len(CHOICES)


def test_the_learning_curve_shows_points_band_and_labelled_references() -> None:
    points = [
        {"version": 0, "games": 0, "expected_reward": -0.4, "expected_reward_ci95": 0.02, "regret": 0.36},
        {
            "version": 10,
            "games": 10_240,
            "expected_reward": -0.1,
            "expected_reward_ci95": 0.01,
            "regret": 0.06,
        },
    ]
    figure = pictures.learning_curve(points, {"optimum": -0.04, "random": -0.4}, "t", [(1024, -0.38)])
    axes: Any = figure.axes[0]
    lines = {str(line.get_label()): line for line in axes.lines}
    assert list(lines["held-out decks, greedy"].get_xydata()[1]) == pytest.approx([10.24, -0.1])
    assert list(lines["training games, sampled"].get_xydata()[0]) == pytest.approx([1.024, -0.38])
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == pytest.approx((-0.42, -0.09))
    assert [text.get_text() for text in axes.texts] == ["random  \u22120.40", "optimum  \u22120.04"]
    assert axes.get_title(loc="left") == "policy 10: \u22120.100 ±0.010, regret 0.060"


def test_names_of_lines_that_lie_close_together_are_pushed_apart() -> None:
    points = [{"version": 0, "games": 0, "expected_reward": -1.0, "expected_reward_ci95": 0.0, "regret": 1.0}]
    figure = pictures.learning_curve(points, {"far": -0.5, "a": -0.041, "b": -0.04}, "t")
    figure.canvas.draw()
    axes: Any = figure.axes[0]
    places = {text.get_text().split()[0]: text.get_window_extent() for text in axes.texts}
    assert places["b"].y0 >= places["a"].y1 - 1
    line = axes.transData.transform((0, -0.5))[1]
    assert (places["far"].y0 + places["far"].y1) / 2 == pytest.approx(line, abs=1)  # nothing pushed it


def test_unreadable_replies_have_a_panel_of_their_own() -> None:
    figure = pictures.learning_curve([], {}, "t", [(1000, -0.9), (2000, -0.3)], [(1000, 0.998), (2000, 0.015)])
    (line,) = figure.axes[1].lines
    assert line.get_xydata().tolist() == [[1.0, 0.998], [2.0, 0.015]]
    assert figure.axes[1].get_title(loc="left") == "at first 99.8%, at last 1.5%"
    assert len(pictures.learning_curve([], {}, "t").axes) == 1


def test_stage_times_are_stacked() -> None:
    axes: Any = pictures.stage_times([0, 4], {"rollout": [1.0, 2.0], "train": [3.0, 2.0]}).axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
    assert tops == [1.0, 2.0, 4.0, 4.0]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert middles == [0, 4, 0, 4] and axes.patches[0].get_width() == 0.85 * 4
    assert sorted(axes.get_legend_handles_labels()[1]) == ["rollout  38%", "train  62%"]


def test_few_values_are_stacked_by_their_share_of_the_games() -> None:
    rewards = [spread(np.array([-1, -1, -1, 1.0])), spread(np.array([-1, 0, 1, 1.0]))]
    lengths = [spread(np.arange(1.0, 9.0)), spread(np.array([1.0, 1, 2, 8]))]
    figure = pictures.distributions([0, 1], rewards, lengths, lengths)
    reward, turns, _ = figure.axes
    heights = [round(bar.get_height(), 3) for bar in reward.patches]
    assert heights == [0.75, 0.25, 0, 0.25, 0.25, 0.5]  # losses of version 0 and 1, pushes, wins
    labels = reward.get_legend_handles_labels()[1]
    assert labels == ["\u22121  25%", "0  25%", "+1  50%"]
    assert reward.get_title(loc="left") == "reward: \u22120.50 on average at first, 0.25 at last"
    last = turns.get_legend_handles_labels()[1][-1]
    assert last == "6 or more  25%"
    assert [round(bar.get_height(), 3) for bar in turns.patches[-2:]] == [0.375, 0.25]  # of 1 to 8: 6, 7 and 8


def test_many_values_are_bands() -> None:
    tokens = [spread(np.arange(0.0, 101.0)), spread(np.arange(0.0, 201.0))]
    axes: Any = pictures.distributions([3, 4], tokens, tokens, tokens).axes[2]
    median, mean = axes.lines
    assert median.get_xydata().tolist() == mean.get_xydata().tolist() == [[3, 50], [4, 100]]
    widest, half = (band.get_paths()[0].get_extents() for band in axes.collections)
    assert (widest.ymin, widest.ymax, half.ymin, half.ymax) == (5, 190, 25, 150)


def test_a_theme_colours_ground_and_ink() -> None:
    from matplotlib.colors import to_hex

    for theme in (pictures.LIGHT, pictures.DARK):
        drawn = [
            pictures.choice_heat_map(CHOICES, "t", theme),
            pictures.learning_curve([], {"optimum": -0.04}, "t", theme=theme),
            pictures.stage_times([0], {"rollout": [1.0]}, theme=theme),
            pictures.distributions([0], [REWARDS], [REWARDS], [REWARDS], theme=theme),
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


def test_saved_pictures_are_png_at_150_dots_an_inch(tmp_path: Path) -> None:
    figures = {
        "choices": pictures.choice_heat_map({}, "no game was played"),
        "curve": pictures.learning_curve([], {}, "nothing was evaluated"),
        "times": pictures.stage_times([], {}),
        "distributions": pictures.distributions([], [], [], []),
    }
    for name, figure in figures.items():
        path = tmp_path / "pictures" / f"{name}.png"
        pictures.save(figure, path)
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        size = struct.unpack(">II", data[16:24])
        assert size == tuple(round(inches * 150) for inches in figure.get_size_inches())
