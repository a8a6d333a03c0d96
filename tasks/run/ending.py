"""A run that ends before it is done: MLflow is told so.

On this machine by its process, at SIGTERM or an error between stages. On a cluster by the stage whose pod gets SIGTERM,
as those of an aborted execution do, and by the failure handler of the workflow for what no stage can tell: a timeout,
memory that ran out, a pod that was lost once too often.
"""

import atexit
import contextlib
import os
import signal
import threading

from tasks.config import Run
from tasks.tracking import mlflow_run, mlflow_store
from tasks.tracking.provenance import EXECUTION, flyte_execution

_runs: dict[str, Run] = {}  # begun in this process, the last of each store


class Terminated(SystemExit):
    """SIGTERM, as an exception: what the process holds is given back, and the stage says why it failed."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def watch(run: Run) -> None:
    """From here on the end of this process is the end of the run; only the main thread can be told of a signal."""
    if not _runs:
        atexit.register(_close, os.getpid())
    _runs[run.tracking_uri] = run
    raise_at_sigterm()


def raise_at_sigterm() -> None:
    """From here on SIGTERM is an exception in the main thread, unless it is handled otherwise."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def tell_failed(reason: str) -> None:
    """Mark the run of this Flyte execution as failed, unless one of its stages did so with its own reason."""
    execution = flyte_execution().get(EXECUTION, "")
    if not execution:
        return
    uri = mlflow_run.tracking_uri()
    run_id = mlflow_run.find(uri, execution)
    if run_id and mlflow_store.client(uri).get_run(run_id).info.status in ("RUNNING", "KILLED"):
        lines = reason.strip().splitlines() or ["the execution failed"]
        mlflow_run.fail(uri, run_id, lines[-1])


def _close(process: int) -> None:
    """Mark as failed what is still running."""
    for run in _runs.values() if os.getpid() == process else ():
        database = mlflow_store.sqlite_file(run.tracking_uri)
        if database is not None and not database.is_file():
            continue
        with contextlib.suppress(Exception):  # the process ends in any case
            client = mlflow_store.client(run.tracking_uri)
            if client.get_run(run.mlflow_run_id).info.status == "RUNNING":
                mlflow_run.fail(run.tracking_uri, run.mlflow_run_id, "the process ended before its run")
