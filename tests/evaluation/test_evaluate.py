"""Evaluations: rates by hand, scripted players at their exact values, a policy on held-out decks."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.evaluation.evaluate import (
    Z95,
    Evaluation,
    evaluate_policy,
    flat_metrics,
    heat_map_cells,
    outcome,
    scripted_rewards,
)

GAMES = 96
CONFIG = RolloutConfig()


def evaluated(policy: Path, config: RolloutConfig = CONFIG, seed: int = 0) -> Evaluation:
    return evaluate_policy(policy, config, environment="blackjack", games=GAMES, seed=seed)


def test_rates_by_hand() -> None:
    # Five games: deviations from the mean 0 are 1, 1, 0, 1, 1, so the sample variance is 4 / 4.
    found = outcome(np.array([1.0, 1.0, 0.0, -1.0, -1.0]))
    assert (found["expected_reward"], found["win_rate"], found["push_rate"], found["loss_rate"]) == (0, 0.4, 0.2, 0.4)
    assert found["expected_reward_ci95"] == pytest.approx(1.959964 / sqrt(5))
    assert found["push_rate_ci95"] == pytest.approx(1.959964 * sqrt(0.2 / 5))  # variance (4 x 0.04 + 0.64) / 4


def test_a_push_is_not_a_win() -> None:
    found = outcome(np.zeros(10))
    assert (found["win_rate"], found["push_rate"], found["loss_rate"]) == (0, 1, 0)
    assert found["win_rate_ci95"] == 0


@pytest.mark.parametrize(
    ("player", "expected_reward", "win_rate"),
    [("optimum", -0.0425, 0.433), ("random", -0.393, None), ("always_stand", -0.183, None)],
)
def test_scripted_players_come_to_their_exact_values(
    player: str, expected_reward: float, win_rate: float | None
) -> None:
    rewards = scripted_rewards("blackjack", player, 0, 4096)
    assert rewards.shape == (4096,) and set(rewards) == {-1.0, 0.0, 1.0}
    assert abs(rewards.mean() - expected_reward) < 4 * rewards.std() / 64
    if win_rate is not None:
        assert abs((rewards > 0).mean() - win_rate) < 4 * sqrt(win_rate * (1 - win_rate)) / 64


def test_scripted_players_play_the_same_decks_each_time() -> None:
    first, other = scripted_rewards("blackjack", "optimum", 0, 500), scripted_rewards("blackjack", "optimum", 1, 500)
    assert (scripted_rewards("blackjack", "optimum", 0, 4096)[:500] == first).all()
    assert (first != other).any()
    assert (first >= scripted_rewards("blackjack", "always_stand", 0, 500)).mean() > 0.9


def test_the_policy_on_held_out_decks(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy)
    optimum = scripted_rewards("blackjack", "optimum", 0, GAMES)
    assert (found.policy_version, found.games) == (0, GAMES)
    assert found.win_rate + found.push_rate + found.loss_rate == pytest.approx(1)
    assert found.win_rate - found.loss_rate == pytest.approx(found.expected_reward)
    assert found.regret == pytest.approx(optimum.mean() - found.expected_reward)
    assert found.regret > -4 * found.regret_ci95 / Z95
    assert 0 <= found.agreement <= 1 and found.invalid_rate < 0.5
    assert list(found.players) == ["optimum", "random", "always_stand"]
    assert found.players["optimum"] == outcome(optimum)  # on the same decks: the optimum's regret against itself is 0
    assert Evaluation.from_json(found.to_json()) == found


def test_the_metrics_have_the_names_that_the_curves_look_for(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy)
    metrics = flat_metrics(found)
    assert set(metrics) == {
        *(f"eval/expected_reward{end}" for end in ("", "_low", "_high")),
        *(f"eval/{name}" for name in ("optimum", "regret", "win_rate", "invalid_rate", "agreement")),
        "eval/sampled_expected_reward",
    }
    assert metrics["eval/expected_reward_low"] == found.expected_reward - found.expected_reward_ci95
    assert metrics["eval/expected_reward_high"] == found.expected_reward + found.expected_reward_ci95
    assert metrics["eval/optimum"] == pytest.approx(metrics["eval/expected_reward"] + metrics["eval/regret"])
    assert all(isinstance(value, float) for value in metrics.values())


def test_with_thinking_it_is_asked_otherwise(tiny_policy: Path) -> None:
    longer = RolloutConfig(max_tokens=16)
    assert evaluated(tiny_policy, replace(longer, thinking=True)).choices != evaluated(tiny_policy, longer).choices


def test_the_choices_are_what_was_met(tiny_policy: Path) -> None:
    kind, found = get_environment("blackjack"), evaluated(tiny_policy)
    assert sum(met for _, _, met, _ in found.choices) >= GAMES * (1 - found.invalid_rate)
    assert all(row in kind.rows and column in kind.columns and 0 <= h <= m for row, column, m, h in found.choices)
    cells = heat_map_cells(kind, found)
    assert len(cells) == len(found.choices)
    row, column, met, hits = found.choices[0]
    share, optimum_hits = cells[row.split()[0], int(row.split()[1]), column]
    assert share == hits / met and optimum_hits == (kind.best_moves()[row, column] == "HIT")


def test_an_example_of_each_outcome_is_kept(tiny_policy: Path, newborn_policy: Path) -> None:
    found = evaluated(tiny_policy)
    outcomes = [example.outcome for example in found.examples]
    met = [("won", found.win_rate), ("pushed", found.push_rate), ("lost", found.loss_rate - found.invalid_rate)]
    assert {outcome for outcome, rate in met if rate > 0} <= set(outcomes)
    assert len(set(outcomes)) == len(outcomes)
    for example in found.examples:
        said = [message["content"] for message in example.messages if message["role"] == "assistant"]
        assert len(said) == len(example.as_optimum) and example.messages[0]["role"] == "system"
        assert (example.outcome == "won") == (example.reward > 0)
        assert (example.as_optimum[-1] is None) == (example.outcome == "invalid")
        assert all(reply in ("HIT", "STAND") for reply in said[: -1 if example.outcome == "invalid" else None])
    (lost,) = evaluated(newborn_policy).examples
    assert (lost.outcome, lost.reward, lost.sampled, lost.as_optimum) == ("invalid", -1, False, [None])


def test_the_same_seed_gives_the_same_numbers(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy)
    assert evaluated(tiny_policy) == found
    assert evaluated(tiny_policy, RolloutConfig(concurrent_episodes=40)) == found  # however many play at once
    assert evaluated(tiny_policy, seed=1).players != found.players


def test_a_policy_that_cannot_be_read_forfeits_every_game(newborn_policy: Path) -> None:
    found = evaluated(newborn_policy, RolloutConfig(invalid_reward=0.5))  # what training pays for it does not count
    assert (found.invalid_rate, found.loss_rate, found.expected_reward, found.agreement) == (1, 1, -1, 0)
    assert found.sampled_expected_reward == -1
    assert found.choices == []
    assert found.regret == pytest.approx(scripted_rewards("blackjack", "optimum", 0, GAMES).mean() + 1)
