"""The Flyte task of a training: its function runs in this process, whose trainer stays warm, or Elastic starts several
ranks that each call it, and rank 0 returns the result."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flytekit import PythonFunctionTask
from flytekit.exceptions.user import FlyteUserRuntimeException
from flytekit.extend import IgnoreOutputs, TaskPlugins
from flytekit.types.directory import FlyteDirectory
from flytekitplugins.kfpytorch import Elastic
from flytekitplugins.kfpytorch.task import PytorchElasticFunctionTask

from tasks import threads
from tasks.config import TrainingConfig
from tasks.infrastructure import InfrastructureError, is_named_so
from tasks.settings import require
from tasks.stages import stage

OURS = {error.__name__: error for error in (ValueError, FloatingPointError, MemoryError)}  # with sentences of ours


@dataclass
class Ranks(Elastic):
    """Elastic with the nodes and ranks of the run that is executed."""

    monitor_interval: float = 0.2  # type: ignore[assignment]  # seconds


class RanksTask(PytorchElasticFunctionTask):
    """A task with an input `training`: TrainingConfig, which says how many ranks call its function.

    On one node it is an ordinary pod, on several a PyTorchJob of Kubeflow's training operator.
    """

    def __init__(self, task_config: Ranks, task_function: Any, **kwargs: Any):
        # Not the plugin's own __init__, which imports torch: the pod that compiles the loop has none.
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

    def set_ranks(self, training: TrainingConfig) -> None:
        """Use the nodes and ranks of `training` from now on, for execution and in a compiled graph."""
        self._task_config = Ranks(nnodes=training.nodes, nproc_per_node=training.ranks // training.nodes)

    def execute(self, **kwargs: Any) -> Any:
        """Call the function with these inputs, on as many ranks as they say."""
        training: TrainingConfig = kwargs["training"]
        if training.ranks == 1:
            return PythonFunctionTask.execute(self, **kwargs)
        from torch.distributed.elastic.multiprocessing.api import SignalException

        from tasks.policy.machine import check_ranks

        with stage(kwargs["run"], "train"), _restored_process(training.ranks // training.nodes):
            check_job(training)
            check_ranks(training)
            self.set_ranks(training)
            try:
                return super().execute(**{name: _downloaded(value) for name, value in kwargs.items()})
            except FlyteUserRuntimeException as error:
                raise _first_error(error.value) from None
            except IgnoreOutputs as no_outputs:
                if isinstance(no_outputs.__context__, SignalException):
                    raise KeyboardInterrupt from None
                not_the_first_node = no_outputs
        raise not_the_first_node


TaskPlugins.register_pythontask_plugin(Ranks, RanksTask)


def check_job(training: TrainingConfig) -> None:
    """Raise ValueError in a pod that is alone where several were asked for; else it would wait 15 minutes for them."""
    alone = training.nodes > 1 and "PET_NNODES" not in os.environ  # which Kubeflow's training operator sets
    allowed = "1, as this pod is alone, or a cluster that has the plugin pytorch among enabled-plugins and Kubeflow's"
    require(not alone, "training.nodes", training.nodes, f"{allowed} training operator")


def _first_error(failed: Any) -> Exception:
    """The error of the rank that failed first, as it was raised there; `failed` is the launcher's ChildFailedError.

    Each rank that fails leaves a file. The others fail after it, because they wait for it, so the oldest file counts.
    """
    rank, failure = failed.get_first_failure()
    files = sorted(Path(failure.error_file).parents[1].glob("*/error.json"), key=lambda path: path.stat().st_mtime_ns)
    if failure.exitcode < 0 or not files:
        return InfrastructureError(f"rank {rank} of the training was lost: {failure.message.strip()}.")
    message = json.loads(files[0].read_text())["message"]["message"]
    kind, _, sentence = message.partition(": ")
    if is_named_so(kind, sentence):
        return InfrastructureError(message)
    return OURS[kind](sentence) if kind in OURS else RuntimeError(message)


def _downloaded(value: Any) -> Any:
    """An input with its files on this machine, downloaded once for all ranks."""
    if isinstance(value, list):
        return [_downloaded(one) for one in value]
    if not isinstance(value, FlyteDirectory):
        return value
    local = FlyteDirectory(str(value.download()))
    local._remote_source = value.remote_source  # where it came from, for the lineage
    return local


@contextlib.contextmanager
def _restored_process(ranks: int) -> Iterator[None]:
    """Give the ranks their share of the cores and this process's clock; then undo what the launcher changed."""
    from tasks.tracking import console

    environment, signals = dict(os.environ), (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = {s: signal.getsignal(s) for s in signals if threading.current_thread() is threading.main_thread()}
    os.environ[threads.NUMBER] = threads.share(ranks)
    os.environ[console.STARTED_AT] = str(console.STARTED)
    try:
        yield
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
