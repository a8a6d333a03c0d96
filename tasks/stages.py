"""What the Flyte shells of all stages share: folders, metrics, and a training that says why it failed."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder, use_scratch_folder
from tasks.peak_memory import reset_peak
from tasks.tracking import console, mlflow_run, outbox

CACHE_VERSION = "5"  # changes when a stage gives other results for the same inputs
STARTED = "started"  # when an iteration's rollout began, seconds since 1970; carried along, never logged
METRICS = "_metrics.json"  # the underscore hides it from readers of Arrow datasets

# What is measured and has no chart in MLflow, so that those it has can be looked through; _metrics.json holds it.
UNCHARTED = frozenset(
    {
        "rollout/groups",
        "rollout/groups_with_variance",
        "rollout/max_turns_share",
        "rollout/partial_format_share",
        "rollout/samples_mean",
        "reference/scored",
        "buffer/groups_in_reach",
        "buffer/groups_too_old",
        "buffer/groups_used_up",
        "buffer/groups_waiting",
        "buffer/groups_without_gradient",
        "buffer/trajectories",
        "train/grad_norm_max",
        "train/mismatch_max",
        "train/steps",
    }
)


NO_STAGE = ("", 0.0)
_stage = NO_STAGE  # the stage that runs in this process, and when it began


def stage_folder(run: Run, stage: str, number: int) -> Path:
    """Where a stage writes: `runs/<name>/<stage>/00007`."""
    return run_folder(run.name) / stage / f"{number:05d}"


@contextlib.contextmanager
def stage_context(run: Run, stage: str = "") -> Iterator[None]:
    """Mark the MLflow run FAILED, with the reason as a tag, when the block raises.

    One of several ranks leaves that to the process that started them: it knows which failed first.
    """
    global _stage
    use_scratch_folder()
    _stage = stage, time.perf_counter()
    one_of_several = "TORCHELASTIC_RUN_ID" in os.environ
    if not one_of_several:
        outbox.begin(run)
    reset_peak()
    try:
        yield
    except BaseException as error:
        reason = str(error) or type(error).__name__
        if not one_of_several:
            with contextlib.suppress(Exception):  # the error at hand matters more than a tracking server's
                mlflow_run.fail(run.tracking_uri, run.mlflow_run_id, reason)
        raise
    finally:
        _stage = NO_STAGE


def stage_seconds() -> dict[str, float]:
    """How long the present stage took so far as a whole, reading and writing too, as a metric: `stage/train_s`."""
    name, began = _stage
    return {f"stage/{name}_s": time.perf_counter() - began} if name else {}


@contextlib.contextmanager
def shard_context(run: Run, stage: str, shard: int, *, of: int, needed: int) -> Iterator[None]:
    """As `stage_context`, for one of the shards of a stage that can do with `needed` of them.

    A shard that raises leaves its reason with the MLflow run, as a tag, by which others know how many are lost. Raises
    RuntimeError, one sentence, where that is one too many; where none may be lost, what the block raised.
    """
    if needed == of:
        with stage_context(run):
            yield
        return
    use_scratch_folder()
    try:
        yield
    except Exception as error:
        reason, lost = str(error) or type(error).__name__, 1
        with contextlib.suppress(Exception):  # as there
            lost = mlflow_run.note_shard(run, stage, shard, reason)
        console.stage(f"{stage}: shard {shard} of {of} is lost: {reason}")
        if of - lost >= needed:
            raise
        with stage_context(run):
            message = f"{stage} lost {lost} of {of} shards; allowed: {of - needed}. The last, shard {shard}: {reason}"
            raise RuntimeError(message) from error
    except BaseException:
        with stage_context(run):
            raise
    with contextlib.suppress(Exception):  # a note of an earlier attempt may stay where MLflow is away
        mlflow_run.note_shard(run, stage, shard, "")


def write_metrics(
    run: Run,
    folder: Path,
    metrics: Mapping[str, float],
    step: int,
    carried: Mapping[str, float] | None = None,
    sources: Sequence[Path] = (),
) -> None:
    """Log a stage's metrics at the policy version `step`; leave them, and those `carried` from the stages before,
    beside its result for the stages after. The last that a stage logs.

    What MLflow could not be told by the stages that wrote `sources` it is told now, or that is left there too.
    """
    outbox.deliver(run, outbox.load_pending(run, sources))
    metrics = {**metrics, **stage_seconds()}
    mlflow_run.log_metrics(run, {name: value for name, value in metrics.items() if name not in UNCHARTED}, step)
    (folder / METRICS).write_text(json.dumps({**(carried or {}), **metrics}, indent=1) + "\n")
    outbox.save_pending(run, folder)


def read_metrics(folder: Path) -> dict[str, float]:
    """What the stage that wrote `folder` measured."""
    return json.loads((folder / METRICS).read_text())


def show_iteration(run: Run, iterations: int, version: int, metrics: Mapping[str, float], seconds: float) -> None:
    """The console's line for one iteration, which took `seconds`."""
    console.iteration_line(
        version=version,
        iterations=iterations,
        reward=metrics["rollout/expected_reward"],
        regret=_last_regret(run, version),
        kl=metrics.get("train/kl", 0.0),
        entropy=metrics.get("train/entropy", 0.0),
        games_per_second=metrics["rollout/games_per_s"],
        seconds=seconds,
        seconds_left=console.pace.seconds_left(version, iterations, seconds),
    )


def _last_regret(run: Run, version: int) -> tuple[int, float] | None:
    """The newest policy below `version` with an evaluation in the run's folder, and its regret; on a cluster the
    evaluations are elsewhere."""
    folder = run_folder(run.name) / "evaluations"
    evaluated = [path for path in sorted(folder.glob("*/evaluation.json")) if int(path.parent.name) < version]
    if not evaluated:
        return None
    return int(evaluated[-1].parent.name), json.loads(evaluated[-1].read_text())["regret"]
