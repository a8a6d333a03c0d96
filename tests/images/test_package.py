"""What a Flyte cluster registers, packaged offline: each stage's image, pod, retries, timeout; and how to change them.

Only the task that compiles the loop is executed: by the command of its own container, in a process with the
container's environment and nothing of this one's.
"""

import base64
import gzip
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from croniter import croniter
from flyteidl.core.tasks_pb2 import Resources, TaskTemplate
from flyteidl.core.types_pb2 import SimpleType
from flytekit.constants import CopyFileDetection
from flytekit.tools.fast_registration import FastPackageOptions, fast_package

from packages import NAMES, Packaged, Templates, compiled, package, with_pods
from tasks.resources import ROLES, read_roles
from tasks.settings import merged
from tasks.stages import CACHE_VERSION

ROOT = Path(__file__).parents[2]
KNOWN = yaml.safe_load((ROOT / "tasks" / "pods.yaml").read_text())
CHANGES = {"training": {"gpu": 2, "accelerator": "nvidia-h100", "mem": "300Gi"}, "rollout": {"retries": 9}}
# image, CPU, memory, disk, GPUs, their kind, shared memory, retries, timeout in s, interruptible
CPU = ("cpu", "2", "8Gi", "20Gi", "", "", "", 3, 21600, False)
ROLLOUT = ("rollout", "8", "64Gi", "60Gi", "1", "", "16Gi", 3, 43200, True)
TRAINING = ("training", "8", "96Gi", "200Gi", "1", "", "16Gi", 3, 86400, False)
CACHED = {
    "tasks.advantage.task.compute_advantages": CPU,
    "tasks.buffer.task.select_training_batch": CPU,
    "tasks.evaluation.task.compare_in_run": ROLLOUT,
    "tasks.evaluation.task.evaluate": ROLLOUT,
    "tasks.evaluation.task.gather_evaluations": CPU,
    "tasks.policy.task.initial_policy": ("training", "4", "32Gi", "60Gi", "", "", "", 3, 21600, False),
    "tasks.reference.task.score_reference": TRAINING,
    "tasks.rollout.task.join_rollout": ROLLOUT,
    "tasks.rollout.task.rollout": ROLLOUT,
    "tasks.rollout.task.rollout_shard": ROLLOUT,
    "tasks.training.task.train": TRAINING,
    "tasks.warm.task.warm_iterations": ("rollout", "8", "96Gi", "200Gi", "1", "", "16Gi", 3, 86400, True),
}
PREPARATION = ["tasks.run.task.create_run", "tasks.policy.task.initial_policy", "workflows.grpo.iterate"]
NEVER_CACHED = {
    "tasks.evaluation.task.compare_once": ROLLOUT,
    "tasks.evaluation.task.evaluate_once": ROLLOUT,
    "tasks.evaluation.task.report": CPU,
    "tasks.lineage.task.show_lineage": CPU,
    "tasks.promotion.task.begin_retraining": CPU,
    "tasks.promotion.task.decide_promotion": CPU,
    "tasks.promotion.task.demote_champion": CPU,
    "tasks.promotion.task.promote_version": CPU,
    "tasks.promotion.task.retraining_failed": CPU,
    "tasks.run.task.training_failed": CPU,
    "tasks.run.task.create_run": CPU,
    "tasks.run.task.apply_retention": CPU,
    "workflows.grpo.iterate": ("cpu", "1", "2Gi", "5Gi", "", "", "", 3, 0, False),
}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    return package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_pods(tmp_path_factory.mktemp("source"), CHANGES)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Templates:
    return package(tmp_path_factory.mktemp("changed"), source).tasks


def asked(template: TaskTemplate) -> tuple[object, ...]:
    """The pod of a task, in the order of CPU above; what it asks for and what it may take are the same."""
    size = template.container.resources
    requests, limits = (
        {Resources.ResourceName.Name(e.name): e.value for e in of} for of in (size.requests, size.limits)
    )
    assert requests == limits
    extended, metadata = template.extended_resources, template.metadata
    assert metadata.WhichOneof("interruptible_value") == "interruptible"
    assert not template.HasField("k8s_pod") and not metadata.pod_template_name
    return (
        {image: name for name, image in NAMES.items()}[template.container.image],
        *(requests.get(name, "") for name in ("CPU", "MEMORY", "EPHEMERAL_STORAGE", "GPU")),
        extended.gpu_accelerator.device,
        extended.shared_memory.size_limit,
        metadata.retries.retries,
        metadata.timeout.seconds,
        metadata.interruptible,
    )


def test_each_task_states_its_image_and_its_pod(packaged: Packaged) -> None:
    assert {name: asked(template) for name, template in packaged.tasks.items()} == {**CACHED, **NEVER_CACHED}


def test_stages_are_cached_and_tasks_of_the_whole_run_are_not(packaged: Packaged) -> None:
    for name, template in packaged.tasks.items():
        cached = (True, CACHE_VERSION) if name in CACHED else (False, "")
        assert (template.metadata.discoverable, template.metadata.discovery_version) == cached, name


