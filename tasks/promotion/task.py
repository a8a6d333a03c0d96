"""Flyte shells around the champion: what a retraining starts from, whether it is promoted; promotion by hand."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from flytekit import FlyteContextManager, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.error.error import FlyteError
from flytekit.types.file import FlyteFile

from tasks.config import GrpoConfig, Run
from tasks.evaluation.compare import FILE, Comparison
from tasks.evaluation.records import each_evaluation, read_evaluation
from tasks.evaluation.tracked import candidate
from tasks.folders import run_folder, write_file
from tasks.here import is_here
from tasks.infrastructure import recoverable
from tasks.json_files import read_record
from tasks.policy.named import find
from tasks.promotion.nights import retire
from tasks.promotion.retraining import begin, decide
from tasks.resources import pod
from tasks.run import ending, names
from tasks.settings import require
from tasks.stages import stage
from tasks.tracking import console, mlflow_run, registry

NOW = datetime.fromtimestamp(0, UTC)  # stands for "now": a launch plan's start time cannot be None


class Beginning(NamedTuple):
    """What a retraining starts with, beside its settings."""

    run_name: str
    policy: str
    seed: int


@task(**pod("cpu"))
def begin_retraining(
    run_name: str,
    start_time: datetime,
    policy: str,
    environment: str,
    tasks: int,
    config: GrpoConfig,
    max_delay_hours: float,
) -> Beginning:
    """Start from the champion, or from `policy` while there is none, with a seed that no other start time has."""
    start = None if start_time.timestamp() == 0 else start_time
    if is_here():
        names.take_retraining(registry.model_name(config.tracking.model, environment))
    with recoverable():
        return Beginning(*begin(run_name, start, policy, environment, tasks, config, max_delay_hours))


@task(**pod("cpu"))
def retraining_failed(
    run_name: str,
    start_time: datetime,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    lag: int,
    tasks: int,
    config: GrpoConfig,
    max_delay_hours: float,
    err: FlyteError | None = None,
) -> None:
    """As `training_failed`, with the inputs of `retrain`."""
    ending.tell_failed(err.message if err else "")


@task(**pod("cpu"))
def decide_promotion(
    run: Run,
    config: GrpoConfig,
    policies: list[FlyteDirectory],
    evaluations: list[FlyteDirectory],
    comparison: FlyteDirectory,
) -> FlyteFile:
    """Promote the last of the policies, or leave the champion; print which and why, and return it as promotion.json."""
    with stage(run):
        policy, evaluated = policies[-1], each_evaluation([Path(evaluations[-1].download())])
        evaluation = read_evaluation(evaluated[-1])
        uri = str(policy.remote_source or policy.path)
        made = candidate(run, config, Path(policy.download()), uri, evaluation)
        version = registry.register(run.tracking_uri, made, lambda uri: True)  # registered already, if MLflow answered
        compared = read_record(Path(comparison.download()) / FILE, Comparison)
        decision = decide(run, version, compared)
        path = run_folder(run.name) / "promotion.json"
        write_file(path, json.dumps(decision, indent=1) + "\n")
        console.stage(decision["why"])
        if is_here():
            model = decision["model"]
            in_use = registry.uris_in_use(run.tracking_uri, model)
            if retired := retire(model, config.retention.nights, in_use):
                console.stage(f"retired by retention.nights = {config.retention.nights}: {', '.join(retired)}")
    return FlyteFile(str(path))


@task(**pod("cpu"))
def promote_version(model: str, version: int) -> str:
    """Make a version champion by hand."""
    require(version >= 1, "version", version, "1 or more, a version of the model")
    uri = mlflow_run.tracking_uri()
    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    find(f"models:/{model}/{version}", files)
    _, said = registry.promote(uri, model, version, "promoted by hand")
    registry.note(uri, model, version, said)
    console.stage(said)
    return said


@task(**pod("cpu"))
def demote_champion(model: str) -> str:
    """Give the alias back to the previous champion by hand."""
    uri = mlflow_run.tracking_uri()
    number, said = registry.demote(uri, model)
    registry.note(uri, model, number, said)
    console.stage(said)
    return said
