"""What MLflow is told, and what waits while its server is away: it travels beside the results of the stages.

    log_metrics, log_tags, log_file, finish ──► MLflow
             away │                               ▲
                  ▼                               │
    _unsent.json beside a stage's result ──► the next stage that reads the result, the report at the latest

A stage of a cluster is a process with a disk of its own, so what waits can only leave it with its outputs; on one
machine it takes the same way. Each entry has one path to the report, and none is lost or sent twice.
"""

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import Run
from tasks.json_records import Record
from tasks.tracking import console, mlflow_store

if TYPE_CHECKING:
    from mlflow import MlflowClient

UNSENT = "_unsent.json"  # the underscore hides it from readers of Arrow datasets, and keeps it out of copied policies
FILES = "_unsent"  # beside it: copies of the files that lie elsewhere


@dataclass(frozen=True)
class Entry(Record):
    """One thing to tell MLflow.

    Example: `Entry(run_id="4be1…", time_ms=1764500000000, step=7, metrics={"train/loss": -0.01, "train/kl": 0.02})`.
    """

    run_id: str
    time_ms: int  # when it was measured, which is what MLflow shows however late it comes
    step: int = 0  # of the metrics
    metrics: dict[str, float] = field(default_factory=dict)  # all of one stage; the first name answers for all
    tags: dict[str, str] = field(default_factory=dict)
    file: str = ""  # path of a file to copy; in _unsent.json relative to its folder
    folder: str = ""  # of the run's artifacts, where the copy goes
    status: str = ""  # of the whole run


_waiting: dict[str, list[Entry]] = {}  # what this process could not send, by run


def entry(run: Run, **what: object) -> Entry:
    """An entry of this moment; `what` are the fields of Entry."""
    return Entry(run_id=run.mlflow_run_id, time_ms=int(time.time() * 1000), **what)  # type: ignore[arg-type]


def begin(run: Run) -> None:
    """Forget what a stage that failed in this process had left to send."""
    _waiting.pop(run.mlflow_run_id, None)


def deliver(run: Run, entries: Iterable[Entry]) -> None:
    """Tell MLflow; what it does not take waits for `save_pending`. Never raises for a server, and waits 20 s at most."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    uri = run.tracking_uri
    for one in entries:
        try:
            _send(uri, one)
        except (MlflowException, RequestException) as error:
            _waiting.setdefault(run.mlflow_run_id, []).append(one)
            if _is_answer(error):
                console.stage(f"MLflow at {mlflow_store.shown(uri)} refuses: {str(error).splitlines()[0][:200]}")
            elif mlflow_store.silent(uri):
                console.stage(f"MLflow at {mlflow_store.shown(uri)} is away; what it is to get is kept and sent later")
        else:
            if mlflow_store.answered(uri):
                console.stage(f"MLflow at {mlflow_store.shown(uri)} is there again")


def _is_answer(error: Exception) -> bool:
    """Whether a server, or a database, said itself that it does not take something."""
    if (response := getattr(error, "response", None)) is not None:
        return response.status_code < 500
    return getattr(error, "error_code", "INTERNAL_ERROR") not in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")


def save_pending(run: Run, folder: Path) -> None:
    """Leave beside a stage's result, in `folder`, what MLflow was not told; nothing when it was told all."""
    left = [_carried(one, folder) for one in _waiting.pop(run.mlflow_run_id, [])]
    (folder / UNSENT).unlink(missing_ok=True)
    if left:
        (folder / UNSENT).write_text(json.dumps([one.to_dict() for one in left], indent=1) + "\n")


def load_pending(run: Run, folders: Sequence[Path]) -> list[Entry]:
    """What `save_pending` left in the folders that a stage reads."""
    found = []
    for folder in folders:
        if (folder / UNSENT).is_file():
            left = [Entry.from_dict(given) for given in json.loads((folder / UNSENT).read_text())]
            found += [replace(one, file=str(folder / one.file)) if one.file else one for one in left]
    return [one for one in found if one.run_id == run.mlflow_run_id]  # a folder may come from another run


def flush_pending(run: Run, folders: Sequence[Path]) -> None:
    """At the end, whether or not MLflow answered lately, send what `save_pending` left in the last folders."""
    mlflow_store.ask_again(run.tracking_uri)
    deliver(run, load_pending(run, folders))


def report_pending(run: Run, folders: Mapping[str, Path]) -> None:
    """Say in one sentence what this process could not send after all; `folders`, by the names that people know, are
    those that `flush_pending` had."""
    left = len(_waiting.get(run.mlflow_run_id, []))
    if not left:
        return
    places = [name for name, folder in folders.items() if (folder / UNSENT).is_file()]
    others = f" and {len(places) - 1} other folders" if places[1:] else ""
    where = f": what stages measured lies in {UNSENT} of {places[-1]}{others}" if places else ""
    address = mlflow_store.shown(run.tracking_uri)
    console.stage(
        f"MLflow at {address} lacks {left} records of this run{where}; the same command sends them once it is back"
    )


def _carried(one: Entry, folder: Path) -> Entry:
    """The entry with its file inside `folder`, and the path from there."""
    if not one.file:
        return one
    path = Path(one.file)
    if not path.is_relative_to(folder):
        copy = folder / FILES / one.folder / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        path = Path(shutil.copy2(path, copy))
    return replace(one, file=str(path.relative_to(folder)))


def _send(uri: str, one: Entry) -> None:
    """Send an entry, but not metrics whose step is there: a stage that is repeated draws no second point.

    Should two processes send one entry at the same moment, MLflow's database keeps a point of the same name, step, time
    and value once.
    """
    from mlflow.entities import Metric, RunTag

    mlflow = mlflow_store.client(uri)
    if one.metrics and not _is_there(mlflow, one):
        points = [Metric(name, value, one.time_ms, one.step) for name, value in one.metrics.items()]
        mlflow.log_batch(one.run_id, metrics=points)
    if one.tags:
        mlflow.log_batch(one.run_id, tags=[RunTag(key, value) for key, value in one.tags.items()])
    if one.file:
        mlflow.log_artifact(one.run_id, one.file, one.folder or None)
    if one.status:
        mlflow.set_terminated(one.run_id, one.status)


def _is_there(mlflow: "MlflowClient", one: Entry) -> bool:
    """Whether MLflow has the metrics of this entry at their step."""
    name = next(iter(one.metrics))
    latest = {metric.key: metric.step for metric in mlflow.get_run(one.run_id).data.to_proto().metrics}
    if latest.get(name, -1) < one.step:
        return False  # as nearly always; the whole history grows with the run
    return any(point.step == one.step for point in mlflow.get_metric_history(one.run_id, name))
