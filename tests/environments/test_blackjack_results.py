"""What people see of BlackJack: metrics, exact values of the baselines, keys of summary.json, the heat map."""

import asyncio
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest

from environments.exact_values import exact_value
from tasks.environments.blackjack.game import Game, shuffled_deck
from tasks.environments.blackjack.heat_map import HIT, STAND, choice_heat_map
from tasks.environments.blackjack.language import count_choices
from tasks.environments.blackjack.optimum import action_values
from tasks.environments.blackjack.spec import draw_choices
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Episode, Step, Task
from tasks.environments.scripted import play_baseline
from tasks.evaluation.evaluate import TaskSet
from tasks.evaluation.metrics import Z95, measure
from tasks.evaluation.pictures import DARK, LIGHT
from tasks.evaluation.records import Evaluation, Mean
from tasks.evaluation.report import summary

SPEC = get_environment("blackjack")
TASKS = TaskSet("blackjack", tasks=4096, seed=0).choose(SPEC)
CHOICES = [
    ["hard 16", "10", 10, 9],  # agrees
    ["hard 12", "2", 10, 1],  # stands where the optimum hits
    ["soft 19", "A", 5, 3],  # hits where the optimum stands
    ["soft 20", "5", 7, 0],  # agrees
    ["hard 13", "6", 2, 1],  # an even split is a STAND
]


@pytest.mark.parametrize("baseline", ["optimum", "random", "always_stand"])
def test_baselines_come_to_their_exact_values(baseline: str) -> None:
    found, exact = measure(SPEC, play_baseline(SPEC, baseline, TASKS)), exact_value(baseline)
    assert abs(found.reward.mean - exact.expected_reward) < 4 * found.reward.ci95 / Z95
    for metric, share in (("won", exact.win), ("pushed", exact.push), ("lost", exact.loss)):
        assert abs(found.metrics[metric].mean - share) < 4 * sqrt(share * (1 - share)) / 64


@pytest.mark.parametrize("baseline", ["random", "always_stand"])
def test_regret_is_what_the_moves_give_away_in_expectation(baseline: str) -> None:
    found = measure(SPEC, play_baseline(SPEC, baseline, TASKS))
    exact = exact_value("optimum").expected_reward - exact_value(baseline).expected_reward
    regret = found.metrics["regret"]
    assert abs(regret.mean - exact) < 4 * regret.ci95 / Z95
    assert regret.ci95 < found.reward.ci95  # the luck of the cards is not in it


def test_the_optimum_has_no_regret() -> None:
    assert measure(SPEC, play_baseline(SPEC, "optimum", TASKS[:500])).metrics["regret"] == Mean(0, 0)


def test_a_reply_that_is_no_move_gives_all_away() -> None:
    task = TASKS[0]
    game = Game(shuffled_deck(task.seed))
    seen = game.observe()
    first = action_values(seen.player_cards, seen.dealer_card)
    cut = Episode(task, steps=[Step()], messages=[{"role": "assistant", "content": "I th"}], finish_reason="truncated")
    unreadable = asyncio.run(_steps(task, ["I think"]))
    assert measure(SPEC, [cut, cut]).metrics["regret"].mean == pytest.approx(max(first.values()) + 1)
    assert unreadable[-1].metrics["regret"] == pytest.approx(max(first.values()) + 1)


def test_what_was_given_away_before_a_reply_was_cut_short_counts_as_well() -> None:
    task = next(t for t in TASKS if not Game(shuffled_deck(t.seed)).play("HIT").done)
    game = Game(shuffled_deck(task.seed))
    before, after = game.observe(), game.play("HIT")
    first, second = (action_values(seen.player_cards, seen.dealer_card) for seen in (before, after))
    said = [{"role": "assistant", "content": word} for word in ("HIT", "I th")]
    steps = asyncio.run(_steps(task, ["HIT"]))
    cut = Episode(task, steps=steps, messages=said, finish_reason="truncated")
    expected = max(first.values()) - first["HIT"] + max(second.values()) + 1
    assert measure(SPEC, [cut, cut]).metrics["regret"].mean == pytest.approx(expected)


async def _steps(task: Task, replies: list[str]) -> list[Step]:
    environment = SPEC.make()
    steps = [await environment.reset(task)]
    return steps + [await environment.step({"role": "assistant", "content": reply}) for reply in replies]


def test_a_push_is_not_a_win() -> None:
    episodes = [Episode(task, steps=[Step()], finish_reason="finished") for task in TASKS[:10]]
    metrics = measure(SPEC, episodes).metrics
    assert [metrics[name].mean for name in ("won", "pushed", "lost")] == [0, 1, 0]
    assert {SPEC.outcome(episode) for episode in episodes} == {"pushed"}


