"""What the Flyte tasks of all stages share: their folders, their metrics, and an MLflow run that says why it failed.

    with stage(run, "score_reference", step=iteration) as s:
        …
        s.result, s.metrics, s.carried, s.sources = folder, metrics, read_metrics(source), [source]

What the block sets is written when it ends without an error.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.config import Run
from tasks.folders import run_folder, use_scratch_folder, versions, write_file, writing
from tasks.infrastructure import recoverable, will_be_retried
from tasks.peak_memory import peak_memory, reset_peak
from tasks.run import ending
from tasks.tracking import console, mlflow_run, outbox
from tasks.tracking.provenance import flyte_execution

CACHE_VERSION = "9"  # changes when a stage gives other results for the same inputs
STARTED = "started"  # when an iteration's rollout began, seconds since 1970; carried along, never logged
METRICS = "_metrics.json"  # the underscore hides it from readers of Arrow datasets

# Without a chart in MLflow, which would have too many; _metrics.json has them.
UNCHARTED = re.compile(
    r"rollout/(groups|groups_with_variance|samples_mean)|reference/scored|buffer/(trajectories|groups_\w+)"
    r"|memory/compute_advantages_gib|train/(grad_norm_max|mismatch_max|steps|log_ratio_clamped_share)|eval/(error|truncated)"
    r"|advantage/abs_mean|time/rollout_setup_s"
)


def stage_folder(run: Run, stage: str, number: int) -> Path:
    """Where a stage writes: `runs/<name>/<stage>/00007`."""
    return run_folder(run.name) / stage / f"{number:05d}"


@dataclass
class Stage:
    """A running stage. With a `result`, its metrics are logged and written beside it when the stage succeeds."""

    name: str
    began: float = field(default_factory=time.perf_counter)
    result: Path | None = None  # the folder that it wrote
    metrics: dict[str, float] = field(default_factory=dict)
    carried: Mapping[str, float] = field(default_factory=dict)  # of the stages before, for those after; not logged
    sources: Sequence[Path] = ()  # folders whose pending MLflow records this stage sends, or keeps with its own

    def seconds(self) -> dict[str, float]:
        """How long it has taken so far, with reading and writing: `{"stage/train_s": 12.5}`."""
        return {f"stage/{self.name}_s": time.perf_counter() - self.began}


@contextlib.contextmanager
def stage(run: Run, name: str = "", *, step: int = 0) -> Iterator[Stage]:
    """A stage of `run`, whose metrics have the policy version `step`.

    When the block raises, the MLflow run is marked FAILED, with the reason as a tag, unless the cluster will try it
    again: a run whose pod is ended from outside is KILLED until its next stage begins. One of several ranks leaves all
    that to the process that started them.
    """
    use_scratch_folder()
    running = Stage(name)
    started_as_rank = "TORCHELASTIC_RUN_ID" in os.environ
    if not started_as_rank:
        outbox.begin(run)
        _begin_on_a_cluster(run, name)
    reset_peak()
    with contextlib.nullcontext() if started_as_rank else recoverable():
        try:
            with writing(run_folder(run.name)):
                yield running
                if running.result is not None:
                    metrics = running.metrics | peak_memory(name) | running.seconds()
                    write_metrics(run, running.result, metrics, step, running.carried, running.sources)
        except BaseException as error:
            if not started_as_rank:
                _mark_failed(run, error)
            raise


def _begin_on_a_cluster(run: Run, name: str) -> None:
    """Say what this pod lacks, and that the run goes on, where an earlier attempt or execution failed."""
    if not flyte_execution():
        return
    from tasks import granted

    if said := granted.complaint(name or "the stage"):
        console.stage(said)
    ending.raise_at_sigterm()
    with contextlib.suppress(Exception):  # what MLflow shows meanwhile is not worth a stage
        mlflow_run.go_on(run.tracking_uri, run.mlflow_run_id)


def _mark_failed(run: Run, error: BaseException) -> None:
    """What the cluster tries again has not failed; where it gives up, the workflow's failure handler says so.

    It does not tell a pod whether it will be tried again or its execution was aborted, for which no handler runs.
    """
    reason = str(error) or type(error).__name__
    with contextlib.suppress(Exception):  # this error matters more than one of the tracking server
        if not will_be_retried(error):
            mlflow_run.fail(run.tracking_uri, run.mlflow_run_id, reason)
        elif not isinstance(error, Exception):
            mlflow_run.kill(run.tracking_uri, run.mlflow_run_id, reason)


@contextlib.contextmanager
def shard_context(run: Run, name: str, shard: int, *, of: int, allowed_failures: int) -> Iterator[None]:
    """As `stage`, for one of the `of` shards of a stage that succeeds without `allowed_failures` of them.

    A shard that raises leaves its reason as a tag of the MLflow run; where too many have, it raises RuntimeError.
    """
    use_scratch_folder()
    if flyte_execution():
        ending.raise_at_sigterm()
        with contextlib.suppress(Exception):  # as in `_begin_on_a_cluster`; another shard may have failed for good
            mlflow_run.go_on(run.tracking_uri, run.mlflow_run_id, after=("KILLED",))
    with recoverable():
        try:
            with writing(run_folder(run.name)):
                yield
        except BaseException as error:
            _shard_is_lost(run, name, shard, of, allowed_failures, error)
            raise
    if allowed_failures:
        with contextlib.suppress(Exception):  # without MLflow the note of an earlier attempt stays
            mlflow_run.note_shard(run, name, shard, "")


def _shard_is_lost(run: Run, name: str, shard: int, of: int, allowed_failures: int, error: BaseException) -> None:
    """Note it, unless the cluster tries it again; RuntimeError where it is one too many."""
    if will_be_retried(error) or not allowed_failures or not isinstance(error, Exception):
        _mark_failed(run, error)
        return
    failed, reason = 1, str(error) or type(error).__name__
    with contextlib.suppress(Exception):  # as in `_mark_failed`
        failed = mlflow_run.note_shard(run, name, shard, reason)
    console.stage(f"{name}: shard {shard} of {of} is lost: {reason}")
    if failed > allowed_failures:
        counts = f"{name} lost {failed} of {of} shards; allowed: {allowed_failures}"
        too_many = RuntimeError(f"{counts}. The last, shard {shard}: {reason}")
        _mark_failed(run, too_many)
        raise too_many from error


def write_metrics(
    run: Run,
    folder: Path,
    metrics: Mapping[str, float],
    step: int,
    carried: Mapping[str, float] = {},
    sources: Sequence[Path] = (),
) -> None:
    """Log a stage's metrics, and write them with those `carried` beside its result; the last that a stage logs.

    Records of the stages that wrote `sources` that are pending for MLflow are sent again, or stay pending here.
    """
    outbox.deliver(run, outbox.load_pending(run, sources))
    charted = {name: value for name, value in metrics.items() if not UNCHARTED.fullmatch(name)}
    mlflow_run.log_metrics(run, charted, step)
    write_file(folder / METRICS, json.dumps({**carried, **metrics}, indent=1) + "\n")
    outbox.save_pending(run, folder)


def read_metrics(folder: Path) -> dict[str, float]:
    """What the stage that wrote `folder` measured."""
    return json.loads((folder / METRICS).read_text())


def show_iteration(run: Run, version: int, metrics: Mapping[str, float]) -> None:
    """Print the console's line for the iteration that made policy `version`."""
    evaluated, seconds = last_evaluation(run, version), metrics["time/iteration_s"]
    known = f"  evaluated {evaluated[1]:+.3f} at {evaluated[0]}" if evaluated else ""
    left = console.clock(console.pace.seconds_left(version, run.iterations, seconds))
    console.stage(
        f"policy {version:>{len(str(run.iterations))}}/{run.iterations}",
        f"  reward {metrics['rollout/raw_reward']:+.3f}{known}  KL {metrics.get('train/kl', 0.0):.4f}"
        f"  entropy {metrics.get('train/entropy', 0.0):.3f}",
        (f"  {metrics['rollout/episodes_per_s']:>5,.0f} episodes/s {seconds:>6.1f} s  left {left}", "dim"),
        style="bold cyan",
    )


def last_evaluation(run: Run, version: int) -> tuple[int, float] | None:
    """The newest policy below `version` with an evaluation in the run's folder, and its mean reward; on a cluster the
    evaluations are on other machines."""
    for folder in reversed(versions(run_folder(run.name) / "evaluations")):
        if int(folder.name) < version and (folder / "evaluation.json").is_file():
            return int(folder.name), json.loads((folder / "evaluation.json").read_text())["reward"]["mean"]
    return None
