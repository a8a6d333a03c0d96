"""The graph that a cluster gets: the `@dynamic` loop compiled into nodes, as its task does it there.

Nothing is executed. A node's name here is its stage and how often the stage came before: train 1 makes policy 2.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest
from flytekit import dynamic
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.models.dynamic_job import DynamicJobSpec
from flytekit.models.literals import BindingData
from flytekit.types.directory import FlyteDirectory

from tasks import resources
from tasks.config import GrpoConfig, Run
from workflows.grpo import iterate

ITERATIONS = 4
OTHER = '{"algorithm": {"kl_coefficient": 0}, "buffer": {"max_age": 1}, "evaluation": {"every": 3}}'
IMAGES = ImageConfig.from_images("registry.invalid/none:1", {n: f"registry.invalid/{n}:1" for n in resources.IMAGES})
SETTINGS = SerializationSettings(image_config=IMAGES, project="grpo", domain="development", version="1")
RUN = Run("monday", "6f9c", 0, "blackjack", "", "4be1", "sqlite:///runs/mlflow.db")

Node = tuple[str, int]


def compiled(lag: int, config: str) -> DynamicJobSpec:
    """What the task of `iterate` hands back on a cluster."""
    context = FlyteContextManager.current_context()
    remote = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    with FlyteContextManager.with_context(
        context.with_serialization_settings(SETTINGS).with_execution_state(remote),
    ):
        # A task of its own each time, as in a new process: flytekit keeps the first graph that a task made.
        return dynamic(iterate.task_function).execute(
            run=RUN,
            first=FlyteDirectory.from_source("s3://bucket/policies/00000"),
            iterations=ITERATIONS,
            lag=lag,
            config=GrpoConfig.from_json(config),
        )


def promises(binding: BindingData) -> list[tuple[str, str]]:
    """The outputs, (node id, name), that an input is bound to."""
    if binding.promise:
        return [(binding.promise.node_id, binding.promise.var)]
    return [found for part in (binding.collection.bindings if binding.collection else []) for found in promises(part)]


@dataclass(frozen=True)
class Graph:
    """The nodes of a spec, each with the outputs that its inputs are bound to."""

    inputs: dict[Node, dict[str, list[tuple[Node, str]]]]

    def before(self, node: Node) -> set[Node]:
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
    names: dict[str, Node] = {}
    inputs = {}
    for node in spec.nodes:
        stage = node.task_node.reference_id.name.rsplit(".", 1)[-1]
        names[node.id] = (stage, counts[stage])
        counts[stage] += 1
        bound = {b.var: [(names[of], var) for of, var in promises(b.binding)] for b in node.inputs}
        inputs[names[node.id]] = bound
        # What holds a node up is what it reads, and nothing else.
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


@pytest.mark.parametrize("lag", [0, 1])
def test_a_training_goes_on_from_the_last_and_is_told_who_sampled(lag: int) -> None:
    found = graph(lag=lag)
    for v in range(ITERATIONS):
        inputs = found.inputs["train", v]
        assert inputs["policy"] == ([(("train", v - 1), "policy")] if v else [])  # the first is an input of the graph
        assert inputs["state"] == ([(("train", v - 1), "state")] if v else [])
        assert inputs["sampler"] == found.inputs["rollout", v]["policy"]
        assert inputs["window"] == [(("select_window", v), "o0")]
        assert found.inputs["select_window", v]["before"] == ([(("select_window", v - 1), "o0")] if v else [])


def test_a_window_reaches_max_age_versions_back() -> None:
    found = graph(lag=0, config=OTHER)
    for v in range(ITERATIONS):
        reach = [(("compute_advantages", b), "o0") for b in range(max(0, v - 1), v + 1)]
        assert found.inputs["select_window", v]["batches"] == found.inputs["train", v]["batches"] == reach


def test_without_a_kl_nothing_is_scored() -> None:
    assert Counter(stage for stage, _ in graph(lag=0).inputs)["score_reference"] == ITERATIONS
    found = graph(lag=0, config=OTHER)
    assert Counter(stage for stage, _ in found.inputs)["score_reference"] == 0
    for v in range(ITERATIONS):
        assert found.inputs["compute_advantages", v]["batch"] == [(("rollout", v), "o0")]


def test_evaluations_hold_up_nothing_but_the_report() -> None:
    found = graph(lag=0, config=OTHER)
    made = [found.inputs["evaluate", i]["policy"] for i in range(3)]
    assert made == [[], [(("train", 2), "policy")], [(("train", 3), "policy")]]  # the first, the third, the last
    assert ("evaluate", 3) not in found.inputs
    held_up = {
        stage for stage, number in found.inputs for before in found.before((stage, number)) if before[0] == "evaluate"
    }
    assert held_up == {"report"}
    assert found.inputs["report", 0]["evaluations"] == [(("evaluate", i), "o0") for i in range(3)]


def test_compiled_again_it_is_the_same_graph() -> None:
    # Flyte's recovery finds the finished stages of a failed execution by their nodes' ids.
    first, again = (compiled(lag=1, config="{}").to_flyte_idl() for _ in range(2))
    for spec in (first, again):
        for node in spec.nodes:
            node.upstream_node_ids.sort()  # flytekit's come out of a set
    assert len(first.nodes) == len({node.id for node in first.nodes}) == 5 * ITERATIONS + 3
    assert first == again