def evaluation(version: int, reward: float, regret: float) -> Evaluation:
    measured = {"won": 0.43, "regret": regret, "invalid": 0.01, "truncated": 0.02, "agreement": 0.9}
    metrics = {name: Mean(value, 0.009) for name, value in measured.items()}
    return Evaluation(
        reward=Mean(reward, 0.02),
        metrics=metrics,
        policy_version=version,
        environment="blackjack",
        tasks=4096,
        seed=0,
        sampled_reward=Mean(-0.12, 0.05),
    )


def test_the_summary_has_blackjacks_keys_beside_those_of_every_environment() -> None:
    found = summary(SPEC, evaluation(0, -0.8, 0.76), evaluation(2, -0.05, 0.01), episodes=173_000)
    own = {
        "expected_reward": -0.05,
        "expected_reward_ci95": 0.02,
        "win_rate": 0.43,
        "regret": 0.01,
        "regret_ci95": 0.009,
        "invalid_rate": 0.03,  # unreadable or endless: both lose the game
        "agreement": 0.9,
        "games": 173_000,
        "evaluation_games": 4096,
    }
    assert {name: found[name] for name in own} == pytest.approx(own)
    assert found["before"]["expected_reward"] == found["before"]["reward"] == -0.8
    assert (found["before"]["win_rate"], found["before"]["regret"]) == (0.43, 0.76)
    assert found["metrics"]["regret"] == {"mean": 0.01, "ci95": 0.009} and found["reward"] == -0.05


def test_a_policy_that_never_answered_has_no_agreement() -> None:
    mute = evaluation(0, -1.0, 0.96)
    mute = replace(mute, metrics={name: mean for name, mean in mute.metrics.items() if name != "agreement"})
    assert summary(SPEC, mute, mute, episodes=10)["agreement"] == 0


def said(*messages: str) -> Episode:
    roles = ["user", "assistant"] * len(messages)
    return Episode(Task("0", "test", 0), [{"role": r, "content": c} for r, c in zip(roles, messages, strict=False)])


def test_the_choices_are_what_was_met() -> None:
    sixteen = "Cards 10 6, hard 16. Dealer 10."
    episodes = [
        said(sixteen, "hit", "Cards 10 6 2, hard 18. Dealer 10.", "STAND"),
        said(sixteen, "STAND"),
        said(sixteen, "both"),  # no decision
        said("Cards A 7, soft 18. Dealer A.", "Hm.\nHIT"),  # one with thinking only
    ]
    assert count_choices(episodes, thinking=False) == [["hard 16", "10", 2, 1], ["hard 18", "10", 1, 0]]
    assert count_choices(episodes, thinking=True)[-1] == ["soft 18", "A", 1, 1]


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
    panels = choice_heat_map(CHOICES, "a title").axes[:4]
    by_name = {panel.get_title(): panel for panel in panels}
    # at (dealer's card after the 2, total above the lowest, which is 4 for hard and 12 for soft hands)
    assert frames(by_name["policy, hard hands"]) == [pytest.approx((0, 12 - 4))]
    assert frames(by_name["policy, soft hands"]) == [pytest.approx((9, 19 - 12))]
    assert frames(by_name["optimum, hard hands"]) == frames(by_name["optimum, soft hands"]) == []


def test_the_heat_map_colours_what_was_met_and_leaves_the_rest_grey() -> None:
    from matplotlib.colors import to_rgb

    panels = {panel.get_title(): panel for panel in choice_heat_map(CHOICES, "a title").axes[:4]}
    hard, soft = (cells(panels[f"policy, {kind} hands"]) for kind in ("hard", "soft"))
    best = cells(panels["optimum, hard hands"])
    grey = pytest.approx(to_rgb(LIGHT.neutral), abs=0.01)
    assert tuple(soft[20 - 12, 3][:3]) == pytest.approx(to_rgb(STAND), abs=0.01)
    assert tuple(best[16 - 4, 8][:3]) == pytest.approx(to_rgb(HIT), abs=0.01)
    met = sum(tuple(cell[:3]) != grey for panel in (hard, soft) for row in panel for cell in row)
    assert met == len(CHOICES)


def test_the_heat_map_is_drawn_from_the_details_of_an_evaluation() -> None:
    from matplotlib.colors import to_hex

    for theme in (LIGHT, DARK):
        for details in ([], [["hard 16", "10", 2, 1]]):
            figure = draw_choices(details, "Policy 2", theme)
            assert to_hex(figure.get_facecolor()).upper() == theme.ground
    assert figure.get_suptitle() == "Policy 2, beside the optimum"
