"""Results as people read them: the cells of the console's tables and of the report, and lines of text."""

import re
from collections.abc import Mapping, Sequence

from tasks.environments.interface import EnvironmentSpec, Metric
from tasks.evaluation.metrics import BUILT_IN
from tasks.evaluation.records import Evaluation, Results

REWARD = Metric("reward", "expected reward", "+.3f", headline=True)
SAMPLED = Metric("sampled_reward", "  sampled, not greedy", "+.3f")
FEW_PARTS = 8  # at most that all metrics of each are shown, also in the console


def cell(metric: Metric, results: Results | None, *, interval: bool = True) -> str:
    """A mean in the metric's format, with its interval: `+0.710 ±0.020`; "-" where there is none."""
    own = metric in (REWARD, SAMPLED)
    found = getattr(results, metric.key, None) if own else results and results.metrics.get(metric.key)
    if found is None:
        return "-"
    number = format(found.mean, metric.format)
    return f"{number} ±{format(found.ci95, metric.format.lstrip('+'))}" if interval else number


def minus(text: str) -> str:
    """The text with real minus signs before its negative numbers."""
    return re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", text)


def display_name(name: str) -> str:
    """A baseline's name as people read it: `majority_vote` is "majority vote"."""
    return name.replace("_", " ")


def headlines(spec: EnvironmentSpec) -> list[Metric]:
    """The reward, and the metrics that the environment puts first."""
    return [REWARD, *(metric for metric in spec.metrics if metric.headline)]


def headline_text(metrics: Sequence[Metric], results: Results, between: str = "  ") -> str:
    """`expected reward +0.710 ±0.020  tool calls 1.700 ±0.020`"""
    return between.join(f"{metric.label} {cell(metric, results)}" for metric in metrics)


def ended_badly(results: Sequence[Results]) -> list[Metric]:
    """The share of invalid episodes, and those of truncated ones and of errors where there were any."""
    seen = {key for found in results for key, share in found.metrics.items() if share.mean > 0}
    return [metric for metric in BUILT_IN if metric.key in {"invalid", *seen}]


def results_table(
    spec: EnvironmentSpec, policies: Mapping[str, Results], baselines: Mapping[str, Results] | None = None
) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """The names of the columns; rows of a label and a cell for each: `policies` with intervals, then `baselines`
    without; and further rows for each part of the environment: its reward, then what else it has."""
    others = {display_name(name): found for name, found in (baselines or {}).items()}
    everybody = [*policies.values(), *others.values()]

    def row(label: str, metric: Metric, of: Sequence[Results | None] = everybody) -> list[str]:
        return [label, *(cell(metric, found, interval=i < len(policies)) for i, found in enumerate(of))]

    sampled = [row(SAMPLED.label, SAMPLED)] if any(isinstance(found, Evaluation) for found in everybody) else []
    measured = [row(metric.label, metric) for metric in (*spec.metrics, *ended_badly(everybody))]
    rows = [row(REWARD.label, REWARD), *sampled, *_chances(everybody), *measured]
    part_rows, parts = [], dict.fromkeys(part for found in everybody for part in found.parts)
    metrics = spec.metrics if len(parts) <= FEW_PARTS else headlines(spec)[1:]
    for part in parts:
        of = [found.parts.get(part) for found in everybody]
        known = [metric for metric in metrics if any(metric.key in found.metrics for found in of if found)]
        part_rows += [row(part, REWARD, of), *(row(f"  {metric.label}", metric, of) for metric in known), *_chances(of)]
    return [*policies, *others], rows, part_rows


def _chances(of: Sequence[Results | None]) -> list[list[str]]:
    """A row for each k of pass@k."""
    chances = [found.pass_at if found else {} for found in of]
    return [
        [f"  pass@{k}, sampled", *(format(found[k], ".1%") if k in found else "-" for found in chances)]
        for k in max(chances, key=len)
    ]
