"""The environment beside the policy: what a rollout's pod with a sidecar is to Kubernetes and Flyte; command and probes
for real."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from google.protobuf.json_format import MessageToDict

from packages import NAMES, Templates, compiled, environment, package, with_pods
from tasks.environments import sidecar
from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.resources import ROLES, read_roles
from tasks.settings import merged

ROOT = Path(__file__).parents[2]
WITH = {role: {"sidecar": "blackjack"} for role in ("rollout", "warm")}
# What `pyflyte run --remote --copy all` registers: a task, and the map over it, here serialised twice as by two loops.
SENT_ALONG = """
import json
from collections import OrderedDict
from google.protobuf.json_format import MessageToDict
from flytekit.configuration import FastSerializationSettings, ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable
from tasks.rollout.task import rollout_shard, shards_of

images = ImageConfig.from_images("registry.invalid/none:1", {n: f"registry.invalid/{n}:7" for n in ("cpu", "rollout")})
code = FastSerializationSettings(enabled=True, destination_dir="/root", distribution_location="s3://bucket/code.tgz")
settings = SerializationSettings(
    image_config=images, project="grpo", domain="development", version="1", fast_serialization_settings=code
)
get_serializable(OrderedDict(), settings, shards_of(2, 2))
specs = [get_serializable(OrderedDict(), settings, one).to_flyte_idl() for one in (rollout_shard, shards_of(2, 2))]
print(json.dumps([MessageToDict(spec.template.k8s_pod.pod_spec) for spec in specs]))
"""
CONTAINER = sidecar.container("blackjack")
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def whole(value: Any) -> Any:
    """A protobuf Struct knows no whole numbers, its readers take 1000.0 for 1000; here it is written so."""
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    if isinstance(value, list):
        return [whole(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_pods(tmp_path_factory.mktemp("source"), WITH)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Templates:
    return package(tmp_path_factory.mktemp("sidecar"), source).tasks


@pytest.fixture(scope="module")
def spec(tasks: Templates) -> dict[str, Any]:
    """The pod of a rollout."""
    return whole(MessageToDict(tasks["tasks.rollout.task.rollout"].k8s_pod.pod_spec))


def test_pods_that_play_have_both_containers_and_others_are_as_before(tasks: Templates) -> None:
    playing = {name for name, template in tasks.items() if template.HasField("k8s_pod")}
    assert playing >= {
        "tasks.rollout.task.rollout",
        "tasks.evaluation.task.evaluate",
        "tasks.evaluation.task.evaluate_once",
    }
    for name, template in tasks.items():
        assert not template.metadata.pod_template_name  # a pod that lies in the cluster by this name
        # Flyte takes the name of the stage's container from there, and the task ends when that container does.
        assert template.config.get("primary_container_name", "") == ("primary" if name in playing else "")
        if name not in playing:
            assert template.HasField("container") and template.container.image != NAMES["rollout"]
            continue
        assert template.type == "python-task" and not template.HasField("container")
        pod = MessageToDict(template.k8s_pod.pod_spec)
        assert [(c["name"], c["image"]) for c in pod["containers"]] == [("primary", NAMES["rollout"])]
        beside = [(c["name"], c["image"], c["restartPolicy"]) for c in pod["initContainers"]]
        assert beside == [("environment", NAMES["cpu"], "Always")]
        module, function = name.rsplit(".", 1)
        assert pod["containers"][0]["args"][-4:] == ["task-module", module, "task-name", function]


def test_the_stages_own_container_has_all_that_its_role_asks_for(tasks: Templates, spec: dict[str, Any]) -> None:
    role, (primary,) = ROLES["rollout"], spec["containers"]
    size = {"cpu": role.cpu, "memory": role.mem, "ephemeral-storage": role.disk, "gpu": str(role.gpu)}
    assert primary["resources"] == {"requests": size, "limits": size}
    assert primary["terminationMessagePolicy"] == "FallbackToLogsOnError"
    template = tasks["tasks.rollout.task.rollout"]
    # From these Flyte makes the node's affinity and a volume in memory, mounted into the primary container.
    assert template.extended_resources.gpu_accelerator.device == role.accelerator
    shared = template.extended_resources.shared_memory
    assert (shared.mount_path, shared.size_limit) == ("/dev/shm", role.shared_memory)
    assert shared.mount_name not in {volume["name"] for volume in spec["volumes"]}
    metadata = template.metadata
    assert (metadata.retries.retries, metadata.timeout.seconds) == (role.retries, role.timeout_minutes * 60)
    assert metadata.interruptible and metadata.discoverable


def test_kubernetes_takes_the_pod(spec: dict[str, Any]) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rollout"}, "spec": spec}
    for version in ("1.29", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = json.loads(json.dumps(manifest).replace("readOnlyRootFilesystem", "readOnlyRoot"))
    with pytest.raises(kubernetes_validate.ValidationError):  # the schema looks into init containers too
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_sidecar_is_the_service_on_the_loopback_interface(spec: dict[str, Any]) -> None:
    deployment, _ = yaml.safe_load_all((ROOT / "images" / "environment.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (service,), (beside,) = pod["containers"], spec["initContainers"]
    for same in ("command", "workingDir", "env", "resources"):
        assert beside[same] == service[same]
    assert dict(zip(beside["args"][::2], beside["args"][1::2], strict=True)) == {
        **dict(zip(service["args"][::2], service["args"][1::2], strict=True)),
        "--host": "127.0.0.1",
    }
    assert "ports" not in beside  # it is no other pod's
    # What the service says of its pod is said here of the container: the pod has another's too.
    of_the_pod = {k: v for k, v in pod["securityContext"].items() if k != "fsGroup"}
    assert beside["securityContext"] == {**of_the_pod, **service["securityContext"]}
    assert [v for v in spec["volumes"] if v["name"] == "scratch"] == pod["volumes"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        timing = {k: v for k, v in service[probe].items() if k not in ("httpGet", "timeoutSeconds")}
        assert timing == {k: v for k, v in beside[probe].items() if k not in ("exec", "timeoutSeconds")}


def test_the_sidecar_gets_no_token(spec: dict[str, Any]) -> None:
    # Where something is mounted there, Kubernetes mounts no token. The stage's container needs its own.
    (beside,), (primary,) = spec["initContainers"], spec["containers"]
    (mount,) = [m for m in beside["volumeMounts"] if m["mountPath"] == TOKEN]
    assert mount["readOnly"] is True
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    assert volume.keys() == {"name", "emptyDir"}
    assert "volumeMounts" not in primary and "automountServiceAccountToken" not in spec


def test_the_probes_see_whether_the_server_answers(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    arguments = dict(zip(CONTAINER["args"][::2], CONTAINER["args"][1::2], strict=True))
    assert f"http://{arguments['--host']}:{arguments['--port']}" == sidecar.URL
    commands = [CONTAINER[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")]
    with openenv_server("--max-sessions", arguments["--max-sessions"]) as url:
        for python, *words in commands:
            assert python == "python"
            line = [sys.executable, *(word.replace(sidecar.URL, url) for word in words)]
            assert line[1:] != words
            assert subprocess.run(line, capture_output=True).returncode == 0
    assert subprocess.run(line, capture_output=True).returncode != 0


def test_the_loop_compiled_in_its_pod_has_the_same_pods(tasks: Templates, source: Path, tmp_path: Path) -> None:
    graph = compiled(tasks["workflows.grpo.iterate"], tmp_path, source=source)
    for template in graph.tasks:
        registered = tasks[template.id.name]
        assert (template.k8s_pod, template.config) == (registered.k8s_pod, registered.config)
    assert "tasks.rollout.task.rollout" in {t.id.name for t in graph.tasks if t.HasField("k8s_pod")}


def test_each_of_several_workers_has_it(tasks: Templates, source: Path, tmp_path: Path) -> None:
    graph = compiled(tasks["workflows.grpo.iterate"], tmp_path, workers=2, source=source)
    found = {template.id.name: template for template in graph.tasks}
    (mapped,) = [template for name, template in found.items() if name.endswith("-arraynode")]
    shard, join = (tasks[f"tasks.rollout.task.{name}"] for name in ("rollout_shard", "join_rollout"))
    assert found["tasks.rollout.task.join_rollout"].k8s_pod == join.k8s_pod
    # The pod of a shard is a rollout's, but for the command; what Flyte 1.16 adds to each shard, the environment
    # variables with its number, it adds to every container of a pod.
    assert mapped.type == shard.type and mapped.config == shard.config and mapped.metadata == shard.metadata
    assert mapped.extended_resources == shard.extended_resources and shard.extended_resources.shared_memory.size_limit
    pods = [MessageToDict(template.k8s_pod) for template in (mapped, shard)]
    commands = [pod["podSpec"]["containers"][0].pop("args") for pod in pods]
    assert pods[0] == pods[1]
    assert (commands[0][0], commands[1][0]) == ("pyflyte-map-execute", "pyflyte-execute")
    # flytekit asks for another execution mode than of a plain task's map; no part of Flyte 1.16 reads it.
    nodes = [node.array_node for node in graph.nodes if node.HasField("array_node")]
    assert {node.node.task_node.reference_id.name for node in nodes} == {mapped.id.name} and len(nodes) == 2


def test_code_that_is_sent_along_reaches_every_worker(source: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENT_ALONG],
        cwd=source,
        env=environment(source),
        capture_output=True,
        text=True,
        check=True,
    )
    for pod, command in zip(json.loads(done.stdout), ("pyflyte-execute", "pyflyte-map-execute"), strict=True):
        (primary,), (beside,) = pod["containers"], pod["initContainers"]
        sent = primary["args"].index("s3://bucket/code.tgz")
        assert primary["args"][sent - 2 : sent] == ["pyflyte-fast-execute", "--additional-distribution"]
        # What unpacks the code, it does once, and then it runs the stage.
        assert primary["args"].count("pyflyte-fast-execute") == 1
        assert primary["args"][primary["args"].index("--") + 1] == command
        assert primary["args"][-2:] == ["task-name", "rollout_shard"]
        assert beside["command"] == CONTAINER["command"]


def test_only_the_rollout_may_have_it_and_it_serves_an_environment_that_there_is() -> None:
    def read(role: str, name: str) -> None:
        known = yaml.safe_load((ROOT / "tasks" / "pods.yaml").read_text())
        read_roles(yaml.safe_dump(merged(known, {role: {"sidecar": name}})))

    with pytest.raises(ValueError) as caught:
        read("training", "blackjack")
    assert str(caught.value) == (
        'pods.training.sidecar is "blackjack"; allowed: null, only the rollout and a warm pod play in the environment.'
    )
    with pytest.raises(ValueError, match=r'^environment is "poker"; allowed: blackjack, '):
        read("rollout", "poker")
    assert ROLES["rollout"].sidecar is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.8.8"])
def test_on_a_cluster_the_first_stage_asks_no_sidecar(host: str, closed_port: int) -> None:
    spec, url = get_environment("blackjack"), f"http://{host}:{closed_port}"
    check_environment(spec, url, timeout_s=60, here=False)
    with pytest.raises(ConnectionError, match="nobody answers there"):
        check_environment(spec, url, timeout_s=60, here=True)


def test_on_a_cluster_it_asks_what_is_elsewhere_and_takes_only_urls(closed_port: int) -> None:
    spec = get_environment("blackjack")
    with pytest.raises(ConnectionError, match="nobody answers there"):
        check_environment(spec, f"http://0.0.0.0:{closed_port}", timeout_s=60, here=False)
    with pytest.raises(ValueError, match="it needs the form http://host:port"):
        check_environment(spec, "ws://127.0.0.1:8000", timeout_s=60, here=False)
