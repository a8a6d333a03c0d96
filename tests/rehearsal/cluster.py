"""What Flyte does in a run, as far as a rehearsal needs it: follows the graph, passes inputs from pod to pod.

    packages.py ──► start ──► walk ──► node ──► run ──► pod.py, in fresh processes
                                ▲                │
                                └─ futures.pb ───┘  what a `@dynamic` task leaves

All that passes between two tasks is protobufs and folders in object storage, as on a cluster.
"""

import graphlib
import math
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from flyteidl.core.dynamic_job_pb2 import DynamicJobSpec
from flyteidl.core.errors_pb2 import ContainerError, ErrorDocument
from flyteidl.core.literals_pb2 import Literal, LiteralCollection, LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate
from flyteidl.core.workflow_pb2 import Node

from packages import Packaged
from rehearsal.pod import Attempt, Moment, run_pod
from rehearsal.values import BUCKET, NOTHING, bound, key_of, literals

INPUT = "start-node"  # what the inputs of a graph are called in it
INDEX = "FLYTE_K8S_ARRAY_INDEX"


@dataclass(frozen=True)
class Done:
    """A task that succeeded. Example: node "n2-0-n7", task "tasks.training.task.train"."""

    node: str
    task: str
    inputs: LiteralMap
    outputs: LiteralMap  # empty for a `@dynamic`, whose graph has them
    attempts: list[Attempt]


