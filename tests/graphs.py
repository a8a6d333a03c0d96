"""A workflow as a cluster unrolls it: every node of its graph, and of the graphs that its `@dynamic` tasks make.

Nothing is executed but the functions that build graphs. Where one needs what a node would only know when it ran, an
output of another, a value of that type stands in.
"""

import importlib
import re
import typing
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass

from flytekit import PythonFunctionTask, dynamic
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.core.base_task import PythonTask
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import WorkflowBase
from flytekit.models.core.workflow import Node as FlyteNode
from flytekit.models.literals import BindingData
from flytekit.models.task import Resources
from flytekit.tools.translator import get_serializable
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import Run
from tasks.resources import IMAGES, ROLES, pod

NAMES = ImageConfig.from_images("registry.invalid/none:1", {n: f"registry.invalid/{n}:1" for n in IMAGES})
SETTINGS = SerializationSettings(image_config=NAMES, project="grpo", domain="development", version="1")
MAP = re.compile(r"map_(.+)_[0-9a-f]+-arraynode")


@dataclass(frozen=True)
class Node:
    """One task on a cluster. Example: `Node("n2-dn4", "train", 0, "training", frozenset({"n2-dn3"}),
    {"batches": 1, "policy": 1, "sampler": 1}, gpus=1)`."""

    name: str
    stage: str  # the task's function
    number: int  # how often the stage came before
    role: str  # one of tasks.resources.ROLES
    after: frozenset[str]  # nodes that must end before this one begins
    reads: Mapping[str, int]  # folders or outputs of other nodes, by input
    gpus: int = 0  # of its pod
    share: float = 1.0  # of the stage's work: a map task of four nodes has four with a quarter each


def unrolled(workflow: WorkflowBase, inputs: Mapping[str, object]) -> list[Node]:
    """All nodes, each behind those that it waits for."""
    context = FlyteContextManager.current_context()
    spec = get_serializable(OrderedDict(), SETTINGS, workflow)
    remote = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    with FlyteContextManager.with_context(context.with_serialization_settings(SETTINGS).with_execution_state(remote)):
        return list(_nodes(spec.template.nodes, inputs, "", frozenset(), Counter()))


def _nodes(
    nodes: Sequence[FlyteNode], inputs: Mapping[str, object], prefix: str, first: frozenset[str], counts: Counter[str]
) -> Iterator[Node]:
    """`inputs` are those of the workflow, `first` what its nodes without another before them wait for."""
    ends: dict[str, frozenset[str]] = {}  # by node id: what must have ended, for that node to have ended
    outputs: dict[str, dict[str, BindingData]] = {}  # by node id: what a graph of its own hands on
    for node in nodes:
        before = [ends[of] for of in node.upstream_node_ids if of in ends]
        after = frozenset().union(*before) or first
        target = node.array_node.node if node.array_node else node
        assert target.task_node is not None, f"{node.id} is neither a task nor a map of one"
        module, function = target.task_node.reference_id.name.rsplit(".", 1)
        stage = found[1] if (found := MAP.fullmatch(function)) else function
        task = getattr(importlib.import_module(module), stage)
        bound = {binding.var: binding.binding for binding in node.inputs}
        reads = {var: count for var, binding in bound.items() if (count := _folders(binding))}
        width = _width(node, bound)
        number, name = counts[stage], prefix + node.id
        counts[stage] += 1
        names = [name] if width == 1 else [f"{name}-{i}" for i in range(width)]
        for one in names:
            yield Node(one, stage, number, _role(task), after, reads, _gpus(target, task), 1 / width)
        ends[node.id] = frozenset(names)
        if _unrolls(task):
            kinds = task.python_interface.inputs
            given = {var: _value(binding, kinds[var], inputs, outputs) for var, binding in bound.items()}
            # A task of its own each time: flytekit keeps the first graph that one made.
            graph = dynamic(task.task_function).execute(**given)
            inner = list(_nodes(graph.nodes, {}, f"{name}-", ends[node.id], counts))
            yield from inner
            outputs[node.id] = {binding.var: binding.binding for binding in graph.outputs}
            ends[node.id] = frozenset(n.name for n in inner) - frozenset().union(*(n.after for n in inner))


def _unrolls(task: PythonTask) -> bool:
    return getattr(task, "execution_mode", None) == PythonFunctionTask.ExecutionBehavior.DYNAMIC


def _role(task: PythonTask) -> str:
    """The role whose pod the task asks for."""
    for role in ROLES:
        asked = pod(role)
        if (asked["container_image"], asked["requests"]) == (task.container_image, task.resources.requests):
            return role
    raise ValueError(f"{task.name} asks for the pod of no role; allowed: {', '.join(ROLES)}.")


def _gpus(node: FlyteNode, task: PythonTask) -> int:
    """GPUs of the pod: those that the node asks for, else the task's."""
    changed = node.task_node.overrides.resources if node.task_node.overrides else None
    if changed:
        return sum(int(entry.value) for entry in changed.requests if entry.name == Resources.ResourceName.GPU)
    return int(task.resources.requests.gpu or 0)


def _parts(binding: BindingData) -> list[BindingData]:
    if binding.collection is None:
        return [binding]
    return [part for inner in binding.collection.bindings for part in _parts(inner)]


def _folders(binding: BindingData) -> int:
    """Outputs of other nodes, and folders that were there before; not the inputs of the workflow."""
    return sum(
        bool(part.promise.node_id) if part.promise else part.scalar is not None and part.scalar.blob is not None
        for part in _parts(binding)
    )


def _width(node: FlyteNode, bound: Mapping[str, BindingData]) -> int:
    """Nodes that a map makes: one an element of the inputs that it does not hand on whole. 1 for what is no map."""
    if not node.array_node:
        return 1
    whole = node.array_node.to_flyte_idl().bound_inputs
    return max(len(b.collection.bindings) for var, b in bound.items() if var not in whole and b.collection is not None)


def _value(
    binding: BindingData,
    kind: typing.Any,
    inputs: Mapping[str, object],
    outputs: Mapping[str, Mapping[str, BindingData]],
) -> object:
    """What a binding gives a function, or stands in for it."""
    if promise := binding.promise:
        if promise.node_id in outputs:
            return _value(outputs[promise.node_id][promise.var], kind, {}, {})
        return inputs[promise.var] if promise.var in inputs else _stand_in(kind)
    if binding.collection is not None:
        (inner,) = typing.get_args(kind)
        return [_value(part, inner, inputs, outputs) for part in binding.collection.bindings]
    return TypeEngine.to_python_value(FlyteContextManager.current_context(), binding.to_literal_model(), kind)


def _stand_in(kind: typing.Any) -> object:
    if kind in (FlyteDirectory, FlyteFile):
        return kind.from_source("s3://bucket/0")
    if kind is Run:
        names = ("name", "token", "environment", "environment_url", "mlflow_run_id", "tracking_uri")
        return Run(**dict.fromkeys(names, ""), seed=0)
    if typing.get_origin(kind) is list:
        return [_stand_in(*typing.get_args(kind))]
    if is_dataclass(kind):
        return kind()  # type: ignore[operator]
    for option in typing.get_args(kind):  # "this or None"
        return _stand_in(option)
    raise TypeError(f"nothing stands in for {kind}; a graph depends on what a node returns")
