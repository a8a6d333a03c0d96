"""What people can send to someone: report.html, one file without references to others, and the pages of Flyte's decks.

The text is in page.html.jinja, with a light and a dark theme. Addresses, and paths outside the run, stay out of it.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path, PurePath
from typing import Any

from tasks.config import GrpoConfig, Run
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation.origin import Origin
from tasks.evaluation.records import Evaluation, Example
from tasks.evaluation.table import cell, display_name, headlines, minus, results_table
from tasks.policy.checkpoint import Manifest
from tasks.settings import flat
from tasks.tracking import console

TEMPLATE = "page.html.jinja"
LONGEST = 2000  # characters of a message that are shown
INPUTS = ("environment", "iterations", "seed", "lag")


@dataclass(frozen=True)
class Picture:
    """A picture as PNG, for light and, where there is one, for dark pages, and what it shows."""

    alt: str
    light: bytes
    dark: bytes | None = None


def report_page(
    run: Run,
    spec: EnvironmentSpec,
    evaluations: Sequence[Evaluation],
    played: Sequence[int],
    pictures: Sequence[Picture],
    policy: Manifest,
    origin: Origin | None,
    ended: float,
) -> str:
    """The page of a whole run. `played` are the episodes before each of the evaluations. `origin` is None where MLflow
    did not answer: then the page has no commit, versions and inputs."""
    first, last = evaluations[0], evaluations[-1]
    ends = {f"before (policy {first.policy_version})": first, f"after (policy {last.policy_version})": last}
    columns, rows = results_table(spec, ends, last.baselines)
    defaults = flat(GrpoConfig().resolved(spec.defaults).whole())
    return _page(
        title=f"{run.name}: GRPO in {run.environment}",
        subtitle=f"{played[-1]:,} episodes, {policy.version} policy versions, {_moment(ended)}",
        cards=_cards(spec, first, last),
        tasks=last.tasks,
        columns=columns,
        rows=_minus(rows),
        pictures=pictures,
        examples=last.examples,
        evaluations=_evaluations(spec, evaluations, played),
        settings=[(name, here, defaults.get(name, "")) for name, here in flat(run.given.to_dict()).items()],
        made=_made(run, policy, origin, ended),
    )


def evaluation_page(spec: EnvironmentSpec, evaluation: Evaluation, pictures: Sequence[Picture]) -> str:
    """The page of one evaluation."""
    baselines = {display_name(name): found for name, found in evaluation.baselines.items()}
    columns, rows = results_table(spec, {"policy": evaluation, **baselines})
    return _page(
        title=f"Evaluation of policy {evaluation.policy_version}",
        tasks=evaluation.tasks,
        columns=columns,
        rows=_minus(rows),
        pictures=pictures,
        examples=evaluation.examples,
    )


def framed(page: str) -> str:
    """A page as a part of another one, which keeps its styles to itself: what a Flyte deck takes."""
    return f'<iframe title="report" style="width:100%;height:90vh;border:0" srcdoc="{escape(page)}"></iframe>'


def _page(*, pictures: Sequence[Picture], examples: Sequence[Example], **parts: Any) -> str:
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template(TEMPLATE).render(
        pictures=[
            {"alt": p.alt, "light": _in_line(p.light), "dark": _in_line(p.dark) if p.dark else None} for p in pictures
        ],
        episodes=[_episode(example) for example in examples],
        **parts,
    )


def _cards(spec: EnvironmentSpec, before: Evaluation, after: Evaluation) -> list[dict[str, str]]:
    """The reward and each headline metric, beside what it was and what the first baseline has."""
    baseline = next(iter(after.baselines), None)
    cards = []
    for metric in headlines(spec):
        value, _, interval = cell(metric, after).partition(" ±")
        others = {"before": before, **({display_name(baseline): after.baselines[baseline]} if baseline else {})}
        lines = [f"{name} {minus(cell(metric, of, interval=False))}" for name, of in others.items()]
        cards.append({"name": metric.label, "value": minus(value), "interval": interval, "others": lines})
    return cards


def _evaluations(spec: EnvironmentSpec, evaluations: Sequence[Evaluation], played: Sequence[int]) -> list[list[str]]:
    """A row an evaluation: the rows of its table, turned into columns."""
    _, table = results_table(spec, {str(place): found for place, found in enumerate(evaluations)})
    labels, *cells = zip(*_minus(table), strict=True)
    rows = [
        [str(evaluation.policy_version), f"{episodes:,}", *found]
        for evaluation, episodes, found in zip(evaluations, played, cells, strict=True)
    ]
    return [["policy", "episodes played", *(label.strip() for label in labels)], *rows]


def _made(run: Run, policy: Manifest, origin: Origin | None, ended: float) -> list[tuple[str, str]]:
    made = [("run", run.name), ("policy", f"version {policy.version}, SHA-256 {policy.digest}")]
    if origin is None:
        return [*made, ("seed", str(run.seed)), ("ended", _moment(ended))]
    initial = origin.parameters.get("policy", "")
    made.append(("initial policy", PurePath(initial).name if initial[:1] in ("/", ".", "~") else initial))
    made += [(name, origin.parameters[name]) for name in INPUTS if name in origin.parameters]
    if tasks := origin.parameters.get("evaluation.seed"):
        made.append(("seed of the test tasks", tasks))
    if commit := origin.tags.get("git.commit"):
        changed = ", with changes" if origin.tags.get("git.dirty") == "true" else ""
        made.append(("commit", commit + changed))
    versions = {name.removeprefix("version."): v for name, v in origin.tags.items() if name.startswith("version.")}
    if versions:
        made.append(("versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))))
    took = console.clock(ended - origin.started)
    made += [("began", _moment(origin.started)), ("ended", f"{_moment(ended)}, {took} later")]
    return [*made, ("MLflow run", run.mlflow_run_id)]


def _episode(example: Example) -> dict[str, object]:
    messages = []
    for message in example.messages:
        calls = [f"{call['name']}({call['arguments']})" for call in message.get("tool_calls") or ()]
        content = "\n".join(filter(None, [message.get("content"), *calls]))
        shown = content if len(content) <= LONGEST else f"{content[:LONGEST]} …"
        reward, note = message.get("reward"), message.get("note") or ""
        invalid = message.get("valid") is False
        judged = "  ".join(filter(None, [note or ("invalid" if invalid else ""), _reward(reward) if reward else ""]))
        messages.append({"role": message["role"], "content": shown, "judged": judged, "invalid": invalid})
    return {
        "outcome": example.outcome,
        "sampled": example.sampled,
        "reward": _reward(example.reward),
        "messages": messages,
        "error": example.error,
    }


def _reward(reward: float) -> str:
    return minus(f"{reward:+g}") if reward else "0"


def _minus(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[label, *map(minus, cells)] for label, *cells in rows]


def _in_line(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
