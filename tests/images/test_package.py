"""What a Flyte cluster registers, packaged offline: each stage's image, pod, retries, timeout; and how to change them.

Nothing is executed but the task that compiles the loop: by the command of its own container, in a process with the
container's environment and nothing of this one's.
"""

import base64
import gzip
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from flyteidl.admin import launch_plan_pb2, workflow_pb2
from flyteidl.core import dynamic_job_pb2, literals_pb2
from flyteidl.core.tasks_pb2 import Resources, TaskTemplate
from flytekit import FlyteContextManager
from flytekit.constants import CopyFileDetection
from flytekit.core.type_engine import TypeEngine
from flytekit.tools.fast_registration import FastPackageOptions, fast_package
from flytekit.types.directory import FlyteDirectory

from packages import BIN, NAMES, Templates, environment, package
from tasks.buffer.task import Window
from tasks.config import GrpoConfig, Run
from tasks.resources import read_roles
from tasks.stages import CACHE_VERSION

ROOT = Path(__file__).parents[2]
CHANGES = {"training": {"gpu": 2, "accelerator": "nvidia-h100", "mem": "300Gi"}, "rollout": {"retries": 9}}
A100 = "nvidia-a100-80gb"
# image, CPU, memory, disk, GPUs, their kind, shared memory, retries, timeout in s, interruptible
CPU = ("cpu", "2", "8Gi", "20Gi", "", "", "", 3, 3600, False)
ROLLOUT = ("rollout", "8", "64Gi", "60Gi", "1", A100, "16Gi", 3, 7200, True)
TRAINING = ("training", "8", "96Gi", "200Gi", "1", A100, "16Gi", 3, 14400, False)
CACHED = {
    "tasks.advantage.task.compute_advantages": CPU,
    "tasks.buffer.task.select_window": CPU,
    "tasks.evaluation.task.evaluate": ROLLOUT,
    "tasks.policy.task.first_policy": ("training", "4", "32Gi", "60Gi", "", "", "", 3, 3600, False),
    "tasks.reference.task.score_reference": TRAINING,
    "tasks.rollout.task.rollout": ROLLOUT,
    "tasks.training.task.train": TRAINING,
}
NEVER_CACHED = {
    "tasks.evaluation.task.evaluate_once": ROLLOUT,
    "tasks.evaluation.task.report": CPU,
    "tasks.run.task.prepare": CPU,
    "tasks.run.task.retire": CPU,
    "workflows.grpo.iterate": ("cpu", "1", "2Gi", "5Gi", "", "", "", 3, 0, False),
}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Templates]:
    return package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return package(tmp_path_factory.mktemp("changed"), GRPO_RESOURCES=json.dumps(CHANGES))[1]


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


def test_each_task_states_its_image_and_its_pod(packaged: tuple[dict[str, bytes], Templates]) -> None:
    _, tasks = packaged
    assert {name: asked(template) for name, template in tasks.items()} == {**CACHED, **NEVER_CACHED}


def test_stages_are_cached_and_what_speaks_for_the_whole_run_is_not(
    packaged: tuple[dict[str, bytes], Templates],
) -> None:
    for name, template in packaged[1].items():
        cached = (True, CACHE_VERSION) if name in CACHED else (False, "")
        assert (template.metadata.discoverable, template.metadata.discovery_version) == cached, name


def test_tasks_run_by_name_and_know_no_path_of_this_machine(packaged: tuple[dict[str, bytes], Templates]) -> None:
    files, tasks = packaged
    for name, template in tasks.items():
        module, function = name.rsplit(".", 1)
        assert template.container.args[0] == "pyflyte-execute"
        assert template.container.args[-4:] == ["task-module", module, "task-name", function]
    for name, content in files.items():
        assert not [word for word in (b"/work", b"/home", b"/tmp", str(ROOT).encode()) if word in content], name
    # What flytekit hands to the pod that compiles the loop, packed: it has the folder of the sources, and reads it not.
    (packed,) = [pair.value for pair in tasks["workflows.grpo.iterate"].container.env if pair.key == "_F_SS_C"]
    context = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert context.pop("source_root") == str(ROOT)
    assert not [word for word in ("/work", "/home", "/tmp", str(ROOT)) if word in json.dumps(context)]


def test_the_workflows_and_launch_plans_can_be_read(packaged: tuple[dict[str, bytes], Templates]) -> None:
    files, _ = packaged
    specs = [workflow_pb2.WorkflowSpec.FromString(content) for name, content in files.items() if name.endswith("_2.pb")]
    used = {spec.template.id.name: [n.task_node.reference_id.name for n in spec.template.nodes] for spec in specs}
    assert used == {
        "workflows.grpo.grpo": [
            "tasks.run.task.prepare",
            "tasks.policy.task.first_policy",
            "workflows.grpo.iterate",
            "tasks.evaluation.task.report",
        ],
        "workflows.evaluation.evaluate": ["tasks.evaluation.task.evaluate_once"],
    }
    plans = [
        launch_plan_pb2.LaunchPlan.FromString(content) for name, content in files.items() if name.endswith("_3.pb")
    ]
    assert {plan.id.name for plan in plans} == used.keys()
    for plan in plans:  # what a user need not say has a value
        needed = {name for name, given in plan.spec.default_inputs.parameters.items() if given.required}
        assert needed == ({"policy"} if plan.id.name == "workflows.evaluation.evaluate" else set())


