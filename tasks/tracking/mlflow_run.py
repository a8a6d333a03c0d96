"""One MLflow run a training, its id passed from stage to stage in `Run`.

    prepare, open_run ─► run id ─► each stage: log_metrics(step = policy version), log_file ─► finish, fail

A training that is resumed, or whose tasks are tried again, finds its run again by a tag, so that its curves go on where
they were. What a stage logs goes through `outbox.py`: a server that is away while a training runs holds up nothing.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from tasks.config import Run
from tasks.tracking import outbox
from tasks.tracking.mlflow_store import (
    check_reachable,
    client,
    experiment,
    one_process_at_a_time,
    tracking_uri,
)
from tasks.tracking.provenance import git_state, library_versions, started_by

__all__ = [
    "describe",
    "fail",
    "finish",
    "git_state",
    "keep_config",
    "log_file",
    "log_metrics",
    "log_tags",
    "note_shard",
    "open_run",
    "seconds_since_start",
    "start_time",
    "tracking_uri",
]

TOKEN_TAG = "grpo.token"
FAILURE_TAG = "failure"
DROPPED = "health/dropped_non_finite"
CONFIG = "config.json"  # among the run's artifacts


def open_run(*, uri: str, name: str, token: str, parameters: Mapping[str, object], tags: Mapping[str, str]) -> str:
    """The id of the training's MLflow run: a new one, or the one an earlier attempt with this token opened.

    Parameters are flat, `{"training.epochs": 4}`. MLflow never changes a parameter: where a resumed training
    has another value than its first attempt, the tag `resumed.<parameter>` holds the new one.

    A value that is longer than MLflow takes ends in a note that says so.

    Raises ValueError when a server does not answer within 15 s, the address is of an unknown kind, or
    the SQLite file's folder cannot be written.
    """
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    check_reachable(uri)
    given = {key: _cut(str(value), MAX_PARAM_VAL_LENGTH) for key, value in parameters.items()}
    with one_process_at_a_time(uri):
        mlflow, home = client(uri), experiment(uri)
        found = mlflow.search_runs([home], f"tags.`{TOKEN_TAG}` = '{token}'", max_results=1)
        run = found[0] if found else mlflow.create_run(home, run_name=name, tags={TOKEN_TAG: token})
        run_id, known = run.info.run_id, run.data.params
        if found:
            mlflow.update_run(run_id, status="RUNNING")
        if FAILURE_TAG in run.data.tags:
            mlflow.delete_tag(run_id, FAILURE_TAG)
        changed = {f"resumed.{k}": v for k, v in given.items() if known.get(k, v) != v}
        _log_tags(uri, run_id, {**started_by(), **tags, **git_state(), **library_versions(), **changed})
        _log_parameters(uri, run_id, {k: v for k, v in given.items() if k not in known})
    return run_id


def keep_config(uri: str, run_id: str, config: Mapping[str, object]) -> None:
    """Keep all settings as the run's artifact config.json, which `--config` takes again."""
    if all(kept.path != CONFIG for kept in client(uri).list_artifacts(run_id)):
        client(uri).log_text(run_id, json.dumps(config, indent=1) + "\n", CONFIG)


def start_time(uri: str, run_id: str) -> float:
    """When the run was first opened, seconds since 1970."""
    return client(uri).get_run(run_id).info.start_time / 1000


def seconds_since_start(run: Run) -> float:
    """Seconds since the run was first opened, pauses between a kill and a resume included."""
    return time.time() - run.started


def log_metrics(run: Run, metrics: Mapping[str, float], step: int) -> None:
    """Log all metrics of one stage at one step, the policy version, in one call; once, however often it is repeated.

    The first name tells whether they are there: all names of a call belong together. A value that is not finite would
    wreck the axes of its chart: it is left out, and counted in `health/dropped_non_finite`, which exists only where
    something was dropped.
    """
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    if len(finite) < len(metrics):
        finite[DROPPED] = float(len(metrics) - len(finite))
    outbox.deliver(run, [outbox.entry(run, step=step, metrics=finite)])


def log_tags(run: Run, tags: Mapping[str, str]) -> None:
    """Set tags of the run."""
    outbox.deliver(run, [outbox.entry(run, tags=dict(tags))])


def describe(run: Run, markdown: str) -> None:
    """Write the description that the run's page shows above all else."""
    from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

    log_tags(run, {MLFLOW_RUN_NOTE: _fitting(markdown)})


def log_file(run: Run, path: Path, folder: str = "") -> None:
    """Keep a copy of a file, which stays where it is until the stage ends, in a folder of the run's artifacts."""
    outbox.deliver(run, [outbox.entry(run, file=str(path), folder=folder)])


def finish(run: Run) -> None:
    """Mark the run FINISHED."""
    outbox.deliver(run, [outbox.entry(run, status="FINISHED")])


def fail(uri: str, run_id: str, reason: str) -> None:
    """Mark a run FAILED; its tag `failure` says why."""
    client(uri).set_tag(run_id, FAILURE_TAG, _fitting(reason))
    client(uri).set_terminated(run_id, "FAILED")


def note_shard(run: Run, stage: str, shard: int, lost: str) -> int:
    """Keep as a tag why a shard of a stage was lost, or with "" that it was not; returns how many of them are lost.

    A shard that an earlier attempt lost and this one did not has its tag no more.
    """
    mlflow = client(run.tracking_uri)
    prefix = f"lost.{stage.replace(' ', '.')}."
    if lost:
        _log_tags(run.tracking_uri, run.mlflow_run_id, {f"{prefix}{shard}": _fitting(lost)})
    tags = {tag for tag in mlflow.get_run(run.mlflow_run_id).data.tags if tag.startswith(prefix)}
    if not lost and f"{prefix}{shard}" in tags:
        mlflow.delete_tag(run.mlflow_run_id, f"{prefix}{shard}")
        tags.remove(f"{prefix}{shard}")
    return len(tags)


def _fitting(reason: str) -> str:
    from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

    return _cut(reason, MAX_TAG_VAL_LENGTH)


def _log_tags(uri: str, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag
    from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

    tags = {key: _cut(value, MAX_TAG_VAL_LENGTH) for key, value in tags.items()}
    client(uri).log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def _log_parameters(uri: str, run_id: str, parameters: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    params = [Param(key, value) for key, value in parameters.items()]
    for start in range(0, len(params), 100):  # as many as MLflow takes at once
        client(uri).log_batch(run_id, params=params[start : start + 100])


def _cut(value: str, limit: int) -> str:
    note = f"… (cut, {len(value):,} characters)"
    return value if len(value) <= limit else value[: limit - len(note)] + note
