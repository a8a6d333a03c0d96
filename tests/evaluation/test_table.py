"""Numbers as people read them: cells, rows and lines of text."""

from dataclasses import replace

import pytest

from evaluation.counting import SPEC
from tasks.environments.interface import Metric
from tasks.evaluation.records import Evaluation, Mean, Results
from tasks.evaluation.table import (
    FEW_PARTS,
    REWARD,
    cell,
    ended_badly,
    headline_text,
    headlines,
    minus,
    results_table,
)

SOLVED = replace(
    SPEC,
    metrics=(
        Metric("wins", "wins", ".1%"),
        Metric("regret", "regret", headline=True),
        Metric("agreement", "agreement with it", ".1%"),
    ),
)
AFTER = Evaluation(
    reward=Mean(-0.048, 0.0213),
    metrics={"wins": Mean(0.432, 0.011), "regret": Mean(0.0114, 0.009), "invalid": Mean(0.0, 0.0)},
    policy_version=2,
    environment="solved",
    tasks=8192,
    seed=0,
    sampled_reward=Mean(-0.12, 0.05),
)
BEFORE = replace(AFTER, policy_version=0, reward=Mean(-0.806, 0.013))
BEST = Results(
    reward=Mean(-0.036, 0.02),
    metrics={"regret": Mean(0.0, 0.0), "agreement": Mean(1.0, 0.0), "invalid": Mean(0.0, 0.0)},
)


def test_before_after_and_each_baseline_in_the_order_of_the_spec() -> None:
    columns, rows, parts = results_table(
        SOLVED, {"before": BEFORE, "after": AFTER}, {"best": BEST, "always_stand": BEST}
    )
    assert columns == ["before", "after", "best", "always stand"] and parts == []
    assert rows == [
        ["expected reward", "-0.806 ±0.013", "-0.048 ±0.021", "-0.036", "-0.036"],
        ["  sampled, not greedy", "-0.120 ±0.050", "-0.120 ±0.050", "-", "-"],
        ["wins", "43.2% ±1.1%", "43.2% ±1.1%", "-", "-"],
        ["regret", "0.011 ±0.009", "0.011 ±0.009", "0.000", "0.000"],
        ["agreement with it", "-", "-", "100.0%", "100.0%"],
        ["invalid replies", "0.0% ±0.0%", "0.0% ±0.0%", "0.0%", "0.0%"],
    ]


def test_what_ended_badly_is_shown_where_there_was_some() -> None:
    failed = replace(AFTER, metrics={**AFTER.metrics, "truncated": Mean(0.0, 0.0), "error": Mean(0.01, 0.002)})
    labels = [row[0] for row in results_table(SPEC, {"policy": failed}, {"best": BEST})[1]]
    assert labels == ["expected reward", "  sampled, not greedy", "invalid replies", "errors"]
    assert [metric.key for metric in ended_badly([AFTER])] == ["invalid"]


def test_two_policies_compared_have_no_row_for_what_was_not_sampled() -> None:
    _, rows, _ = results_table(SPEC, {"policy": BEST, "other": BEST})
    assert [row[0] for row in rows] == ["expected reward", "invalid replies"]
    assert rows[0] == ["expected reward", "-0.036 ±0.020", "-0.036 ±0.020"]


def test_pass_at_k_has_a_row_each() -> None:
    passed = replace(AFTER, pass_at={"1": 0.25, "8": 0.5})
    _, rows, _ = results_table(SPEC, {"before": BEFORE, "after": passed}, {"best": BEST})
    assert rows[2:4] == [["  pass@1, sampled", "-", "25.0%", "-"], ["  pass@8, sampled", "-", "50.0%", "-"]]


def test_a_part_has_the_metrics_that_were_measured_on_it() -> None:
    easy = Results(reward=Mean(0.5, 0.1), metrics={"wins": Mean(0.75, 0.05)}, pass_at={"1": 0.5})
    hard = Results(reward=Mean(-0.5, 0.1), metrics={"regret": Mean(0.25, 0.01)})
    after = replace(AFTER, parts={"easy": easy, "hard": hard})
    best = replace(BEST, parts={"hard": hard})
    rows = results_table(SOLVED, {"before": BEFORE, "after": after}, {"best": best})[2]
    assert rows == [
        ["easy", "-", "+0.500 ±0.100", "-"],
        ["  wins", "-", "75.0% ±5.0%", "-"],
        ["  pass@1, sampled", "-", "50.0%", "-"],
        ["hard", "-", "-0.500 ±0.100", "-0.500"],
        ["  regret", "-", "0.250 ±0.010", "0.250"],
    ]
    many = replace(AFTER, parts={f"family {i}": easy for i in range(FEW_PARTS + 1)})
    labels = [row[0] for row in results_table(SOLVED, {"after": many})[2]]
    assert labels[:3] == ["family 0", "  pass@1, sampled", "family 1"]


def test_a_line_of_the_headlines() -> None:
    assert headline_text(headlines(SOLVED), AFTER) == "expected reward -0.048 ±0.021  regret 0.011 ±0.009"
    assert headline_text(headlines(SPEC), AFTER, ", ") == "expected reward -0.048 ±0.021"


def test_a_metric_named_as_a_field_is_not_that_field() -> None:
    own = Metric("reward", "reward per dollar", ".2f")
    assert cell(own, AFTER) == "-" and cell(REWARD, AFTER, interval=False) == "-0.048"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("-0.5 ±0.1", "\u22120.5 ±0.1"), ("-", "-"), ("pass-1 -1", "pass-1 \u22121"), ("time-out", "time-out")],
)
def test_only_negative_numbers_have_a_minus_sign(text: str, shown: str) -> None:
    assert minus(text) == shown
