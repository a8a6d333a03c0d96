"""What the Flyte shells of all stages share: folders, metrics, and a training that says why it failed."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder, use_scratch_folder
from tasks.tracking import console, mlflow_run

CACHE_VERSION = "4"  # changes when a stage gives other results for the same inputs
STARTED = "started"  # when an iteration's rollout began, seconds since 1970; carried along, never logged
METRICS = "_metrics.json"  # the underscore hides it from readers of Arrow datasets


def stage_folder(run: Run, stage: str, number: int) -> Path:
    """Where a stage writes: `runs/<name>/<stage>/00007`."""
    return run_folder(run.name) / stage / f"{number:05d}"


@contextlib.contextmanager
def failing_loudly(run: Run) -> Iterator[None]:
    """Mark the MLflow run FAILED, with the reason as a tag, when the block raises."""
    use_scratch_folder()
    try:
        yield
    except BaseException as error:
        reason = str(error) or type(error).__name__
        with contextlib.suppress(Exception):  # the error at hand matters more than a tracking server's
            mlflow_run.fail(run.tracking_uri, run.mlflow_run_id, reason)
        raise


def write_metrics(
    run: Run, folder: Path, metrics: Mapping[str, float], step: int, carried: Mapping[str, float] | None = None
) -> None:
    """Log a stage's metrics at the policy version `step`; leave them, and those `carried` from the stages before,
    beside its result for the stages after."""
    mlflow_run.log_metrics(run, metrics, step)
    (folder / METRICS).write_text(json.dumps({**(carried or {}), **metrics}, indent=1) + "\n")


def read_metrics(folder: Path) -> dict[str, float]:
    """What the stage that wrote `folder` measured."""
    return json.loads((folder / METRICS).read_text())


@contextlib.contextmanager
def timed(run: Run, stage: str, step: int) -> Iterator[None]:
    """Log `stage/<stage>_s`, how long the whole of a stage took, reading and writing included, where it ends well."""
    started = time.perf_counter()
    yield
    mlflow_run.log_metrics(run, {f"stage/{stage}_s": time.perf_counter() - started}, step)


def show_iteration(run: Run, iterations: int, version: int, metrics: Mapping[str, float], started: float) -> None:
    """The console's line for one iteration."""
    seconds = time.time() - started
    console.iteration_line(
        version=version,
        iterations=iterations,
        reward=metrics["rollout/expected_reward"],
        kl=metrics.get("train/kl", 0.0),
        entropy=metrics.get("train/entropy", 0.0),
        kept_share=1 - metrics["advantage/dropped_share"],
        games_per_second=metrics["rollout/games_per_s"],
        seconds=seconds,
        seconds_left=seconds * (iterations - version),
    )
