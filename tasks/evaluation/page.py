"""What people can send to someone: report.html, one file without references to others, and the pages of Flyte's decks.

The text is in page.html.jinja, with a light and a dark theme. Addresses, and paths outside the run, stay out of it.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path, PurePath
from typing import Any

from tasks.config import GrpoConfig, Run
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation.records import Evaluation
from tasks.evaluation.table import cell, display_name, headlines, minus, results_table
from tasks.evaluation.tracked import Origin
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
    columns, rows, parts = results_table(spec, ends, last.baselines)
    table = results_table(spec, {str(place): found for place, found in enumerate(evaluations)})[1]
    versions = ["policy", *(str(found.policy_version) for found in evaluations)]
    before = ["episodes played", *(f"{episodes:,}" for episodes in played)]
    given, defaults = map(flat, (run.given.to_dict(), GrpoConfig().resolved(spec.defaults).whole()))
    return _page(
        title=f"{run.name}: GRPO in {run.environment}",
        subtitle=f"{played[-1]:,} episodes, {policy.version} policy versions, {_moment(ended)}",
        cards=_cards(spec, first, last),
        cold_start=spec.cold_start if run.policy == "tiny" else "",
        columns=columns,
        rows=rows,
        parts=parts,
        pictures=pictures,
        last=last,
        evaluations=list(zip(versions, before, *table, strict=True)),  # a row an evaluation
        settings=[(name, here, defaults.get(name, "")) for name, here in given.items()],
        made=_made(run, policy, origin, ended),
    )


def evaluation_page(spec: EnvironmentSpec, evaluation: Evaluation, pictures: Sequence[Picture]) -> str:
    """The page of one evaluation."""
    baselines = {display_name(name): found for name, found in evaluation.baselines.items()}
    columns, rows, parts = results_table(spec, {"policy": evaluation, **baselines})
    title = f"Evaluation of policy {evaluation.policy_version}"
    return _page(title=title, columns=columns, rows=rows, parts=parts, pictures=pictures, last=evaluation)


def framed(page: str) -> str:
    """A page as a part of another one, which keeps its styles to itself: what a Flyte deck takes."""
    return f'<iframe title="report" style="width:100%;height:90vh;border:0" srcdoc="{escape(page)}"></iframe>'


def _page(**parts: Any) -> str:
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {"minus": minus, "content": _content}
    templates.filters["signed"] = lambda reward: minus(f"{reward:+g}") if reward else "0"
    templates.filters["data_uri"] = lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return templates.get_template(TEMPLATE).render(parts)


def _cards(spec: EnvironmentSpec, before: Evaluation, after: Evaluation) -> list[dict[str, str]]:
    """The reward and each headline metric, beside what it was and what the first baseline has."""
    others = {"before": before, **{display_name(name): found for name, found in list(after.baselines.items())[:1]}}
    cards = []
    for metric in headlines(spec):
        value, _, interval = cell(metric, after).partition(" ±")
        lines = [f"{name} {cell(metric, of, interval=False)}" for name, of in others.items()]
        cards.append({"name": metric.label, "value": value, "interval": interval, "others": lines})
    return cards


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


def _content(message: Mapping[str, Any]) -> str:
    """What a message says and the tools that it calls, shortened to LONGEST; a sampled reply is all that it says."""
    called = () if "reward" in message else message.get("tool_calls") or ()
    calls = [f"{call['name']}({call['arguments']})" for call in called]
    content = "\n".join(filter(None, [message.get("content"), *calls]))
    return content if len(content) <= LONGEST else f"{content[:LONGEST]} …"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
