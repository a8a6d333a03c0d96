"""Evaluations: what is kept of the episodes, by hand; and real policies on test tasks."""

from pathlib import Path

import pytest

from environments.exact_values import exact_value
from evaluation.counting import SPEC, episode
from tasks.config import RolloutConfig
from tasks.environments.interface import Step
from tasks.evaluation.evaluate import TaskSet, annotated, evaluate_policy, examples
from tasks.evaluation.metrics import Z95
from tasks.evaluation.records import Evaluation, Mean, Results
from tasks.evaluation.tracked import flat_metrics

TASKS = 96
CONFIG = RolloutConfig(max_tokens=4)


def evaluated(policy: Path, config: RolloutConfig = CONFIG, seed: int = 0, name: str = "blackjack") -> Evaluation:
    return evaluate_policy(policy, config, TaskSet(name, TASKS, seed))


def test_each_reply_has_what_answered_it_beside_it() -> None:
    shots = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    tool = {"role": "tool", "content": "7", "tool_call_id": "x"}
    steps = [Step([tool], reward=0.25, note="called"), Step(reward=-1.0, done=True, valid=False)]
    said = annotated(episode("0", steps, "invalid", prompt=shots))
    assert [message["role"] for message in said] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert [message.get("reward") for message in said] == [None, None, None, 0.25, None, -1.0]  # not the example's
    assert said[3] == {"role": "assistant", "content": "a", "reward": 0.25, "note": "called", "valid": True}
    assert (said[5]["valid"], said[5]["note"]) == (False, "")


def test_a_reply_that_was_cut_short_has_nothing_beside_it() -> None:
    cut = episode("0", [Step([{"role": "user", "content": "Go on."}])], "truncated")
    cut.messages.append({"role": "assistant", "content": "an endless"})
    assert annotated(cut)[-1] == {"role": "assistant", "content": "an endless"}
    nothing = episode("0", [], "error", "no answer")
    nothing.steps, nothing.messages = [], []
    assert annotated(nothing) == []


def test_an_example_of_each_outcome_the_most_frequent_first() -> None:
    one, two = [Step(reward=1.0)], [Step(), Step(reward=1.0)]
    greedy = [episode("0", one), episode("1", two), episode("2", [Step(valid=False)], "invalid")]
    sampled = [episode("3", [Step(), Step()], "truncated"), episode("4", one), episode("5", one, "error", "away")]
    found = examples(SPEC, greedy, sampled)
    assert [(e.outcome, e.sampled, e.error) for e in found] == [
        ("finished", False, ""),
        ("invalid", False, ""),
        ("truncated", True, ""),
        ("error", True, "away"),
    ]
    assert len([m for m in found[0].messages if m["role"] == "assistant"]) == 2  # rather one with several replies


def test_the_metrics_have_the_names_that_the_curves_look_for() -> None:
    found = Evaluation(
        reward=Mean(0.5, 0.25),
        metrics={"calls": Mean(2.0, 0.5), "invalid": Mean(0.125, 0.1)},
        policy_version=3,
        environment="counting",
        tasks=8,
        seed=0,
        sampled_reward=Mean(0.375, 0.2),
        baselines={"random": Results(reward=Mean(0.0625, 0.1))},
        pass_at={"1": 0.375, "8": 0.75},
        parts={"2 + 3": Results(reward=Mean(1.0, 0.0), metrics={"calls": Mean(1.0, 0.0)})},
    )
    assert flat_metrics(found) == {
        "eval/reward": 0.5,
        "eval/reward_low": 0.25,
        "eval/reward_high": 0.75,
        "eval/sampled_reward": 0.375,
        "eval/pass_at_1": 0.375,
        "eval/pass_at_8": 0.75,
        "eval/random": 0.0625,
        "eval/calls": 2.0,
        "eval/invalid": 0.125,
        "eval.2 . 3/reward": 1.0,
        "eval.2 . 3/calls": 1.0,
    }
    assert Evaluation.from_json(found.to_json()) == found


