"""The graph that a cluster gets: the `@dynamic` loop compiled into nodes, as its task does it there.

Nothing is executed. A node's name here is its stage and how often the stage came before: train 1 makes policy 2.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgpack
import pytest
from flytekit.models.core.workflow import Node
from flytekit.models.dynamic_job import DynamicJobSpec
from flytekit.models.literals import BindingData
from flytekit.models.task import Resources, TaskTemplate
from flytekit.types.directory import FlyteDirectory

import graphs
from graphs import loop_inputs, parts, task_name
from tasks.config import GrpoConfig
from workflows.grpo import SEGMENT, Progress

ITERATIONS = 4
OTHER = '{"algorithm": {"kl_coefficient": 0}, "buffer": {"max_age": 1}, "evaluation": {"every": 3}}'
WORKERS = '{"rollout": {"workers": 4, "workers_needed": 0.75}}'
GPU = Resources.ResourceName.GPU

Key = tuple[str, int]


def compiled(lag: int, config: str, begin: int = 0, end: int = ITERATIONS, iterations: int = 0) -> DynamicJobSpec:
    """What the task of `iterate` hands back on a cluster, for a run of `iterations`, `end` where they are not given."""
    settings = GrpoConfig.from_dict(json.loads(config))
    return graphs.compiled(loop_inputs(settings, begin=begin, end=end, iterations=iterations, lag=lag))


def promises(binding: BindingData) -> list[tuple[str, str]]:
    """The outputs, (node id, name), that an input is bound to."""
    return [(part.promise.node_id, part.promise.var) for part in parts(binding) if part.promise]


@dataclass(frozen=True)
class Graph:
    """The nodes of a spec, each with the outputs that its inputs are bound to."""

    inputs: dict[Key, dict[str, list[tuple[Key, str]]]]

    def before(self, node: Key) -> set[Key]:
        """Every node that must end before this one begins."""
        found, todo = set(), [node]
        while todo:
            direct = {source for sources in self.inputs[todo.pop()].values() for source, _ in sources}
            todo += direct - found
            found |= direct
        return found


@cache  # it takes a second
def graph(lag: int, config: str = "{}") -> Graph:
    spec = compiled(lag, config)
    counts: Counter[str] = Counter()
    names: dict[str, Key] = {}
    inputs = {}
    for node in spec.nodes:
        stage = task_name(node).rsplit(".", 1)[-1]
        names[node.id] = (stage, counts[stage])
        counts[stage] += 1
        bound = {b.var: [(names[of], var) for of, var in promises(b.binding)] for b in node.inputs}
        inputs[names[node.id]] = bound
        # A node waits for what it reads, and for nothing else.
        assert {names[of] for of in node.upstream_node_ids} == {of for found in bound.values() for of, _ in found}
    return Graph(inputs)


def trained_before(found: Graph, v: int) -> set[int]:
    """The training stages that must end before rollout v begins."""
    return {number for stage, number in found.before(("rollout", v)) if stage == "train"}


def test_with_lag_zero_a_rollout_waits_for_the_training_before() -> None:
    found = graph(lag=0)
    for v in range(ITERATIONS):
        assert trained_before(found, v) == set(range(v))


def test_with_lag_one_a_rollout_runs_beside_the_training_before() -> None:
    found = graph(lag=1)
    for v in range(1, ITERATIONS):
        assert trained_before(found, v) == set(range(v - 1))
        # Neither does that training wait for the rollout: on a cluster both run at once.
        assert ("rollout", v) not in found.before(("train", v - 1))


@pytest.mark.parametrize("lag", [2, 3])
def test_with_lag_n_that_many_rollouts_run_side_by_side(lag: int) -> None:
    found = graph(lag=lag, config='{"retention": {"last": 5}}')
    for v in range(ITERATIONS):
        assert trained_before(found, v) == set(range(v - lag))
        assert found.inputs["train", v]["sampler"] == found.inputs["rollout", v]["policy"]
        assert found.inputs["rollout", v]["policy"] == ([(("train", v - lag - 1), "policy")] if v > lag else [])
        beside = range(v + 1, min(v + lag + 1, ITERATIONS))  # once train v - 1 has made policy v
        for one in beside:
            assert trained_before(found, one) <= set(range(v))
            assert not {("rollout", other) for other in beside} & found.before(("rollout", one))


WARM = '{"cluster": {"iterations_per_pod": 3}, "evaluation": {"every": 2}, "retention": {"every": 10}}'


def test_a_warm_pod_does_several_iterations_and_evaluations_run_beside_the_next() -> None:
    spec = compiled(0, WARM, 0, 8)
    stages = Counter(stage for stage, _ in nodes_of(spec))
    # 3, 3 and 2 iterations; policies 0, 2, 4, 6 and 8; what the second and the third pod leave unused.
    assert stages == {"warm_iterations": 3, "evaluate": 5, "apply_retention": 2}
    pods, parts_of = [], {}
    for node in spec.nodes:
        stage = task_name(node).rsplit(".", 1)[1]
        bound = {b.var: b.binding for b in node.inputs}
        if stage == "warm_iterations":
            pods.append(node.id)
            begin, end = (bound[name].scalar.primitive.integer for name in ("begin", "end"))
            parts_of[stage, len(pods)] = (begin, end, set(node.upstream_node_ids))
            if len(pods) > 1:
                assert part(bound["policy"]) == (pods[-2], "policies", 2)
                assert part(bound["state"]) == (pods[-2], "states", 2)
                reach = [part(of) for of in bound["batches"].collection.bindings][-3:]
                assert reach == [(pods[-2], "batches", number) for number in range(3)]
        elif stage == "evaluate" and bound["version"].scalar.primitive.integer == 0:
            continue
        elif stage == "evaluate":
            parts_of[stage, bound["version"].scalar.primitive.integer] = part(bound["policy"])
        else:
            parts_of[stage, len(pods)] = [part(of) for of in bound["folders"].collection.bindings]
    first, second, third = pods
    assert [parts_of["warm_iterations", n] for n in (1, 2, 3)] == [
        (0, 3, set()),
        (3, 6, {first}),
        (6, 8, {first, second}),
    ]
    assert {v: parts_of["evaluate", v] for v in (2, 4, 6, 8)} == {
        2: (first, "policies", 1),
        4: (second, "policies", 0),
        6: (second, "policies", 2),
        8: (third, "policies", 1),
    }
    # Of versions 1 to 3, once version 6 is there, and of 4 and 5 after 8: all states, and the policies not evaluated.
    assert parts_of["apply_retention", 2] == [
        *((first, "states", 0), (first, "policies", 0)),
        (first, "states", 1),
        *((first, "states", 2), (first, "policies", 2)),
    ]
    assert parts_of["apply_retention", 3] == [(second, "states", 0), (second, "states", 1), (second, "policies", 1)]


def part(binding: BindingData) -> tuple[str, str, int]:
    """The node, its output and the number in that list, which a binding names."""
    promise = binding.to_flyte_idl().promise or binding.to_flyte_idl().union.promise
    (step,) = promise.attr_path
    return promise.node_id, promise.var, step.int_value


@pytest.mark.parametrize(
    ("config", "lag", "pods"),
    [("{}", 0, 8), ("{}", 1, 0), (WORKERS, 0, 0), ('{"training": {"ranks": 2}}', 0, 0), (WARM, 0, 3)],
)
def test_one_pod_does_eight_iterations_where_it_can(config: str, lag: int, pods: int) -> None:
    settings = GrpoConfig.from_dict(json.loads(config))
    assert settings.cluster.per_pod(settings, lag) == pods


def test_what_wants_pods_apart_is_refused_with_a_warm_pod() -> None:
    settings = GrpoConfig.from_dict({**json.loads(WARM), **json.loads(WORKERS)})
    with pytest.raises(ValueError) as caught:
        settings.cluster.per_pod(settings, 1)
    assert str(caught.value) == (
        "cluster.iterations_per_pod is 3; allowed: 0 or null with lag 1 and rollout.workers 4, which want pods apart."
    )


@pytest.mark.parametrize("lag", [0, 1])
def test_a_training_continues_the_last_one_and_is_given_the_sampler(lag: int) -> None:
    found = graph(lag=lag)
    for v in range(ITERATIONS):
        inputs = found.inputs["train", v]
        assert inputs["policy"] == ([(("train", v - 1), "policy")] if v else [])  # the first is an input of the graph
        assert inputs["state"] == ([(("train", v - 1), "state")] if v else [])
        assert inputs["sampler"] == found.inputs["rollout", v]["policy"]
        assert inputs["training_batch"] == [(("select_training_batch", v), "o0")]
        assert found.inputs["select_training_batch", v]["before"] == (
            [(("select_training_batch", v - 1), "o0")] if v else []
        )


def test_a_training_batch_reaches_max_age_versions_back() -> None:
    found = graph(lag=0, config=OTHER)
    for v in range(ITERATIONS):
        reach = [(("compute_advantages", b), "o0") for b in range(max(0, v - 1), v + 1)]
        assert found.inputs["select_training_batch", v]["batches"] == found.inputs["train", v]["batches"] == reach


def test_without_a_kl_nothing_is_scored() -> None:
    assert Counter(stage for stage, _ in graph(lag=0).inputs)["score_reference"] == ITERATIONS
    found = graph(lag=0, config=OTHER)
    assert Counter(stage for stage, _ in found.inputs)["score_reference"] == 0
    for v in range(ITERATIONS):
        assert found.inputs["compute_advantages", v]["batch"] == [(("rollout", v), "o0")]


def test_nothing_waits_for_evaluations() -> None:
    found = graph(lag=0, config=OTHER)
    made = [found.inputs["evaluate", i]["policy"] for i in range(3)]
    assert made == [[], [(("train", 2), "policy")], [(("train", 3), "policy")]]  # the first, the third, the last
    assert ("evaluate", 3) not in found.inputs
    assert not {number for node in found.inputs for stage, number in found.before(node) if stage == "evaluate"}


@pytest.mark.parametrize("config", ["{}", WORKERS])
def test_compiled_again_it_is_the_same_graph(config: str) -> None:
    # Flyte's recovery finds the finished stages of a failed execution by their nodes' ids.
    first, again = (compiled(lag=1, config=config).to_flyte_idl() for _ in range(2))
    for spec in (first, again):
        for node in spec.nodes:
            node.upstream_node_ids.sort()  # flytekit's come out of a set
    stages = 5 if config == "{}" else 6
    assert len(first.nodes) == len({node.id for node in first.nodes}) == stages * ITERATIONS + 2 + 1
    # five stages an iteration, or six, two evaluations, and the first trainer state left behind
    assert first == again


def test_several_workers_are_a_map_and_a_join_and_other_stages_read_the_join() -> None:
    found = graph(lag=1, config=WORKERS)
    for v in range(ITERATIONS):
        shards, join = found.inputs["rollout_shard", v], found.inputs["join_rollout", v]
        assert join["shards"] == [(("rollout_shard", v), "o0")]
        assert shards["policy"] == join["policy"] == ([(("train", v - 2), "policy")] if v > 1 else [])
        assert found.inputs["score_reference", v]["batch"] == [(("join_rollout", v), "o0")]
        assert found.inputs["compute_advantages", v]["batch"] == [(("score_reference", v), "o0")]
    readers = {node for node, inputs in found.inputs.items() for of in inputs.values() if "rollout_shard" in str(of)}
    assert readers == {("join_rollout", v) for v in range(ITERATIONS)}
    assert not [stage for stage, _ in found.inputs if stage == "rollout"]


def test_a_map_over_shards_is_one_task_with_the_pod_and_the_retries_of_a_rollout() -> None:
    spec = compiled(lag=0, config=WORKERS)
    maps = [node for node in spec.nodes if node.array_node]
    assert len(maps) == ITERATIONS
    assert len({task.id.name for task in spec.tasks}) == len(spec.tasks) == 8  # one a stage, the map's among them
    (mapped,) = [task for task in spec.tasks if task.id.name.endswith("-arraynode")]
    (join,) = [task for task in spec.tasks if task.id.name.endswith("join_rollout")]
    assert mapped.metadata.to_flyte_idl() == join.metadata.to_flyte_idl()
    assert mapped.metadata.retries.retries == 3 and mapped.metadata.discoverable
    assert mapped.container.image == "registry.invalid/rollout:1"
    assert mapped.container.resources.to_flyte_idl() == join.container.resources.to_flyte_idl()
    assert mapped.extended_resources == join.extended_resources
    assert mapped.container.args[0] == "pyflyte-map-execute"
    assert mapped.container.args[-8:] == [
        *(
            "vars",
            "config,iteration,policy,run",
            "resolver",
            "flytekit.core.python_auto_container.default_task_resolver",
        ),
        *("task-module", "tasks.rollout.task", "task-name", "rollout_shard"),
    ]
    for node in maps:
        array = node.array_node.to_flyte_idl()
        bound = {b.var: b.binding for b in array.node.inputs}
        assert [b.scalar.primitive.integer for b in bound["shard"].collection.bindings] == [0, 1, 2, 3]
        assert set(array.bound_inputs) == bound.keys() - {"shard"} == {"config", "iteration", "policy", "run"}
        assert array.node.metadata.retries.retries == 3
        # As Flyte counts the shards that it needs: three of four.
        assert math.ceil(array.min_success_ratio * 4) == 3 and array.WhichOneof("success_criteria")


@pytest.mark.parametrize(
    ("workers", "share", "needed"), [(3, 2 / 3, 2), (3, 0.67, 3), (3, 0.34, 2), (7, 1.0, 7), (10, 0.7, 7)]
)
def test_as_many_shards_are_needed_as_the_share_says(workers: int, share: float, needed: int) -> None:
    config = json.dumps({"rollout": {"workers": workers, "workers_needed": share}})
    (ratio, *_) = [
        n.array_node.to_flyte_idl().min_success_ratio for n in compiled(0, config, 0, 1).nodes if n.array_node
    ]
    assert math.ceil(ratio * workers) == needed  # the ratio is of 32 bits


def test_ten_thousand_iterations_are_a_chain_of_chains_of_segments() -> None:
    # What Flyte keeps of a running execution: the nodes of one graph on each level, and one for each that has ended.
    whole = spans(compiled(0, "{}", 0, 10_000))
    assert whole == [(0, 2500), (2500, 5000), (5000, 7500), (7500, 10_000)]
    part = spans(compiled(0, "{}", 7500, 10_000, 10_000))
    assert part == [(begin, begin + SEGMENT) for begin in range(7500, 10_000, SEGMENT)] and len(part) == 50
    last = Counter(stage for stage, _ in nodes_of(compiled(1, "{}", 9950, 10_000)))
    stages = ("rollout", "score_reference", "compute_advantages", "select_training_batch", "train", "apply_retention")
    assert last == {**dict.fromkeys(stages, SEGMENT), "evaluate": 7, "gather_evaluations": 1}  # 9952, 9960, … 10,000
    assert len(whole) + len(part) + sum(last.values()) == 362


def test_graphs_stay_below_the_two_megabytes_that_flyte_reads_back() -> None:
    # With 10,000 iterations that are all evaluated, and URIs as long as those of a real bucket.
    config = GrpoConfig.from_dict({"evaluation": {"every": 1}})
    long = "s3://bucket-of-an-organisation/data/ab/" + "grpo-development-f3a9c2d4e5f6a7b8c9d0-n2-0-dn" * 2
    gathered = [FlyteDirectory.from_source(f"{long}/evaluations_until/{end:05d}") for end in range(50, 9951, 50)]
    inputs = loop_inputs(config, begin=9950, end=10_000, iterations=10_000, lag=1, evaluations=gathered)
    spec = graphs.compiled(inputs).to_flyte_idl()
    assert spec.ByteSize() < 1_000_000
    (all_of_them,) = [output.binding for output in spec.outputs if output.var == "evaluations"]
    assert len(all_of_them.collection.bindings) == 200
    ends = [of.promise.node_id for of in all_of_them.collection.bindings if of.promise.node_id]
    (last,) = [node for node in spec.nodes if node.id in ends]
    assert last.task_node.reference_id.name == "tasks.evaluation.task.gather_evaluations"
    (made,) = [bound.binding for bound in last.inputs if bound.var == "evaluations"]
    assert len(made.collection.bindings) == 50


def test_a_short_training_keeps_its_evaluations_apart() -> None:
    assert "gather_evaluations" not in {stage for stage, _ in nodes_of(compiled(0, "{}", 0, SEGMENT))}


def nodes_of(spec: DynamicJobSpec) -> list[tuple[str, dict[str, BindingData]]]:
    """Stage and inputs of each node."""
    return [
        (node.task_node.reference_id.name.rsplit(".", 1)[-1], {b.var: b.binding for b in node.inputs})
        for node in spec.nodes
    ]


def spans(spec: DynamicJobSpec) -> list[tuple[int, int]]:
    """The iterations of each segment; each takes all its inputs from the one before."""
    found = []
    for number, node in enumerate(spec.nodes):
        assert node.task_node.reference_id.name == "workflows.grpo.iterate"
        bound = {b.var: b.binding for b in node.inputs}
        begin, end = (bound[name].scalar.primitive.integer for name in ("begin", "end"))
        found.append((begin, end))
        for name in Progress._fields:
            before = [] if number == 0 else [(spec.nodes[number - 1].id, name)]
            assert promises(bound[name]) == before
    (out,) = {of for output in spec.outputs for of, _ in promises(output.binding)}
    assert out == spec.nodes[-1].id
    return found


@pytest.mark.parametrize("lag", [0, 1])
def test_a_segment_continues_where_the_one_before_ended(lag: int) -> None:
    nodes: dict[str, list[dict[str, BindingData]]] = {}
    for stage, inputs in nodes_of(compiled(lag, "{}", 5, 7, 9)):
        nodes.setdefault(stage, []).append(inputs)

    def uri(binding: BindingData) -> str:
        return binding.scalar.union.value.scalar.blob.uri if binding.scalar.union else binding.scalar.blob.uri

    assert uri(nodes["rollout"][0]["policy"]) == f"s3://bucket/policies/0000{5 - lag}"
    assert uri(nodes["train"][0]["policy"]) == "s3://bucket/policies/00005"
    assert uri(nodes["train"][0]["state"]) == "s3://bucket/states/00005"
    batches = [uri(b) for b in nodes["select_training_batch"][0]["batches"].collection.bindings if not b.promise]
    assert batches == [f"s3://bucket/batches/0000{v}" for v in range(5)][-GrpoConfig().buffer.max_age :]
    assert "evaluate" not in nodes  # neither the sixth nor the seventh
    # Training 5 makes version 6; versions 6, 5 and 4 stay, and the trainer state of version 3 goes.
    assert [[uri(b) for b in inputs["folders"].collection.bindings] for inputs in nodes["apply_retention"]] == [
        ["s3://bucket/states/00003"],
        ["s3://bucket/states/00004"],
    ]


def test_retention_removes_policies_but_those_that_it_or_an_evaluation_keeps() -> None:
    found = graph(lag=0, config='{"retention": {"every": 10}, "evaluation": {"every": 1}}')
    assert found.inputs["apply_retention", 0]["folders"] == [(("train", 0), "state")]
    found = graph(lag=0, config='{"retention": {"every": 10}}')
    assert found.inputs["apply_retention", 0]["folders"] == [(("train", 0), "state"), (("train", 0), "policy")]
    assert found.inputs["apply_retention", 0]["after"] == [(("train", 3), "policy")]


def train_nodes(training: dict[str, int]) -> tuple[list[Node], TaskTemplate]:
    """The nodes that train in a loop with these settings, and the task that they name."""
    spec = compiled(lag=0, config=json.dumps({"training": training}))
    nodes = [node for node in spec.nodes if node.task_node.reference_id.name == "tasks.training.task.train"]
    (template,) = [task for task in spec.tasks if task.id.name == "tasks.training.task.train"]
    assert len(nodes) == ITERATIONS
    return nodes, template


def asked(size: Resources) -> dict[int, str]:
    """What a pod asks for, which is also what it may take."""
    assert size.requests == size.limits
    return {entry.name: entry.value for entry in size.requests}


def test_four_ranks_have_a_plain_pod_with_four_gpus() -> None:
    nodes, template = train_nodes({"ranks": 4})
    assert (template.type, template.custom, template.container.args[0]) == ("python-task", None, "pyflyte-execute")
    own = asked(template.container.resources)
    assert own[GPU] == "1"
    assert [asked(node.task_node.overrides.resources) for node in nodes] == [{**own, GPU: "4"}] * ITERATIONS
    nodes, template = train_nodes({})
    assert not any(node.task_node.overrides.resources for node in nodes)


def test_ranks_on_several_nodes_are_a_pytorch_job() -> None:
    nodes, template = train_nodes({"ranks": 8, "nodes": 2, "tensor_parallel": 4})
    assert (template.type, template.task_type_version) == ("pytorch", 1)
    elastic = template.custom["elasticConfig"]
    assert (elastic["nprocPerNode"], elastic["minReplicas"], elastic["maxReplicas"]) == (4, 2, 2)
    assert template.custom["workerReplicas"]["replicas"] == 2
    assert {asked(node.task_node.overrides.resources)[GPU] for node in nodes} == {"4"}
    assert train_nodes({"ranks": 4})[1].type == "python-task"  # one run's nodes are not the next one's


def test_only_the_training_is_given_the_ranks_and_the_cache_ignores_them() -> None:
    shape = {"ranks": 4, "tensor_parallel": 2, "context_parallel": 2}
    nodes, template = train_nodes({**shape, "epochs": 3})
    assert template.metadata.cache_ignore_input_vars == ("training",)
    for node in nodes:
        config, training = settings(node, "config"), settings(node, "training")
        assert training == {**config["training"], **shape, "nodes": 1} and training["epochs"] == 3
    given = [settings(node, "config") for node in compiled(lag=0, config=json.dumps({"training": shape})).nodes]
    assert not [name for config in given for name in shape if name in config.get("training", {})]
    assert sum("training" in config for config in given) == 4 * ITERATIONS + 2


def settings(node: Node, name: str) -> dict[str, Any]:
    """The record that a node is given under this name; empty without one."""
    found = [bound.binding.scalar.binary.value for bound in node.inputs if bound.var == name]
    return msgpack.unpackb(found[0]) if found else {}
