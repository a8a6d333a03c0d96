"""What is sent to MLflow, and what waits while its server is away: it travels with the results of the stages.

    metrics, files, traces, policies, … ──► send ──► deliver ──► MLflow
                                           not taken │  ▲
                                                     ▼  │ the next stage that reads the result, the report at the latest
                save_pending ──► _pending.json beside a stage's result ──► load_pending

A stage on a cluster has a disk of its own, so what waits leaves it only with its outputs. Every entry reaches the
report on one path, in order. To send one twice changes nothing: a repeated stage draws no second point, and a policy is
registered once.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config import Run
from tasks.folders import write_file
from tasks.json_records import Record
from tasks.tracking import console, mlflow_store
from tasks.tracking.registry import Exists, Version, register

if TYPE_CHECKING:
    from mlflow import MlflowClient

PENDING = "_pending.json"  # the underscore hides it from readers of Arrow datasets, and keeps it out of copied policies
FILES = "_pending"  # beside it: copies of the files that lie elsewhere


@dataclass(frozen=True)
class Entry(Record):
    """One thing to send to MLflow.

    Example: `Entry(run_id="4be1…", time_ms=1764500000000, step=7, metrics={"train/loss": -0.01, "train/kl": 0.02})`.
    """

    run_id: str
    time_ms: int  # when it was measured: MLflow shows this time, however late the entry comes
    step: int = 0  # of the metrics
    metrics: dict[str, float] = field(default_factory=dict)  # all of one stage: where the first is there, all are
    tags: dict[str, str] = field(default_factory=dict)  # of the run, or of the dataset
    dataset: dict[str, str] = field(default_factory=dict)  # a batch that the run was trained on: MLflow's Dataset
    file: str = ""  # path of a file to copy; in PENDING relative to its folder
    folder: str = ""  # of the run's artifacts, where the copy goes
    policy: Version | None = None  # to register
    traces: list[dict[str, Any]] = field(default_factory=list)  # episodes, as `traces.write` takes them
    status: str = ""  # of the whole run


_waiting: dict[str, list[Entry]] = {}  # what this process could not send, by run


def send(run: Run, *, exists: Exists | None = None, **what: Any) -> None:
    """Deliver one entry with the present time; `what` are the fields of Entry."""
    deliver(run, [Entry(run_id=run.mlflow_run_id, time_ms=int(time.time() * 1000), **what)], exists)


def begin(run: Run) -> None:
    """Forget what a stage that failed in this process left to send."""
    _waiting.pop(run.mlflow_run_id, None)


def deliver(run: Run, entries: Iterable[Entry], exists: Exists | None = None) -> None:
    """Send entries; what MLflow does not take waits for `save_pending`. `exists` is for `registry.register`.

    No error of a server is raised, and one that does not answer costs 20 s at most.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    uri = run.tracking_uri
    at = f"MLflow at {mlflow_store.display_uri(uri)}"
    for one in entries:
        try:
            _send(run, one, exists)
        except (MlflowException, RequestException, NotImplementedError) as error:  # the last of an older server
            _waiting.setdefault(run.mlflow_run_id, []).append(one)
            if _is_answer(error):
                console.stage(f"{at} refuses: {str(error).splitlines()[0][:200]}")
            elif mlflow_store.note_answer(uri, False):
                console.stage(f"{at} is away; what it is to get is kept and sent later")
        else:
            if mlflow_store.note_answer(uri, True):
                console.stage(f"{at} is there again")


def _is_answer(error: Exception) -> bool:
    """Whether a server, or a database, itself refused something."""
    if (response := getattr(error, "response", None)) is not None:
        return response.status_code < 500
    if isinstance(error, NotImplementedError):
        return True
    return getattr(error, "error_code", "INTERNAL_ERROR") not in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")


