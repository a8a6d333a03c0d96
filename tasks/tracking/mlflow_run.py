"""One MLflow run for each training; its id is passed from stage to stage in `Run`.

    create_run, open_run ─► run id ─► each stage: log_metrics(step = policy version), outbox.send ─► the report, or fail

A training that is resumed, or whose tasks are retried, finds its run again by a tag, and continues its curves. What a
stage logs goes through `outbox.py`: a server that is away during a training delays nothing. MLflow itself shortens tags
that are too long for it.
"""

import json
import math
from collections.abc import Collection, Mapping

from tasks.config import Run
from tasks.tracking import outbox
from tasks.tracking.mlflow_store import adopt_moved, check_reachable, client, experiment, one_process_at_a_time
from tasks.tracking.mlflow_store import tracking_uri as tracking_uri
from tasks.tracking.provenance import git_state, library_versions, started_by

TOKEN_TAG = "grpo.token"
FAILURE_TAG = "failure"
DROPPED = "health/dropped_non_finite"
CONFIG = "config.json"  # among the run's artifacts


def open_run(*, uri: str, name: str, token: str, parameters: Mapping[str, object], tags: Mapping[str, str]) -> str:
    """The id of the training's MLflow run: a new one, or the one that an earlier attempt with this token opened.

    Parameters are flat, `{"training.epochs": 4}`. MLflow never changes a parameter: where a resumed training has
    another value than its first attempt, the tag `resumed.<parameter>` holds the new one. A value that is longer than
    MLflow takes is cut, with a note that says so.

    Raises ValueError, within 15 s, for a store that cannot be used.
    """
    from mlflow.entities import Param, RunTag
    from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH

    check_reachable(uri)
    given = {key: _cut(str(value)) for key, value in parameters.items()}
    with one_process_at_a_time(uri):
        adopt_moved(uri)
        mlflow, home = client(uri), experiment(uri)
        found = mlflow.search_runs([home], f"tags.`{TOKEN_TAG}` = '{token}'", max_results=1)
        run = found[0] if found else mlflow.create_run(home, run_name=name, tags={TOKEN_TAG: token})
        run_id, known = run.info.run_id, run.data.params
        mlflow.update_run(run_id, status="RUNNING")
        if FAILURE_TAG in run.data.tags:
            mlflow.delete_tag(run_id, FAILURE_TAG)
        changed = {f"resumed.{key}": value for key, value in given.items() if known.get(key, value) != value}
        tags = {**started_by(), **tags, **git_state(), **library_versions(), **changed}
        mlflow.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        new = [Param(key, value) for key, value in given.items() if key not in known]
        for start in range(0, len(new), MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_batch(run_id, params=new[start : start + MAX_PARAMS_TAGS_PER_BATCH])
    return run_id


def keep_config(uri: str, run_id: str, config: Mapping[str, object]) -> None:
    """Keep all settings as the run's artifact config.json, which `--config` takes again."""
    if all(kept.path != CONFIG for kept in client(uri).list_artifacts(run_id)):
        client(uri).log_text(run_id, json.dumps(config, indent=1) + "\n", CONFIG)


def log_metrics(run: Run, metrics: Mapping[str, float], step: int) -> None:
    """Log all metrics of one stage at one step, the policy version, in one call; once, however often it is repeated.

    A value that is not finite would ruin the axes of its chart: it is left out, and counted in
    `health/dropped_non_finite`, which exists only where something was dropped.
    """
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    if dropped := len(metrics) - len(finite):
        finite[DROPPED] = float(dropped)
    outbox.send(run, step=step, metrics=finite)


def find(uri: str, token: str) -> str:
    """The id of the MLflow run that was opened with this token; "" without one."""
    found = client(uri).search_runs([experiment(uri)], f"tags.`{TOKEN_TAG}` = '{token}'", max_results=1)
    return found[0].info.run_id if found else ""


def others_of_that_name(run: Run) -> list[str]:
    """The tokens of the other runs with this one's name, the newest first."""
    query = f"attributes.run_name = '{run.name}' and tags.`{TOKEN_TAG}` != '{run.token}'"
    newest = ["attributes.start_time DESC"]
    found = client(run.tracking_uri).search_runs([experiment(run.tracking_uri)], query, max_results=10, order_by=newest)
    return [of.data.tags[TOKEN_TAG] for of in found]


def fail(uri: str, run_id: str, reason: str) -> None:
    """Mark a run FAILED; its tag `failure` says why."""
    client(uri).set_tag(run_id, FAILURE_TAG, reason)
    client(uri).set_terminated(run_id, "FAILED")


def kill(uri: str, run_id: str, reason: str) -> None:
    """Mark a run KILLED, where it is neither finished nor failed; its tag `failure` says why."""
    if client(uri).get_run(run_id).info.status == "RUNNING":
        client(uri).set_tag(run_id, FAILURE_TAG, reason)
        client(uri).set_terminated(run_id, "KILLED")


def go_on(uri: str, run_id: str, *, after: Collection[str] = ("FAILED", "KILLED")) -> None:
    """Mark a run RUNNING again that had a status of `after`, for a stage that is tried once more or comes after a
    recovery."""
    found = client(uri).get_run(run_id)
    if found.info.status in after:  # the report may have finished it already
        client(uri).update_run(run_id, status="RUNNING")
    if FAILURE_TAG in found.data.tags and found.info.status in (*after, "RUNNING"):
        client(uri).delete_tag(run_id, FAILURE_TAG)


def note_shard(run: Run, stage: str, shard: int, lost: str) -> int:
    """Keep as a tag why a shard of a stage was lost; with "" remove the tag that a lost attempt before it left.

    Returns how many shards of the stage are lost.
    """
    mlflow, run_id, prefix = client(run.tracking_uri), run.mlflow_run_id, f"lost.{stage.replace(' ', '.')}."
    if lost:
        mlflow.set_tag(run_id, f"{prefix}{shard}", lost)
    elif f"{prefix}{shard}" in mlflow.get_run(run_id).data.tags:
        mlflow.delete_tag(run_id, f"{prefix}{shard}")
    return sum(tag.startswith(prefix) for tag in mlflow.get_run(run_id).data.tags)


def _cut(value: str) -> str:
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH as LIMIT

    note = f"… (cut, {len(value):,} characters)"
    return value if len(value) <= LIMIT else value[: LIMIT - len(note)] + note
