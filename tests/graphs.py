"""The graph that a cluster gets: the loop compiled into nodes, as its task does it in a pod; nothing is executed.

`compiled` gives one graph as flytekit makes it, `unrolled` all nodes of a whole training, with those of its segments.
"""

import importlib
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flytekit import dynamic
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.models.core.workflow import Node as FlyteNode
from flytekit.models.dynamic_job import DynamicJobSpec
from flytekit.models.literals import BindingData
from flytekit.models.task import Resources
from flytekit.tools.translator import get_serializable
from flytekit.types.directory import FlyteDirectory

from runs import a_run
from tasks.buffer.task import TrainingBatch
from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.resources import IMAGES, ROLES, pod
from tasks.warm.task import warm_iterations as warm
from workflows.grpo import grpo, iterate

NAMES = ImageConfig.from_images("registry.invalid/none:1", {n: f"registry.invalid/{n}:1" for n in IMAGES})
SETTINGS = SerializationSettings(image_config=NAMES, project="grpo", domain="development", version="1")


def folder(kind: str, version: int) -> FlyteDirectory:
    """An output of an earlier stage, in object storage."""
    return FlyteDirectory.from_source(f"s3://bucket/{kind}/{version:05d}")


def loop_inputs(
    config: GrpoConfig, *, begin: int = 0, end: int, iterations: int = 0, lag: int = 0, **changes: Any
) -> dict[str, Any]:
    """The inputs of `iterate` for the iterations `begin` to `end` - 1, with what the iterations before them leave."""
    last, reach = config.retention.last, config.buffer.max_age + 1
    return {
        "run": a_run(),
        "config": config.resolved(get_environment("blackjack").defaults),
        "iterations": iterations or end,
        "lag": lag,
        "first": folder("policies", 0),
        "begin": begin,
        "end": end,
        "policies": [folder("policies", v) for v in range(begin + 1)][-last:],
        "states": [folder("states", v) for v in range(1, begin + 1)][-last:],
        "batches": [folder("batches", v) for v in range(begin)][-reach:],
        "training_batch": TrainingBatch(),
        "evaluations": [],
        **changes,
    }


def compiled(inputs: Mapping[str, Any]) -> DynamicJobSpec:
    """The graph that `iterate` makes of these inputs on a cluster."""
    context = FlyteContextManager.current_context()
    remote = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    with FlyteContextManager.with_context(context.with_serialization_settings(SETTINGS).with_execution_state(remote)):
        # A new task each time, as in a new process: flytekit keeps the first graph that a task made.
        return dynamic(iterate.task_function).execute(**inputs)


def task_name(node: FlyteNode) -> str:
    """The full name of a node's task; of a map, the name of the task that it maps."""
    target = node.array_node.node if node.array_node else node
    return re.sub(r"\.map_(\w+)_[0-9a-f]{32}-arraynode$", r".\1", target.task_node.reference_id.name)


def parts(binding: BindingData) -> list[BindingData]:
    """A binding, or those in its list."""
    if binding.collection is None:
        return [binding]
    return [part for inner in binding.collection.bindings for part in parts(inner)]


@dataclass(frozen=True)
class Node:
    """One pod on a cluster. Example: `Node("n2-dn4", "train", 0, "training", frozenset({"n2-dn3"}), {"batches": 1,
    "policy": 1, "sampler": 1}, gpus=1)`."""

    name: str
    stage: str  # the task's function
    number: int  # how often the stage came before
    role: str  # one of tasks.resources.ROLES
    after: frozenset[str]  # nodes that must end before this one begins
    reads: Mapping[str, int]  # folders and outputs of other nodes, by input
    gpus: int = 0
    # Of the stage's work: a map over four shards is four nodes with a quarter each, a warm pod does several iterations.
    share: float = 1.0


def unrolled(config: GrpoConfig, *, iterations: int, lag: int) -> list[Node]:
    """All nodes of a training, each behind those that it waits for."""
    nodes = get_serializable(OrderedDict(), SETTINGS, grpo).template.nodes
    given = loop_inputs(config, end=iterations, lag=lag)
    return list(_nodes(nodes, given, "", frozenset(), Counter()))


def _nodes(
    nodes: Sequence[FlyteNode], given: Mapping[str, Any], prefix: str, first: frozenset[str], counts: Counter[str]
) -> Iterator[Node]:
    """`given` are the inputs of the loop, `first` the nodes that must end before those without another before them."""
    ends: dict[str, frozenset[str]] = {}  # by node id: what must have ended, for that node to have ended
    for node in nodes:
        after = frozenset().union(*(ends[of] for of in node.upstream_node_ids if of in ends)) or first
        module, stage = task_name(node).rsplit(".", 1)
        task, bound = getattr(importlib.import_module(module), stage), {b.var: b.binding for b in node.inputs}
        reads = {var: count for var, binding in bound.items() if (count := sum(map(_is_read, parts(binding))))}
        width = len(bound["shard"].collection.bindings) if node.array_node else 1
        size = bound["end"].scalar.primitive.integer - bound["begin"].scalar.primitive.integer if task is warm else 1
        names = [prefix + node.id] if width == 1 else [f"{prefix}{node.id}-{i}" for i in range(width)]
        number = counts[stage]
        counts[stage] += 1
        for name in names:
            yield Node(name, stage, number, _role(task), after, reads, _gpus(node, task), size / width)
        ends[node.id] = frozenset(names)
        if task is iterate:
            limits = {name: bound[name].scalar.primitive.integer for name in ("begin", "end") if bound[name].scalar}
            inputs = loop_inputs(**{key: given[key] for key in LOOP} | limits)
            inner = list(_nodes(compiled(inputs).nodes, inputs, f"{names[0]}-", ends[node.id], counts))
            yield from inner
            ends[node.id] = frozenset(n.name for n in inner) - frozenset().union(*(n.after for n in inner))


LOOP = ("config", "begin", "end", "iterations", "lag")


def _is_read(part: BindingData) -> bool:
    """An output of another node, or a folder that was there before; not an input of the workflow."""
    return bool(part.promise.node_id) if part.promise else part.scalar is not None and part.scalar.blob is not None


def _role(task: Any) -> str:
    """The role whose pod the task asks for."""
    (role,) = (
        role
        for role in ROLES
        if (pod(role)["container_image"], pod(role)["requests"]) == (task.container_image, task.resources.requests)
    )
    return role


def _gpus(node: FlyteNode, task: Any) -> int:
    """GPUs of the pod: those that the node asks for, else the task's."""
    changed = node.task_node and node.task_node.overrides and node.task_node.overrides.resources
    if changed:
        return sum(int(entry.value) for entry in changed.requests if entry.name == Resources.ResourceName.GPU)
    return int(task.resources.requests.gpu or 0)