def test_tasks_run_by_name_and_know_no_path_of_this_machine(packaged: Packaged) -> None:
    for name, template in packaged.tasks.items():
        module, function = name.rsplit(".", 1)
        assert template.container.args[0] == "pyflyte-execute"
        assert template.container.args[-4:] == ["task-module", module, "task-name", function]
    for name, content in packaged.files.items():
        assert not [word for word in (b"/home", b"/tmp", str(ROOT).encode()) if word in content], name
    # What flytekit gives to the pod that compiles the loop, packed. It has the folder of the sources, but is not read.
    (packed,) = [pair.value for pair in packaged.tasks["workflows.grpo.iterate"].container.env if pair.key == "_F_SS_C"]
    context = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert context.pop("source_root") == str(ROOT)
    assert not [word for word in ("/home", "/tmp", str(ROOT)) if word in json.dumps(context)]


def test_the_workflows_and_launch_plans_can_be_read(packaged: Packaged) -> None:
    used = {
        name: [node.task_node.reference_id.name for node in spec.template.nodes]
        for name, spec in packaged.workflows.items()
    }
    assert used == {
        "workflows.grpo.grpo": [*PREPARATION, "tasks.evaluation.task.report"],
        "workflows.evaluation.evaluate": ["tasks.evaluation.task.evaluate_once"],
        "workflows.lineage.lineage": ["tasks.lineage.task.show_lineage"],
        "workflows.evaluation.compare": ["tasks.evaluation.task.compare_once"],
        "workflows.promotion.promote": ["tasks.promotion.task.promote_version"],
        "workflows.promotion.demote": ["tasks.promotion.task.demote_champion"],
        "workflows.retraining.retrain": [
            "tasks.promotion.task.begin_retraining",
            *PREPARATION,
            "tasks.evaluation.task.report",
            "tasks.evaluation.task.compare_in_run",
            "tasks.promotion.task.decide_promotion",
        ],
    }
    on_failure = {n: s.template.failure_node.task_node.reference_id.name for n, s in packaged.workflows.items()}
    assert {name: handler for name, handler in on_failure.items() if handler} == {
        "workflows.grpo.grpo": "tasks.run.task.training_failed",
        "workflows.retraining.retrain": "tasks.promotion.task.retraining_failed",
    }
    plans = packaged.plans
    delays = [
        plans[f"workflows.retraining.{name}"].default_inputs.parameters["max_delay_hours"].default.scalar.primitive
        for name in ("nightly", "on_demand")
    ]
    assert [one.float_value for one in delays] == [12, 0]
    assert plans.keys() == {*used, "workflows.retraining.nightly", "workflows.retraining.on_demand"}
    needed = {  # what a user need not say has a value
        name: {key for key, given in spec.default_inputs.parameters.items() if given.required}
        for name, spec in plans.items()
    }
    assert {name: keys for name, keys in needed.items() if keys} == {
        "workflows.evaluation.evaluate": {"policy"},
        "workflows.evaluation.compare": {"policy", "other"},
        "workflows.lineage.lineage": {"policy"},
        "workflows.promotion.promote": {"model", "version"},
        "workflows.promotion.demote": {"model"},
    }


