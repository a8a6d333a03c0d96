"""A retraining: what it starts from, and whether its policy takes the champion's place.

    comparison on fresh tasks ─► surely better? ─► still the champion that it was compared with? ─► alias champion

A policy is promoted when the whole 95 % interval of the paired difference is above 0. The interval is two-sided, so a
policy that is exactly as good as the champion is promoted in 2.5 % of the comparisons, about nine nights a year, and a
worse one less often; such a mistake costs a difference too small to be measured. Each comparison has its own tasks, and
a training has one comparison, at its end: there is no second try, and no best of several.
"""

from datetime import UTC, datetime
from typing import Any

from tasks.config import GrpoConfig, Run
from tasks.evaluation.compare import Comparison, check_tasks
from tasks.folders import run_folder
from tasks.json_files import read_object
from tasks.settings import require
from tasks.tracking import mlflow_run, registry


def begin(
    run_name: str,
    start: datetime | None,
    policy: str,
    environment: str,
    tasks: int,
    config: GrpoConfig,
    max_delay_hours: float = 0.0,
) -> tuple[str, str, int]:
    """Name, policy and seed of a retraining: the present champion, by its number, or `policy` where there is none.

    The seed is the start in seconds since 1970: two nights have no training task in common, and the same start gives
    the same result. None starts now. An interrupted run of this name goes on from the policy that it began with, also
    where another one has become champion since.

    Raises ValueError for a start that is more than `max_delay_hours` ago, 0 for any: after a downtime a cluster's
    scheduler launches all nights that it missed.
    """
    check_tasks(tasks)
    require(max_delay_hours >= 0, "max_delay_hours", max_delay_hours, "0 or more; 0 takes any start")
    late = (datetime.now(UTC) - utc(start)).total_seconds() / 3600 if start else 0.0
    if late > max_delay_hours > 0:
        due = f"the night of {utc(start or datetime.now(UTC)):%Y-%m-%d %H:%M} UTC is skipped, it was due"
        raise ValueError(f"{due} {late:.1f} hours ago; allowed: max_delay_hours = {max_delay_hours:g}.")
    record = run_folder(run_name) / "run.json"
    if run_name and record.is_file():
        known = read_object(record)["inputs"]
        if start is None or night_seed(start) == known["seed"]:
            return run_name, known["policy"], known["seed"]
    start = utc(start or datetime.now(UTC))
    champion = registry.champion(mlflow_run.tracking_uri(), registry.model_name(config.tracking.model, environment))
    name = run_name or f"retraining-{start:%Y%m%d-%H%M%S}"
    return name, champion.name if champion else policy, night_seed(start)


def night_seed(start: datetime) -> int:
    """The seed of a start, to the second. Seeds repeat after 68 years."""
    return int(utc(start).timestamp()) % 2**31


def utc(time: datetime) -> datetime:
    """The time in UTC; without a zone it is taken for UTC, as Flyte's are."""
    return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)


def decide(run: Run, version: registry.Version, comparison: Comparison) -> dict[str, Any]:
    """Promote the version when it is surely better than the champion; note the decision with version and run.

    Example: `{"promoted": True, "why": "version 7 of grpo-arithmetic is champion, in the place of version 3: +0.0311
    ±0.0076 an episode on …", "model": "grpo-arithmetic", "version": 7, "difference": 0.0311, "difference_ci95": 0.0076,
    "tasks": 10000, "seed": 7}`.
    """
    uri, model = run.tracking_uri, version.model
    found = comparison.in_words
    if comparison.surely_better:
        promoted, why = registry.promote(uri, model, version.number, found, over=comparison.other)
    else:
        present = registry.champion(uri, model)
        stays = f"version {present.number} of {model} stays champion" if present else f"{model} has no champion yet"
        than = "it" if present else "what it was trained from"
        promoted, why = False, f"{stays}, version {version.number} is not surely better than {than}: {found}"
    numbers = {name: getattr(comparison, name) for name in ("difference", "difference_ci95", "tasks", "seed")}
    compared = {f"comparison.{name}": value for name, value in numbers.items()}
    registry.note(uri, model, version.number, why, run_id=run.mlflow_run_id, **compared)
    return {"promoted": promoted, "why": why, "model": model, "version": version.number, **numbers}