def save_pending(run: Run, folder: Path) -> None:
    """Leave beside a stage's result, in `folder`, what could not be sent."""
    waiting = []
    for one in _waiting.pop(run.mlflow_run_id, []):
        path = Path(one.file)
        if one.file and not path.is_relative_to(folder):
            copy = folder / FILES / one.folder / path.name
            write_file(copy, path.read_bytes())
            path = copy
        waiting.append(one.replace(file=one.file and str(path.relative_to(folder))).to_dict())
    (folder / PENDING).unlink(missing_ok=True)
    if waiting:
        write_file(folder / PENDING, json.dumps(waiting, indent=1) + "\n")


def load_pending(run: Run, folders: Sequence[Path]) -> list[Entry]:
    """What `save_pending` left in the folders that a stage reads."""
    found = []
    for folder in folders:
        if (folder / PENDING).is_file():
            left = [Entry.from_dict(given) for given in json.loads((folder / PENDING).read_text())]
            found += [one.replace(file=str(folder / one.file)) if one.file else one for one in left]
    return [one for one in found if one.run_id == run.mlflow_run_id]  # a folder may come from another run


def flush_pending(run: Run, folders: Sequence[Path], exists: Exists | None = None) -> None:
    """At the end, even if MLflow is known to be away, send what `save_pending` left in the last folders."""
    mlflow_store.ask_again(run.tracking_uri)
    deliver(run, load_pending(run, folders), exists)


def report_pending(run: Run, folders: Mapping[str, Path]) -> None:
    """Print one sentence about what this process could not send; `folders` of `flush_pending` by the names shown."""
    waiting = _waiting.get(run.mlflow_run_id, [])
    if not waiting:
        return
    lacks = f"MLflow at {mlflow_store.display_uri(run.tracking_uri)} lacks {len(waiting)} records of this run"
    if policies := ", ".join(one.policy.uri for one in waiting if one.policy):
        lacks += f", among them the versions of {policies}"
    if left := [name for name, folder in folders.items() if (folder / PENDING).is_file()]:
        others = f" and {len(left) - 1} other folders" if left[1:] else ""
        lacks += f": what stages measured lies in {PENDING} of {left[-1]}{others}"
    console.stage(f"{lacks}; the same command sends them once it is back")


def _send(run: Run, one: Entry, exists: Exists | None) -> None:
    """Send an entry, but no metrics whose step is there.

    Should two processes send one entry at the same moment, MLflow's database keeps points of the same name, step, time
    and value once.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, RunTag

    mlflow = mlflow_store.client(run.tracking_uri)
    if one.metrics and not _is_there(mlflow, one):
        mlflow.log_batch(one.run_id, [Metric(key, value, one.time_ms, one.step) for key, value in one.metrics.items()])
    if one.dataset:  # known by its name and digest, and linked once
        tags = [InputTag(key, value) for key, value in one.tags.items()]
        mlflow.log_inputs(one.run_id, datasets=[DatasetInput(Dataset(**one.dataset), tags)])
    elif one.tags:
        mlflow.log_batch(one.run_id, tags=[RunTag(key, value) for key, value in one.tags.items()])
    if one.file:
        mlflow.log_artifact(one.run_id, one.file, one.folder or None)
    if one.policy:
        register(run.tracking_uri, one.policy, exists)
    if one.traces:
        from tasks.tracking import traces  # imports more of MLflow

        traces.write(run, one.traces)
    if one.status:
        mlflow.set_terminated(one.run_id, one.status)
        if "failure" in mlflow.get_run(one.run_id).data.tags:  # of a stage that was retried
            mlflow.delete_tag(one.run_id, "failure")


def _is_there(mlflow: "MlflowClient", one: Entry) -> bool:
    """Whether MLflow has the metrics of this entry at their step."""
    name = next(iter(one.metrics))
    latest = {metric.key: metric.step for metric in mlflow.get_run(one.run_id).data.to_proto().metrics}
    if latest.get(name, -1) < one.step:
        return False  # as nearly always, and the history of a metric grows with the run
    return any(point.step == one.step for point in mlflow.get_metric_history(one.run_id, name))