def test_the_scheduled_plan_can_run_as_it_is(packaged: Packaged) -> None:
    plans = packaged.plans
    scheduled = {name for name, spec in plans.items() if spec.entity_metadata.schedule.WhichOneof("ScheduleExpression")}
    assert scheduled == {"workflows.retraining.nightly"}
    nightly, on_demand = (plans[f"workflows.retraining.{name}"] for name in ("nightly", "on_demand"))
    assert nightly.workflow_id.name == on_demand.workflow_id.name == "workflows.retraining.retrain"

    # Flyte's scheduler reads five fields, in UTC. The night after this moment is one day after the last, at two.
    schedule = nightly.entity_metadata.schedule
    fields = schedule.cron_schedule.schedule
    assert len(fields.split()) == 5 and croniter.is_valid(fields) and not schedule.cron_schedule.offset
    nights = croniter(fields, datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert [nights.get_next(datetime) for _ in range(2)] == [datetime(2026, 12, d, 2, tzinfo=UTC) for d in (1, 2)]

    # Flyte's admin refuses a schedule with an input that nothing fills, and a start time that is fixed or no datetime.
    workflow = packaged.workflows["workflows.retraining.retrain"]
    inputs, given = workflow.template.interface.inputs.variables, nightly.default_inputs.parameters
    assert given.keys() | nightly.fixed_inputs.literals.keys() == inputs.keys()
    assert all(one.WhichOneof("behavior") == "default" for one in given.values())
    start = schedule.kickoff_time_input_arg
    assert start == "start_time" and start in given
    assert given[start].var.type.simple == SimpleType.DATETIME


def test_single_fields_are_changed_by_the_file(changed: Templates) -> None:
    training = ("training", "8", "300Gi", "200Gi", "2", "nvidia-h100", "16Gi", 3, 86400, False)
    rollout = (*ROLLOUT[:7], 9, *ROLLOUT[8:])
    others = {TRAINING: training, ROLLOUT: rollout}
    wanted = {name: others.get(pod, pod) for name, pod in {**CACHED, **NEVER_CACHED}.items()}
    assert {name: asked(template) for name, template in changed.items()} == wanted


def test_copy_all_sends_every_module_and_nothing_else_of_the_project(tmp_path: Path) -> None:
    options = FastPackageOptions([], copy_style=CopyFileDetection.ALL)
    with tarfile.open(fast_package(ROOT, tmp_path, options=options)) as archive:
        sent = {name for name in archive.getnames() if name.endswith(".py") or name == "tasks/pods.yaml"}
    assert sent == {
        "tasks/pods.yaml",
        *(str(path.relative_to(ROOT)) for top in ("tasks", "workflows") for path in (ROOT / top).rglob("*.py")),
    }


def test_other_pods_are_another_version(tmp_path: Path) -> None:
    def sent(name: str, changes: dict[str, Any]) -> str:
        """The name of the archive, which has the digest of what is in it; `run --remote` makes the version of it."""
        source, out = with_pods(tmp_path / name, changes), tmp_path / f"{name}.out"
        out.mkdir()
        return Path(fast_package(source, out, options=FastPackageOptions([], copy_style=CopyFileDetection.ALL))).name

    assert sent("as-it-is", {}) == sent("again", {}) != sent("changed", CHANGES)


@pytest.mark.parametrize(("which", "workers", "stages"), [("packaged", 1, 5), ("changed", 2, 6)])
def test_the_loop_compiled_in_its_pod_asks_for_the_same_pods(
    which: str,
    workers: int,
    stages: int,
    packaged: Packaged,
    changed: Templates,
    source: Path,
    tmp_path: Path,
) -> None:
    registered, code = {"packaged": (packaged.tasks, ROOT), "changed": (changed, source)}[which]
    graph = compiled(registered["workflows.grpo.iterate"], tmp_path, workers, code)
    assert len(graph.nodes) == 2 * stages + 2
    found = {template.id.name: template for template in graph.tasks}
    assert found.keys() == {
        (node.array_node.node if node.HasField("array_node") else node).task_node.reference_id.name
        for node in graph.nodes
    }
    # A map is not registered; its shards are.
    mapped = {name: "tasks.rollout.task.rollout_shard" for name in found if name.endswith("-arraynode")}
    assert len(mapped) == workers - 1
    assert {name: asked(template) for name, template in found.items()} == {
        name: asked(registered[mapped.get(name, name)]) for name in found
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("{", "tasks/pods.yaml is no YAML "),
        ("3", "tasks/pods.yaml is 3; allowed: a YAML mapping of roles: cpu, graph, policy, rollout, training, warm."),
        ("cpu: {image: cpu, cpu: 1, mem: 1Gi, disk: 1Gi}", "pods.graph is missing."),
        (
            {"trainer": {}},
            'tasks/pods.yaml has an unknown key "trainer" (did you mean "training"?); allowed: cpu, graph, policy, ',
        ),
        (
            {"training": {"gpus": 2}},
            'tasks/pods.yaml has an unknown key "training.gpus" (did you mean "gpu"?); allowed: ',
        ),
        ({"training": 2}, "pods.training is 2; allowed: a JSON object."),
        ({"training": {"gpu": "2"}}, 'pods.training.gpu is "2"; allowed: a whole number.'),
        ({"training": {"gpu": -1}}, "pods.training.gpu is -1; allowed: 0 or more."),
        ({"training": {"mem": "64 GB"}}, 'pods.training.mem is "64 GB"; allowed: a Kubernetes quantity'),
        ({"cpu": {"mem": ""}}, 'pods.cpu.mem is ""; allowed: a Kubernetes quantity'),
        ({"cpu": {"image": "tiny"}}, 'pods.cpu.image is "tiny"; allowed: cpu, rollout or training.'),
        ({"cpu": {"retries": -1}}, "pods.cpu.retries is -1; allowed: 0 or more."),
        ({"cpu": {"timeout_minutes": -1}}, "pods.cpu.timeout_minutes is -1; allowed: 0 or more."),
    ],
)
def test_a_change_that_means_nothing_is_refused_in_one_sentence(given: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_roles(given if isinstance(given, str) else yaml.safe_dump(merged(KNOWN, given)))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_shared_memory_may_be_none_and_a_gpu_of_any_kind() -> None:
    roles = read_roles(yaml.safe_dump(merged(KNOWN, {"rollout": {"shared_memory": "", "cpu": "500m"}})))
    assert (roles["rollout"].shared_memory, roles["rollout"].accelerator, roles["rollout"].cpu) == ("", "", "500m")
    assert roles["training"] == ROLES["training"]