def test_single_fields_are_changed_by_the_environment(changed: Templates) -> None:
    training = ("training", "8", "300Gi", "200Gi", "2", "nvidia-h100", "16Gi", 3, 14400, False)
    rollout = (*ROLLOUT[:7], 9, *ROLLOUT[8:])
    others = {TRAINING: training, ROLLOUT: rollout}
    wanted = {name: others.get(pod, pod) for name, pod in {**CACHED, **NEVER_CACHED}.items()}
    assert {name: asked(template) for name, template in changed.items()} == wanted


def compiled(template: TaskTemplate, folder: Path) -> dynamic_job_pb2.DynamicJobSpec:
    """What `iterate` leaves for Flyte, run by its container's command in an empty folder."""
    first = FlyteDirectory.from_source("s3://bucket/policies/00000")
    given = {
        "run": Run("monday", "6f9c", 0, "blackjack", "", "4be1", "http://mlflow.invalid"),
        "first": first,
        "iterations": 2,
        "lag": 0,
        "config": GrpoConfig(),
        "begin": 0,
        "end": 2,
        "policies": [first],
        "states": [],
        "batches": [],
        "window": Window(),
        "evaluations": [],
    }
    context = FlyteContextManager.current_context()
    inputs = literals_pb2.LiteralMap()
    for name, value in given.items():
        kind = list[FlyteDirectory] if isinstance(value, list) else type(value)
        literal = TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind))
        inputs.literals[name].CopyFrom(literal.to_flyte_idl())
    (folder / "inputs.pb").write_bytes(inputs.SerializeToString())
    places = {
        "{{.input}}": folder / "inputs.pb",
        "{{.outputPrefix}}": folder / "outputs",
        "{{.rawOutputDataPrefix}}": folder / "raw",
        "{{.checkpointOutputPrefix}}": folder / "checkpoint",
        "{{.prevCheckpointPrefix}}": "",
    }
    line = [str(places.get(word, word)) for word in template.container.args]
    own = environment(**{pair.key: pair.value for pair in template.container.env})
    done = subprocess.run([str(BIN / line[0]), *line[1:]], cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dynamic_job_pb2.DynamicJobSpec.FromString((folder / "outputs" / "futures.pb").read_bytes())


def test_copy_all_sends_every_module_and_nothing_else_of_the_project(tmp_path: Path) -> None:
    options = FastPackageOptions([], copy_style=CopyFileDetection.ALL)
    with tarfile.open(fast_package(ROOT, tmp_path, options=options)) as archive:
        sent = {name for name in archive.getnames() if name.endswith(".py")}
    assert sent == {
        str(path.relative_to(ROOT)) for top in ("tasks", "workflows") for path in (ROOT / top).rglob("*.py")
    }


@pytest.mark.parametrize("which", ["packaged", "changed"])
def test_the_loop_compiled_in_its_pod_asks_for_the_same_pods(
    which: str, packaged: tuple[dict[str, bytes], Templates], changed: Templates, tmp_path: Path
) -> None:
    registered = {"packaged": packaged[1], "changed": changed}[which]
    graph = compiled(registered["workflows.grpo.iterate"], tmp_path)
    assert len(graph.nodes) == 2 * 5 + 2
    found = {template.id.name: template for template in graph.tasks}
    assert found.keys() == {node.task_node.reference_id.name for node in graph.nodes}
    assert {name: asked(template) for name, template in found.items()} == {
        name: asked(registered[name]) for name in found
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("{", "GRPO_RESOURCES is no JSON "),
        ("3", 'GRPO_RESOURCES is "3"; allowed: an object of roles: cpu, graph, policy, rollout, training.'),
        ({"trainer": {}}, 'a role in GRPO_RESOURCES is "trainer"; allowed: cpu, graph, policy, rollout, training.'),
        ({"training": {"gpus": 2}}, 'config has an unknown key "GRPO_RESOURCES.training.gpus" (did you mean "gpu"?)'),
        ({"training": {"gpu": "2"}}, 'GRPO_RESOURCES.training.gpu is "2"; allowed: a whole number.'),
        ({"training": {"gpu": -1}}, "GRPO_RESOURCES gpu is -1; allowed: 0 or more."),
        ({"training": {"mem": "64 GB"}}, 'GRPO_RESOURCES mem is "64 GB"; allowed: a Kubernetes quantity'),
        ({"cpu": {"mem": ""}}, 'GRPO_RESOURCES mem is ""; allowed: a Kubernetes quantity'),
        ({"cpu": {"image": "tiny"}}, 'GRPO_RESOURCES image is "tiny"; allowed: cpu, rollout, training.'),
        ({"cpu": {"retries": -1}}, "GRPO_RESOURCES retries is -1; allowed: 0 or more."),
        ({"cpu": {"timeout_minutes": -1}}, "GRPO_RESOURCES timeout_minutes is -1; allowed: 0 (no limit) or more."),
    ],
)
def test_a_change_that_means_nothing_is_refused_in_one_sentence(given: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_roles(given if isinstance(given, str) else json.dumps(given))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_shared_memory_may_be_none_and_a_gpu_of_any_kind() -> None:
    roles = read_roles('{"rollout": {"shared_memory": "", "accelerator": "", "cpu": "500m"}}')
    assert (roles["rollout"].shared_memory, roles["rollout"].accelerator, roles["rollout"].cpu) == ("", "", "500m")
    assert roles["training"] == read_roles("")["training"]