def test_the_policy_on_test_tasks(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy)
    metrics, optimum = found.metrics, found.baselines["optimum"]
    assert (found.policy_version, found.environment, found.tasks, found.seed) == (0, "blackjack", TASKS, 0)
    assert metrics["won"].mean + metrics["pushed"].mean + metrics["lost"].mean == pytest.approx(1)
    assert metrics["won"].mean - metrics["lost"].mean == pytest.approx(found.reward.mean)
    # The baselines play the same tasks; the optimum gives nothing away, and others what they get less than it.
    gap = optimum.reward.mean - found.reward.mean
    assert abs(metrics["regret"].mean - gap) < 4 * (found.reward.ci95 + optimum.reward.ci95) / Z95
    assert optimum.metrics["regret"] == Mean(0, 0) and optimum.metrics["agreement"].mean == 1
    assert metrics["regret"].mean > 0
    assert 0 <= metrics["agreement"].mean <= 1 and metrics["invalid"].mean < 0.5
    assert list(found.baselines) == ["optimum", "random", "always_stand"]
    assert found.pass_at == {}  # rewards from -1 to 1
    assert Evaluation.from_json(found.to_json()) == found


def test_an_environment_with_rewards_from_0_to_1_has_pass_at_k(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy, name="evaluation.counting")
    assert set(found.pass_at) == {"1", "4", "8"} and found.pass_at["1"] <= found.pass_at["8"]
    assert found.baselines == {} and found.details is None
    assert set(found.parts) == {f"up to {last}" for last in range(1, 6)}
    assert all(set(part.pass_at) == {"1", "4", "8"} for part in found.parts.values())
    assert set(found.metrics) == {"invalid", "truncated", "error"}


def test_with_thinking_it_is_asked_otherwise(tiny_policy: Path) -> None:
    longer = RolloutConfig(max_tokens=16)
    assert evaluated(tiny_policy, longer.replace(thinking=True)).details != evaluated(tiny_policy, longer).details


def test_the_examples_are_episodes_of_the_policy(tiny_policy: Path, newborn_policy: Path) -> None:
    found = evaluated(tiny_policy)
    outcomes = [example.outcome for example in found.examples]
    assert {name for name in ("won", "lost") if found.metrics[name].mean > 0} <= set(outcomes)
    assert len(set(outcomes)) == len(outcomes)
    for example in found.examples:
        said = [message for message in example.messages if message["role"] == "assistant"]
        assert example.messages[0]["role"] == "system" and said
        assert (example.outcome == "won") == (example.reward > 0)
        if example.outcome in ("won", "lost", "pushed"):
            assert all(reply["content"].upper() in ("HIT", "STAND") and reply["valid"] for reply in said)
            assert said[-1]["reward"] == example.reward
    assert {example.outcome for example in evaluated(newborn_policy).examples} <= {"invalid", "truncated"}


def test_the_same_seed_gives_the_same_numbers(tiny_policy: Path) -> None:
    found = evaluated(tiny_policy)
    assert evaluated(tiny_policy) == found
    assert evaluated(tiny_policy, CONFIG.replace(concurrent_episodes=40)) == found  # however many play at once
    assert evaluated(tiny_policy, seed=1).baselines != found.baselines


def test_a_policy_that_cannot_be_read_gets_the_environments_own_reward(newborn_policy: Path) -> None:
    # What training is told of such a reply does not count.
    found = evaluated(newborn_policy, CONFIG.replace(invalid_reward=0.5))
    metrics = found.metrics
    assert metrics["invalid"].mean + metrics["truncated"].mean == metrics["lost"].mean == 1
    assert found.reward.mean == found.sampled_reward.mean == -1
    assert found.details == []
    assert abs(metrics["regret"].mean - exact_value("optimum").expected_reward - 1) < 4 * metrics["regret"].ci95 / Z95
