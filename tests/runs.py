"""The identity of a run, as tests of single parts need it."""

from typing import Any

from tasks.config import Run


def a_run(name: str = "monday", uri: str = "sqlite:///runs/mlflow.db", run_id: str = "4be1", **changes: Any) -> Run:
    """A run whose MLflow run is `run_id` in the store `uri`."""
    known = {"token": name, "seed": 0, "environment": "blackjack", "environment_url": ""}
    return Run(**{**known, "name": name, "mlflow_run_id": run_id, "tracking_uri": uri, **changes})
