"""Where MLflow keeps its records: a SQLite file among the runs, or the server that MLFLOW_TRACKING_URI names."""

import contextlib
import fcntl
import functools
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.folders import RUNS, writing
from tasks.settings import require
from tasks.time_limit import within

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "grpo"
PROBE_SECONDS = 10.0  # in which a server must answer before a training
PAUSE_SECONDS = 60.0  # in which a server that did not answer is not asked again
# Where a store says where its files are.
MOVED = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("model_version_tags", "value"),
    ("trace_tags", "value"),
)
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
ALLOWED = "http(s)://<a running MLflow server>, sqlite:///<a writable file> or another database URL"

# MLflow reads these when it is first imported. No telemetry, no progress notes; and a server that does not answer costs
# 20 s, where MLflow's own timeouts and retries take many minutes. What the user has set stays.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
}.items():
    os.environ.setdefault(_name, _value)


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI if it is set, else a SQLite file among the runs."""
    return os.environ.get("MLFLOW_TRACKING_URI", "") or f"sqlite:///{(RUNS / 'mlflow.db').absolute()}"


_away: dict[str, float] = {}  # servers that did not answer, and until when they are not asked


def client(uri: str) -> "MlflowClient":
    """One client for each address and process. Raises MlflowException, at once, while a server is known to be away."""
    from mlflow.exceptions import MlflowException

    if is_away(uri):
        raise MlflowException(f"MLflow at {display_uri(uri)} is away")
    return _client(uri)


@functools.lru_cache
def _client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def is_away(uri: str) -> bool:
    """Whether a server did not answer a moment ago."""
    return time.monotonic() < _away.get(uri, 0.0)


def note_answer(uri: str, answered: bool) -> bool:
    """Note whether a server answered; without an answer it is not asked for PAUSE_SECONDS. True where that is news."""
    news = answered == (uri in _away)
    if answered:
        _away.pop(uri, None)
    elif not is_away(uri):
        _away[uri] = time.monotonic() + PAUSE_SECONDS
    return news


def ask_again(uri: str) -> None:
    """Let the next request be made, even while the server is known to be away."""
    if uri in _away:
        _away[uri] = 0.0


def display_uri(uri: str) -> str:
    """The address without a password."""
    return re.sub(r"//[^/@]*@", "//***@", uri)


def experiment(uri: str) -> str:
    """The id of the experiment that holds all trainings, made where it is not there."""
    from mlflow.exceptions import MlflowException

    found = client(uri).get_experiment_by_name(EXPERIMENT)
    if found is None:
        database = sqlite_file(uri)
        # Otherwise artifacts of a SQLite store go to ./mlruns, in whichever folder the process was started.
        artifacts = str(database.with_name("mlflow-artifacts")) if database else None
        with contextlib.suppress(MlflowException):  # on a shared server another training may have made it
            return client(uri).create_experiment(EXPERIMENT, artifact_location=artifacts)
        found = client(uri).get_experiment_by_name(EXPERIMENT)
    assert found is not None
    return found.experiment_id


def adopt_moved(uri: str) -> None:
    """Where the folder of a SQLite store was moved or copied, let what it says of its own files follow.

    The paths of artifacts and of registered policies are absolute in it. Call it with `one_process_at_a_time`.
    """
    database = sqlite_file(uri)
    if database is None or not database.is_file():
        return
    with contextlib.closing(sqlite3.connect(database)) as store, store:
        try:
            row = store.execute("SELECT artifact_location FROM experiments WHERE name = ?", (EXPERIMENT,)).fetchone()
        except sqlite3.OperationalError:  # no table yet
            return
        here = str(database.parent)
        there = str(Path(row[0].removeprefix("file://")).parent) if row and row[0] else here
        if there == here or not Path(there).is_absolute():
            return
        for table, column in MOVED:
            with contextlib.suppress(sqlite3.OperationalError):  # of another release of MLflow
                for prefix in (there, f"file://{there}"):
                    changed = f"{prefix.removesuffix(there)}{here}"
                    store.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                        (f"{changed}/", len(prefix) + 2, len(prefix) + 1, f"{prefix}/"),
                    )


@contextlib.contextmanager
def one_process_at_a_time(uri: str) -> Iterator[None]:
    """A lock on a SQLite store: two processes that create one at the same moment break it.

    Raises ValueError when the store's folder cannot be written, and DiskError when the store cannot.
    """
    database = sqlite_file(uri)
    if database is None:
        yield
        return
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = open(database.with_name(f".{database.name}.lock"), "w")  # noqa: SIM115, closed below
    except OSError as error:
        raise ValueError(f'MLFLOW_TRACKING_URI is "{uri}" ({error.strerror}); allowed: {ALLOWED}.') from error
    with lock, writing(database):
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a killed process
        if not database.exists() or not database.stat().st_size:
            _make(database)
        yield


def _make(database: Path) -> None:
    """Make a SQLite store with all of its tables, under another name until it has them: MLflow cannot go on with one
    that a killed process left with some of them."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    new = database.with_name(f".{database.name}.new")
    for left in database.parent.glob(f"{new.name}*"):  # its journal as well
        left.unlink()
    store = SqlAlchemyStore(f"sqlite:///{new}", "./mlruns")  # MLflow's own place for artifacts
    store.engine.dispose()
    os.replace(new, database)


def check_reachable(uri: str) -> None:
    """Raise ValueError for an address of an unknown kind, and within 15 s for one where no MLflow server answers."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    ask_again(uri)
    scheme = uri.split(":")[0].split("+")[0]
    require(scheme in (*DATABASES, "http", "https"), "MLFLOW_TRACKING_URI", display_uri(uri), ALLOWED)
    if scheme in DATABASES:
        return
    answer = "no answer"
    with contextlib.suppress(Exception):  # of whatever kind: there was no answer
        # A question that every MLflow server can answer, if only with this code: the experiment is not there yet.
        endpoint = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"
        asked = {"method": "GET", "max_retries": 0, "timeout": 5, "raise_on_status": False}
        given: Any = within(PROBE_SECONDS, lambda: http_request(get_default_host_creds(uri), endpoint, **asked))
        if given.status_code == 200 or (given.status_code == 404 and "RESOURCE_DOES_NOT_EXIST" in given.text):
            return
        answer = f"HTTP status {given.status_code}"
    raise ValueError(f'MLFLOW_TRACKING_URI is "{display_uri(uri)}" ({answer}); allowed: {ALLOWED}.')


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for another one."""
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None
