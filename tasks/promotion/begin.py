"""What a retraining starts from, and its seed."""

import json
from datetime import UTC, datetime

from tasks.config import GrpoConfig
from tasks.evaluation.compare import check_tasks
from tasks.folders import run_folder
from tasks.tracking import mlflow_run, registry


def begin(
    run_name: str, start: datetime | None, policy: str, environment: str, tasks: int, config: GrpoConfig
) -> tuple[str, str, int]:
    """Name, policy and seed of a retraining: the present champion, by its number, or `policy` where there is none.

    The seed is the start in seconds since 1970: two nights have no training task in common, and the same start gives
    the same result. None starts now. An interrupted run of this name goes on from the policy that it began with, also
    where another one has become champion since.
    """
    check_tasks(tasks)
    record = run_folder(run_name) / "run.json"
    if run_name and record.is_file():
        known = json.loads(record.read_text())["inputs"]
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
