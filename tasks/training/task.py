"""Flyte shell of the training stage, on one rank or on several.

train ─► one rank: the function, in this process, whose trainer stays warm
      └► several: Elastic starts the ranks, each calls the same function; what the first returns is the result
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from flytekit import FlyteContextManager, PythonFunctionTask, task
from flytekit.exceptions.user import FlyteUserRuntimeException
from flytekit.extend import IgnoreOutputs, TaskPlugins
from flytekit.types.directory import FlyteDirectory
from flytekitplugins.kfpytorch import Elastic
from flytekitplugins.kfpytorch.task import PytorchElasticFunctionTask

from tasks.buffer.task import TrainingBatch
from tasks.config import GrpoConfig, Run, TrainingConfig
from tasks.resources import pod
from tasks.stages import (
    CACHE_VERSION,
    STARTED,
    read_metrics,
    show_iteration,
    stage_context,
    stage_folder,
    write_metrics,
)


class Trained(NamedTuple):
    """The next policy version, and what its training needs to go on."""

    policy: FlyteDirectory
    state: FlyteDirectory


@dataclass
class Ranks(Elastic):
    """Elastic whose numbers of nodes and ranks are those of the run that is executed: `training.nodes`, `.ranks`."""

    monitor_interval: float = 0.2  # type: ignore[assignment]  # seconds


class RanksTask(PytorchElasticFunctionTask):
    """A task with an input `training`: TrainingConfig, which says how many ranks call its function.

    On one node it is a plain pod, on several a PyTorchJob, for which the cluster needs Kubeflow's training operator.
    """

    def __init__(self, task_config: Ranks, task_function: Any, **kwargs: Any):
        # Not the plugin's own, which imports torch: the pod that compiles the loop has none.
        super(PytorchElasticFunctionTask, self).__init__(
            task_config, task_function, self._ELASTIC_TASK_TYPE_STANDALONE, task_type_version=1, **kwargs
        )
        self.rdzv_backend = "c10d"

    @property
    def task_type(self) -> str:
        return self._ELASTIC_TASK_TYPE_STANDALONE if self.min_nodes == 1 else self._ELASTIC_TASK_TYPE

    @property
    def min_nodes(self) -> int:
        assert self.task_config is not None
        return int(self.task_config.nnodes)

    max_nodes = min_nodes

    def spread(self, training: TrainingConfig) -> None:
        """From now on have as many nodes and ranks as `training`, where it is executed or compiled into a graph."""
        self._task_config = Ranks(nnodes=training.nodes, nproc_per_node=training.ranks // training.nodes)

    def execute(self, **kwargs: Any) -> Any:
        """Call the function with these inputs, on as many ranks as they say."""
        training: TrainingConfig = kwargs["training"]
        if training.ranks == 1:
            return PythonFunctionTask.execute(self, **kwargs)
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from tasks.policy.machine import check_ranks
        from tasks.training.launch import first_error

        with (
            stage_context(kwargs["run"], "train"),
            _launcher_cleaned_up(training.ranks // training.nodes),
        ):
            check_ranks(training)
            self.spread(training)
            try:
                return super().execute(**{name: _here(value) for name, value in kwargs.items()})
            except FlyteUserRuntimeException as error:
                raise first_error(error.value) from None
            except IgnoreOutputs as nothing:
                if isinstance(nothing.__context__, SignalException):
                    raise KeyboardInterrupt from None
                not_the_first_node = nothing
        raise not_the_first_node


TaskPlugins.register_pythontask_plugin(Ranks, RanksTask)


def _here(value: Any) -> Any:
    """An input whose files have been downloaded, once for all ranks of this machine."""
    if isinstance(value, list):
        return [_here(one) for one in value]
    if not isinstance(value, FlyteDirectory):
        return value
    found = FlyteDirectory(str(value.download()))
    found._remote_source = value.remote_source  # where it came from, for the lineage
    return found


@contextlib.contextmanager
def _launcher_cleaned_up(ranks: int) -> Iterator[None]:
    """The ranks share this machine's cores and this process's clock; what their launcher changes of environment and
    signal handlers does not outlive it."""
    from tasks.tracking import console

    environment, signals = set(os.environ), (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {s: signal.getsignal(s) for s in signals if threading.current_thread() is threading.main_thread()}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    os.environ[console.STARTED_AT] = str(console.STARTED)
    try:
        yield
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)
        for name in set(os.environ) - environment:
            del os.environ[name]


@task(
    task_config=Ranks(),
    cache=True,
    cache_version=CACHE_VERSION,
    cache_ignore_input_vars=("training",),  # a run may go on with other ranks
    **pod("training"),
)
def train(
    run: Run,
    config: GrpoConfig,
    training: TrainingConfig,
    iterations: int,
    training_batch: TrainingBatch,
    batches: list[FlyteDirectory],
    policy: FlyteDirectory,
    sampler: FlyteDirectory,
    state: FlyteDirectory | None,
    iteration: int,
) -> Trained:
    """Train policy `iteration` on the window; returns policy `iteration + 1`.

    `training` is that of `config`, with the ranks of this run; each of them calls this function. `sampler` is the
    policy that sampled the last of the batches: the same as `policy`, or with lag 1 its parent.
    """
    from tasks.buffer.selection import gather
    from tasks.history import carry_on
    from tasks.lineage.records import source_of
    from tasks.lineage.training import record_training
    from tasks.peak_memory import peak_memory
    from tasks.records import read_batch
    from tasks.tracking import console
    from tasks.training.ranks import is_first, leave
    from tasks.training.train import next_policy

    execution = FlyteContextManager.current_context().execution_state
    here = execution is not None and execution.is_local_execution()
    with stage_context(run, "train"):
        folders = [Path(batch.download()) for batch in batches]
        target, new_state = stage_folder(run, "policies", iteration + 1), stage_folder(run, "states", iteration + 1)
        tables, before = [read_batch(folder) for folder in folders], Path(policy.download())
        rows = gather(tables, training_batch.group_ids)
        with console.bar(f"training policy {iteration + 1}", "steps") as progress:
            metrics = next_policy(
                rows,
                before,
                Path(sampler.download()),
                Path(state.download()) if state else None,
                replace(config, training=training),
                run_token=run.token,
                seed=run.seed,
                iterations=iterations,
                target=target,
                target_state=new_state,
                progress=progress,
            )
        if is_first():
            sampled = read_metrics(folders[-1])
            started = sampled.pop(STARTED)
            worked = sampled["time/rollout_s"] + sampled.get("time/reference_s", 0.0) + metrics["time/train_s"]
            metrics["time/iteration_s"] = console.seconds_here(started, worked, here=here)
            metrics["time/overhead_s"] = metrics["time/iteration_s"] - worked
            passed = config.training.epochs * len(rows["token_ids"].combine_chunks().flatten())
            metrics |= {
                "train/tokens_per_s": passed / metrics["time/train_s"],
                **training_batch.metrics,
                **peak_memory("train"),
            }
            carry_on(before, target, tables[-1], {**sampled, **metrics}, iteration)
            trained_on = {source_of(batch): folder for batch, folder in zip(batches, folders, strict=True)}
            record_training(run, target, source_of(policy), trained_on, training_batch.group_ids)
            write_metrics(run, target, metrics, step=iteration, sources=[folders[-1], before])
            show_iteration(run, iterations, iteration + 1, {**sampled, **metrics}, metrics["time/iteration_s"])
        leave()
    return Trained(policy=FlyteDirectory(str(target)), state=FlyteDirectory(str(new_state)))
