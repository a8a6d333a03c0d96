"""What people can send to someone: report.html, one file that asks for nothing else, and the pages of Flyte's decks.

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
from tasks.evaluation.evaluate import Evaluation, Example, numbers
from tasks.policy.checkpoint import Manifest
from tasks.tracking import console

TEMPLATE = "page.html.jinja"
LONGEST = 2000  # characters of a message that are shown
INPUTS = ("environment", "iterations", "seed", "lag")
COLUMNS = {  # of the table of evaluations
    "expected reward": ("expected_reward", "expected_reward_ci95"),
    "wins": ("win_rate", "win_rate_ci95"),
    "regret": ("regret", "regret_ci95"),
    "invalid": ("invalid_rate", None),
    "agreement": ("agreement", "agreement_ci95"),
    "sampled reward": ("sampled_expected_reward", None),
}


@dataclass(frozen=True)
class Picture:
    """A picture as PNG, for light and, where there is one, for dark pages, and what it shows."""

    alt: str
    light: bytes
    dark: bytes | None = None


@dataclass(frozen=True)
class Origin:
    """What a run was made with: parameters and tags as MLflow keeps them, and when it was opened (seconds since
    1970).

    Example: `Origin({"policy": "tiny", "training.epochs": "4"}, {"git.commit": "9c0f…", "version.torch": "2.13.0"},
    1796014266.0)`.
    """

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    started: float


def table_columns(evaluation: Evaluation) -> dict[str, float]:
    """An evaluation with its optimum's numbers beside it, as the console's table takes them."""
    optimum = {f"optimum_{name}": value for name, value in evaluation.players["optimum"].items()}
    return numbers(evaluation) | optimum


def report_page(
    run: Run,
    evaluations: Sequence[Evaluation],
    played: Sequence[int],
    pictures: Sequence[Picture],
    policy: Manifest,
    origin: Origin | None,
    ended: float,
) -> str:
    """The page of a whole run. `played` are the games before each of the evaluations; `origin` is None where MLflow
    did not answer: then the page says less of where the run comes from."""
    first, last = evaluations[0], evaluations[-1]
    before, after = table_columns(first), table_columns(last)
    return _page(
        title=f"{run.name}: GRPO in {run.environment}",
        subtitle=f"{played[-1]:,} games, {policy.version} policy versions, {_moment(ended)}",
        cards=_cards(before, after),
        decks=f"{last.games:,} held-out decks",
        columns=[f"before (policy {first.policy_version})", f"after (policy {last.policy_version})", "optimum"],
        rows=console.table_rows({"before": before, "after": after}, after),
        pictures=pictures,
        examples=last.examples,
        evaluations=_evaluations(evaluations, played),
        settings=None if origin is None else _settings(origin.parameters),
        made=_made(run, policy, origin, ended),
    )


def evaluation_page(evaluation: Evaluation, pictures: Sequence[Picture]) -> str:
    """The page of one evaluation."""
    optimum = {f"optimum_{key}": value for key, value in evaluation.players["optimum"].items()}
    others = {name.replace("_", " "): found for name, found in evaluation.players.items() if name != "optimum"}
    return _page(
        title=f"Evaluation of policy {evaluation.policy_version}",
        decks=f"{evaluation.games:,} held-out decks",
        columns=["policy", *others, "optimum"],
        rows=console.table_rows({"policy": numbers(evaluation), **others}, optimum),
        pictures=pictures,
        examples=evaluation.examples,
    )


def framed(page: str) -> str:
    """A page as a part of another one, which keeps its styles to itself: what a Flyte deck takes."""
    return f'<iframe title="report" style="width:100%;height:90vh;border:0" srcdoc="{escape(page)}"></iframe>'


def _page(
    *, rows: Sequence[Sequence[str]], pictures: Sequence[Picture], examples: Sequence[Example], **parts: Any
) -> str:
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template(TEMPLATE).render(
        rows=[[label, *map(_minus, cells)] for label, *cells in rows],
        pictures=[
            {"alt": p.alt, "light": _in_line(p.light), "dark": _in_line(p.dark) if p.dark else None} for p in pictures
        ],
        games=[_game(example) for example in examples],
        **{"settings": None, **parts},
    )


def _cards(before: Mapping[str, float], after: Mapping[str, float]) -> list[dict[str, str]]:
    """The headline: each number beside what it was and the optimum's."""

    def card(name: str, key: str, half_width: str, best: str) -> dict[str, str]:
        shown, _, interval = console.value(after, key, half_width).partition(" ±")
        return {
            "name": name,
            "value": _minus(shown),
            "interval": interval,
            "before": _minus(console.value(before, key, None)),
            "optimum": _minus(best),
        }

    def optimum(key: str) -> str:
        return console.value({key: after[f"optimum_{key}"]}, key, None)

    return [
        card("expected reward a game", "expected_reward", "expected_reward_ci95", optimum("expected_reward")),
        card("regret", "regret", "regret_ci95", ""),
        card("games won", "win_rate", "win_rate_ci95", optimum("win_rate")),
        card("agreement", "agreement", "agreement_ci95", ""),
    ]