class Storage:
    """The bucket of the cluster; `settings` are the variables by which flytekit in a pod finds it."""

    def __init__(self, url: str) -> None:
        self.settings = {
            "FLYTE_AWS_ENDPOINT": url,
            "FLYTE_AWS_ACCESS_KEY_ID": "rehearsal",
            "FLYTE_AWS_SECRET_ACCESS_KEY": "rehearsal",
        }
        keys = {"aws_access_key_id": "rehearsal", "aws_secret_access_key": "rehearsal", "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url=url, **keys)
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def get(self, key: str) -> bytes | None:
        """An object, None where there is none."""
        try:
            return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None

    def sizes(self, prefix: str) -> dict[str, int]:
        """The bytes of each object whose key begins with `prefix`."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", [])}

    def fetch(self, uri: str, folder: Path) -> Path:
        """Download all under `uri` into `folder`; a single file if it is one."""
        prefix = key_of(uri)
        for key in self.sizes(prefix):
            target = folder / key.removeprefix(prefix).lstrip("/") if key != prefix else folder / Path(key).name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.client.download_file(BUCKET, key, str(target))
        return folder


@dataclass
class Cluster:
    """A cluster with room for `pods` at once; `settings` are variables of each of them, beside those that Flyte sets.

    Pods have their folders under `folder`; their output is in `logs`. `kills` has moments by task: its first attempts,
    of any node, are killed, each at one of them.
    """

    packaged: Packaged
    storage: Storage
    folder: Path
    logs: Path
    settings: Mapping[str, str]
    pods: int = 2
    kills: dict[str, list[Moment]] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = threading.Semaphore(self.pods)

    def start(self, plan: str, execution: str, **inputs: Literal) -> LiteralMap:
        """Execute a launch plan; returns the outputs of its workflow."""
        spec = self.packaged.plans[plan]
        given = {name: parameter.default for name, parameter in spec.default_inputs.parameters.items()}
        given |= {**spec.fixed_inputs.literals, **inputs}
        workflow = self.packaged.workflows[spec.workflow_id.name]
        return self.execution(execution, plan).walk(workflow.template, literals(given), "", self.packaged.tasks)

    def execution(self, name: str, plan: str = "") -> "Execution":
        """One of that name, in which single tasks can be run."""
        return Execution(self, name, plan)


@dataclass
class Execution:
    """One execution of a workflow; the ids of nodes, joined by dashes, say where in the graph it is."""

    cluster: Cluster
    name: str
    plan: str

    def walk(self, graph: Any, given: LiteralMap, at: str, tasks: Mapping[str, TaskTemplate]) -> LiteralMap:
        """Run the nodes of a WorkflowTemplate or a DynamicJobSpec, each as soon as those before it have ended."""
        nodes = {node.id: node for node in graph.nodes if node.id not in (INPUT, "end-node")}
        order = graphlib.TopologicalSorter({n.id: {*n.upstream_node_ids} - {INPUT, ""} for n in nodes.values()})
        order.prepare()
        results = {INPUT: given, "": given}
        running: dict[Future[LiteralMap], str] = {}
        with ThreadPoolExecutor(max(1, len(nodes))) as threads:
            while order.is_active():
                for name in order.get_ready():
                    inputs = bound(nodes[name].inputs, results)
                    running[threads.submit(self.node, nodes[name], inputs, f"{at}{name}", tasks)] = name
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(ended)
                    results[name] = ended.result()
                    order.done(name)
        return bound(graph.outputs, results)

    def node(self, node: Node, inputs: LiteralMap, at: str, tasks: Mapping[str, TaskTemplate]) -> LiteralMap:
        """The outputs of one node."""
        kind = node.WhichOneof("target")
        if kind == "workflow_node":
            name = node.workflow_node.sub_workflow_ref.name or node.workflow_node.launchplan_ref.name
            return self.walk(self.cluster.packaged.workflows[name].template, inputs, f"{at}-", tasks)
        if kind == "array_node":
            return self.array(node, inputs, at, tasks)
        assert kind == "task_node", f"{at} is a {kind}, which nothing here can run"
        result = self.run(tasks[node.task_node.reference_id.name], inputs, at)
        if isinstance(result, LiteralMap):
            return result
        known = {**tasks, **{template.id.name: template for template in result.tasks}}
        return self.walk(result, inputs, f"{at}-0-", known)

    def array(self, node: Node, inputs: LiteralMap, at: str, tasks: Mapping[str, TaskTemplate]) -> LiteralMap:
        """The outputs of a map task, lists of those of its items; None for an item that failed and may."""
        array, template = node.array_node, tasks[node.array_node.node.task_node.reference_id.name]
        mapped = [v for k, v in inputs.literals.items() if v.HasField("collection") and k not in array.bound_inputs]
        lists = [len(each.collection.literals) for each in mapped]
        assert len(set(lists)) == 1, f"Flyte refuses lists of different lengths: {lists}"
        share = array.min_success_ratio if array.WhichOneof("success_criteria") == "min_success_ratio" else 1.0
        needed = array.min_successes or math.ceil(lists[0] * share)
        items: list[LiteralMap | None] = []
        with ThreadPoolExecutor(max(1, lists[0])) as threads:
            started = [threads.submit(self.run, template, inputs, f"{at}-{i}", i) for i in range(lists[0])]
            for item in started:
                error = item.exception()
                items.append(None if error else item.result())
                if error and sum(i is None for i in items) > lists[0] - needed:
                    raise error
        names = template.interface.outputs.variables
        collected = {n: [NOTHING if item is None else item.literals[n] for item in items] for n in names}
        return literals({n: Literal(collection=LiteralCollection(literals=found)) for n, found in collected.items()})

    def run(
        self, template: TaskTemplate, inputs: LiteralMap, at: str, index: int | None = None
    ) -> LiteralMap | DynamicJobSpec:
        """Run a task in pods until one succeeds: as often as its retries allow where the pod is lost.

        A stage that failed with an error of its own is not run again.
        """
        storage, task = self.cluster.storage, template.id.name
        key = f"metadata/{self.name}/{at}"
        storage.put(f"{key}/inputs.pb", inputs.SerializeToString(deterministic=True))
        attempts: list[Attempt] = []
        for number in range(template.metadata.retries.retries + 1):
            with self.cluster.room:
                attempts.append(self.attempt(template, key, at, number, index))
            last = attempts[-1]
            self.cluster.logs.mkdir(exist_ok=True)
            (self.cluster.logs / f"{self.name}-{at}-{number}.txt").write_text(last.shown)
            raw = storage.sizes(f"raw/{self.name}/{at}/{number}/")
            stage, ended = task.rpartition(".")[2], "" if last.status == 0 else f", ended with {last.status}"
            print(
                f"{self.name:<10} {at:<12} {stage:<20} {last.seconds:6.1f} s ({last.cpu:.1f} s of a core)"
                f" {last.peak / 2**30:6.2f} GiB, {sum(raw.values()) / 2**10:9,.0f} KiB to storage{ended}",
                flush=True,
            )
            where = f"{key}/{number}"
            if (error := storage.get(f"{where}/error.pb")) is not None:
                said = ErrorDocument.FromString(error).error
                if said.kind == ContainerError.NON_RECOVERABLE:
                    raise RuntimeError(f"{at}, {task}: {said.message}")
                continue
            for name, kind in (("outputs.pb", LiteralMap), ("futures.pb", DynamicJobSpec)):
                if (content := storage.get(f"{where}/{name}")) is not None:
                    found = kind.FromString(content)
                    outputs = found if kind is LiteralMap else LiteralMap()
                    self.cluster.done.append(Done(at, task, inputs, outputs, attempts))
                    return found
        raise RuntimeError(f"{at}, {task}: {len(attempts)} pods were lost\n{attempts[-1].shown[-3000:]}")

    def attempt(self, template: TaskTemplate, key: str, at: str, number: int, index: int | None) -> Attempt:
        """One pod."""
        raw = f"s3://{BUCKET}/raw/{self.name}/{at}/{number}"
        paths = {
            "{{.input}}": f"s3://{BUCKET}/{key}/inputs.pb",
            "{{.outputPrefix}}": f"s3://{BUCKET}/{key}/{number}",
            "{{.rawOutputDataPrefix}}": raw,
            "{{.checkpointOutputPrefix}}": f"{raw}/_flytecheckpoints",
            "{{.prevCheckpointPrefix}}": "",
        }
        variables = {
            "FLYTE_INTERNAL_EXECUTION_ID": self.name,
            "FLYTE_INTERNAL_EXECUTION_PROJECT": "grpo",
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": "development",
            "FLYTE_INTERNAL_EXECUTION_WORKFLOW": f"grpo:development:{self.plan}",
            "FLYTE_ATTEMPT_NUMBER": str(number),
            **{f"FLYTE_INTERNAL_TASK_{k}": v for k, v in identity(template).items()},
            **{f"FLYTE_INTERNAL_{k}": v for k, v in identity(template).items()},
        }
        if index is not None:
            variables |= {"BATCH_JOB_ARRAY_INDEX_VAR_NAME": INDEX, INDEX: str(index)}
        own = {**self.cluster.settings, **self.cluster.storage.settings, **variables}
        moments = self.cluster.kills.get(template.id.name)
        kill = moments.pop(0) if moments else None
        return run_pod(template, paths, own, self.cluster.folder / f"{self.name}-{at}-{number}", kill)


def identity(template: TaskTemplate) -> dict[str, str]:
    """Where a task was registered."""
    return {"PROJECT": "grpo", "DOMAIN": "development", "NAME": template.id.name, "VERSION": "1"}
