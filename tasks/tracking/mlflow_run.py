"""One MLflow run for each training; its id is passed from stage to stage in `Run`.

    create_run, open_run ─► run id ─► each stage: log_metrics(step = policy version), log_file ─► finish, fail

A training that is resumed, or whose tasks are retried, finds its run again by a tag, and continues its curves. What a
stage logs goes through `outbox.py`: a server that is away during a training delays nothing.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from tasks.config import Run
from tasks.tracking import outbox
from tasks.tracking.mlflow_store import check_reachable, client, experiment, one_process_at_a_time
from tasks.tracking.mlflow_store import tracking_uri as tracking_uri
from tasks.tracking.provenance import git_state, library_versions, started_by
from tasks.tracking.registry import Candidate, Exists

TOKEN_TAG = "grpo.token"
FAILURE_TAG = "failure"
DROPPED = "health/dropped_non_finite"
CONFIG = "config.json"  # among the run's artifacts
PARAMS_AT_ONCE = 100  # that MLflow takes in one request


def open_run(*, uri: str, name: str, token: str, parameters: Mapping[str, object], tags: Mapping[str, str]) -> str:
    """The id of the training's MLflow run: a new one, or the one that an earlier attempt with this token opened.

    Parameters are flat, `{"training.epochs": 4}`; long values are cut, visibly. MLflow never changes a parameter: where
    a resumed training has another value, the tag `resumed.<parameter>` holds it.

    Raises ValueError when a server does not answer within 15 s, the address is of an unknown kind, or the folder of the
    SQLite file cannot be written.
    """
    from mlflow.entities import Param, RunTag
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
        changed = {f"resumed.{key}": value for key, value in given.items() if known.get(key, value) != value}
        made_with = {**started_by(), **tags, **git_state(), **library_versions(), **changed}
        mlflow.log_batch(run_id, tags=[RunTag(key, _fitting(value)) for key, value in made_with.items()])
        new = [Param(key, value) for key, value in given.items() if key not in known]
        for start in range(0, len(new), PARAMS_AT_ONCE):
            mlflow.log_batch(run_id, params=new[start : start + PARAMS_AT_ONCE])
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

    A value that is not finite would ruin the axes of its chart: it is left out, and counted in
    `health/dropped_non_finite`, which exists only where something was dropped.
    """
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    if len(finite) < len(metrics):
        finite[DROPPED] = float(len(metrics) - len(finite))
    outbox.deliver(run, [outbox.entry(run, step=step, metrics=finite)])


def log_tags(run: Run, tags: Mapping[str, str]) -> None:
    """Set tags of the run."""
    outbox.deliver(run, [outbox.entry(run, tags=dict(tags))])


def describe(run: Run, markdown: str) -> None:
    """Write the description at the top of the run's page."""
    log_tags(run, {"mlflow.note.content": _fitting(markdown)})


def log_file(run: Run, path: Path, folder: str = "") -> None:
    """Copy a file, which must stay where it is until the stage ends, into a folder of the run's artifacts."""
    outbox.deliver(run, [outbox.entry(run, file=str(path), folder=folder)])


def register_policy(run: Run, policy: Candidate, exists: Exists = lambda uri: True) -> None:
    """Make the policy a version in the model registry; `exists` as in `registry.register`."""
    outbox.deliver(run, [outbox.entry(run, policy=policy)], exists)


def finish(run: Run) -> None:
    """Mark the run FINISHED."""
    outbox.deliver(run, [outbox.entry(run, status="FINISHED")])


def fail(uri: str, run_id: str, reason: str) -> None:
    """Mark a run FAILED; its tag `failure` says why."""
    client(uri).set_tag(run_id, FAILURE_TAG, _fitting(reason))
    client(uri).set_terminated(run_id, "FAILED")


def note_shard(run: Run, stage: str, shard: int, lost: str) -> int:
    """Keep as a tag why a shard of a stage was lost; with "" remove the tag that a lost attempt before it left.

    Returns how many shards of the stage are lost.
    """
    mlflow = client(run.tracking_uri)
    prefix = f"lost.{stage.replace(' ', '.')}."
    tags = {tag for tag in mlflow.get_run(run.mlflow_run_id).data.tags if tag.startswith(prefix)}
    tag = f"{prefix}{shard}"
    if lost:
        mlflow.set_tag(run.mlflow_run_id, tag, _fitting(lost))
    elif tag in tags:
        mlflow.delete_tag(run.mlflow_run_id, tag)
    return len(tags | {tag} if lost else tags - {tag})


def _fitting(text: str) -> str:
    from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

    return _cut(text, MAX_TAG_VAL_LENGTH)


def _cut(value: str, limit: int) -> str:
    note = f"… (cut, {len(value):,} characters)"
    return value if len(value) <= limit else value[: limit - len(note)] + note