def _evaluations(evaluations: Sequence[Evaluation], played: Sequence[int]) -> list[list[str]]:
    rows = [["policy", "games played", *COLUMNS]]
    for evaluation, games in zip(evaluations, played, strict=True):
        found = numbers(evaluation)
        cells = [_minus(console.value(found, key, half_width)) for key, half_width in COLUMNS.values()]
        rows.append([str(evaluation.policy_version), f"{games:,}", *cells])
    return rows


def _settings(parameters: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, value, default) of each setting of the config that is not the default."""
    import pandas as pd

    (defaults,) = pd.json_normalize(GrpoConfig().to_dict()).to_dict("records")
    return [
        (str(name), parameters[str(name)], str(default))
        for name, default in defaults.items()
        if parameters.get(str(name), str(default)) != str(default)
    ]


def _made(run: Run, policy: Manifest, origin: Origin | None, ended: float) -> list[tuple[str, str]]:
    made = [("run", run.name), ("policy", f"version {policy.version}, SHA-256 {policy.digest}")]
    if origin is None:
        return [*made, ("seed", str(run.seed)), ("ended", _moment(ended))]
    first = origin.parameters.get("policy", "")
    made.append(("first policy", PurePath(first).name if first[:1] in ("/", ".", "~") else first))
    made += [(name, origin.parameters[name]) for name in INPUTS if name in origin.parameters]
    if decks := origin.parameters.get("evaluation.seed"):
        made.append(("seed of the held-out decks", decks))
    if commit := origin.tags.get("git.commit"):
        changed = ", with changes" if origin.tags.get("git.dirty") == "true" else ""
        made.append(("commit", commit + changed))
    versions = {name.removeprefix("version."): v for name, v in origin.tags.items() if name.startswith("version.")}
    if versions:
        made.append(("versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))))
    took = console.clock(ended - origin.started)
    made += [("began", _moment(origin.started)), ("ended", f"{_moment(ended)}, {took} later")]
    return [*made, ("MLflow run", run.mlflow_run_id)]


def _game(example: Example) -> dict[str, object]:
    judged = iter(example.as_optimum)
    messages = []
    for message in example.messages:
        content = message["content"]
        shown = content if len(content) <= LONGEST else f"{content[:LONGEST]} …"
        as_optimum = next(judged, None) if message["role"] == "assistant" else None
        messages.append({"role": message["role"], "content": shown, "as_optimum": as_optimum})
    return {
        "outcome": example.outcome,
        "sampled": example.sampled,
        "reward": _minus(f"{example.reward:+g}") if example.reward else "0",
        "messages": messages,
    }


def _in_line(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _minus(number: str) -> str:
    return number if number == "-" else number.replace("-", "\N{MINUS SIGN}")
