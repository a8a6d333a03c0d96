"""How a run was started, as MLflow keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.config import Run
from tasks.tracking.mlflow_store import client


@dataclass(frozen=True)
class Origin:
    """What a run was made with: parameters and tags as MLflow keeps them, and when it was created (seconds since
    1970).

    Example: `Origin({"policy": "tiny", "training.epochs": "4"}, {"git.commit": "9c0f…", "version.torch": "2.13.0"},
    1796014266.0)`.
    """

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    started: float


def origin_of(run: Run) -> Origin | None:
    """None when MLflow does not answer: a report can do without."""
    try:
        known = client(run.tracking_uri).get_run(run.mlflow_run_id)
    except Exception:  # of whatever kind: there was no answer
        return None
    return Origin(known.data.params, known.data.tags, known.info.start_time / 1000)
