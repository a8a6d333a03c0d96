"""Where MLflow keeps its records: a SQLite file among the runs, or a server that the environment names."""

import contextlib
import fcntl
import functools
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import require
from tasks.folders import RUNS

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "grpo"
PROBE_SECONDS = 10.0
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
ALLOWED = "http(s)://<a running MLflow server>, sqlite:///<a writable file> or another database URL"

PAUSE_SECONDS = 60.0  # for which a server that was away is not asked again

# MLflow reads these when it is first imported: no telemetry, no progress notes; and a server that is away costs 20 s,
# not the many minutes of MLflow's own timeouts and retries. What a person has set stays.
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


def client(uri: str) -> "MlflowClient":
    """One client an address and process. Raises MlflowException, at once, while a server is known to be away."""
    from mlflow.exceptions import MlflowException

    if time.monotonic() < _silent.get(uri, 0.0):
        raise MlflowException(f"MLflow at {shown(uri)} is away")
    return _client(uri)


@functools.lru_cache
def _client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


_silent: dict[str, float] = {}  # servers that are away, and until when nobody asks them


def silent(uri: str) -> bool:
    """A request had no answer: the server is left alone for a while, so that a stage waits for it once. True when it
    was there before."""
    known = uri in _silent
    if time.monotonic() >= _silent.get(uri, 0.0):
        _silent[uri] = time.monotonic() + PAUSE_SECONDS
    return not known


def answered(uri: str) -> bool:
    """A request was answered. True when the server was away before."""
    return _silent.pop(uri, None) is not None


def ask_again(uri: str) -> None:
    """Let the next request be made, whatever became of the one before."""
    if uri in _silent:
        _silent[uri] = 0.0


def shown(uri: str) -> str:
    """The address without a password."""
    return re.sub(r"//[^/@]*@", "//***@", uri)


def experiment(uri: str) -> str:
    """The id of the experiment that holds all trainings, made when it is not there."""
    from mlflow.exceptions import MlflowException

    found = client(uri).get_experiment_by_name(EXPERIMENT)
    if found is None:
        database = _sqlite_file(uri)
        # Otherwise artifacts of a SQLite store go to ./mlruns of whichever folder a process was started in.
        artifacts = str(database.with_name("mlflow-artifacts")) if database else None
        with contextlib.suppress(MlflowException):  # on a shared server another training may be first
            return client(uri).create_experiment(EXPERIMENT, artifact_location=artifacts)
        found = client(uri).get_experiment_by_name(EXPERIMENT)
    assert found is not None
    return found.experiment_id


@contextlib.contextmanager
def one_process_at_a_time(uri: str) -> Iterator[None]:
    """Two processes that create one SQLite store at the same moment break it, so they wait for each other.

    Raises ValueError when the store's folder cannot be written.
    """
    database = _sqlite_file(uri)
    if database is None:
        yield
        return
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = open(database.with_name(f".{database.name}.lock"), "w")  # noqa: SIM115, closed below
    except OSError as error:
        raise ValueError(f'MLFLOW_TRACKING_URI is "{uri}"; allowed: {ALLOWED}.') from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, also by a killed process
        yield


def check_reachable(uri: str) -> None:
    """Ask an http(s) server once, since MLflow's own retries take minutes to say that it is not there.

    Raises ValueError within 15 s.
    """
    ask_again(uri)
    scheme = uri.split(":")[0].split("+")[0]
    require(scheme in (*DATABASES, "http", "https"), "MLFLOW_TRACKING_URI", shown(uri), ALLOWED)
    if scheme in DATABASES:
        return
    answers: list[int] = []
    # In a thread, because nothing else bounds the time that a name server takes.
    thread = threading.Thread(target=_ask, args=(uri, answers), daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    told = f"HTTP status {answers[0]}" if answers else "no answer"
    if answers != [200]:
        raise ValueError(f'MLFLOW_TRACKING_URI is "{shown(uri)}" ({told}); allowed: {ALLOWED}.')


def _ask(uri: str, answers: list[int]) -> None:
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    endpoint = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={EXPERIMENT}"
    credentials = get_default_host_creds(uri)
    with contextlib.suppress(Exception):  # whatever went wrong, there was no answer
        answer = http_request(credentials, endpoint, "GET", max_retries=0, timeout=5, raise_on_status=False)
        assert answer is not None
        # This code is how a server says that the experiment is not there yet.
        unknown = answer.status_code == 404 and "RESOURCE_DOES_NOT_EXIST" in answer.text
        answers.append(200 if unknown else answer.status_code)


def _sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None
