"""The pod that each stage asks a Flyte cluster for: one record a role, in pods.yaml. A run on this machine has none.

`sidecar: NAME` puts the server of the environment NAME into the pods of the rollout, or into warm pods, for
`--environment_url http://127.0.0.1:8000`. The names of the images are in flyte.config.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from flytekit import PodTemplate, PythonFunctionTask, Resources
from flytekit.configuration import SerializationSettings
from flytekit.core.python_auto_container import get_registerable_container_image
from flytekit.extend import TaskPlugins
from flytekit.extras.accelerators import GPUAccelerator
from flytekit.models.task import K8sPod
from pydantic import BeforeValidator, Field, model_validator

import tasks.flyte_types  # noqa: F401  # how records travel, for every task
from tasks.config import AtLeast0, Flag
from tasks.environments import sidecar
from tasks.environments.catalog import get_environment
from tasks.settings import Settings, require

FILE = "tasks/pods.yaml"
ROLE = "GRPO_ROLE"  # variable of a pod: whose sizes it asked for
Image = Literal["cpu", "rollout", "training"]  # images/<name>.Dockerfile
IMAGES = get_args(Image)
QUANTITY = r"\d+(\.\d+)?(m|[KMGT]i?)?"
IN_WORDS: Any = {"allowed": 'a Kubernetes quantity, such as "8" or "64Gi"'}
AsText = BeforeValidator(lambda given: str(given) if type(given) in (int, float) else given)  # YAML's 8 is no text
Quantity = Annotated[str, AsText, Field(pattern=f"^{QUANTITY}$", json_schema_extra=IN_WORDS)]


class Pod(Settings):
    """What one pod gets; docs/cluster.md says what Flyte makes of it."""

    image: Image
    cpu: Quantity
    """Cores; requested and allowed alike, like all other sizes."""
    mem: Quantity
    """Memory, with shared_memory."""
    disk: Quantity
    """The pod's own, for what it reads and writes: batches, policies, trainer states."""
    gpu: AtLeast0 = 0
    """GPUs; training on more ranks than these has one for each, see `pod_of_ranks`."""
    accelerator: str = ""
    """The label of a kind of GPU on the cluster's nodes; "" takes any."""
    shared_memory: Annotated[str, Field(pattern=f"^({QUANTITY})?$", json_schema_extra=IN_WORDS)] = ""
    """Of /dev/shm; "" leaves the 64 MiB that a container has."""
    retries: AtLeast0 = 3
    """Further tries where memory runs out, a try takes too long or a pod is evicted. Lost pods have the cluster's own
    limit, and a stage that raises an error ends the run at once."""
    timeout_minutes: AtLeast0 = 360
    """Of one try; 0 sets no limit. All tries and waits for a node may take twice as long together, so it is ample."""
    interruptible: Flag = False
    """May run on nodes that the cloud takes back."""
    sidecar: str | None = None
    """The environment whose server a rollout's pod has beside the policy, see tasks/environments/sidecar.py."""


class Roles(Settings, section="pods", source=FILE):
    """The pod of each role."""

    cpu: Pod
    graph: Pod
    policy: Pod
    rollout: Pod
    training: Pod
    warm: Pod

    @model_validator(mode="after")
    def _check(self) -> Self:
        for role, asked in self:
            if asked.sidecar is not None:
                allowed = "null, only the rollout and a warm pod play in the environment"
                require(role in ("rollout", "warm"), f"pods.{role}.sidecar", asked.sidecar, allowed)
                get_environment(asked.sidecar)
        return self


def read_roles(text: str) -> dict[str, Pod]:
    """The roles of a pods.yaml. Raises ValueError, in one sentence, for any other text."""
    allowed = f"a YAML mapping of roles: {', '.join(Roles.model_fields)}"
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{FILE} is no YAML ({' '.join(str(error).split())}); allowed: {allowed}.") from None
    require(isinstance(given, dict), FILE, given, allowed)
    return dict(Roles.from_dict(given))


ROLES: Mapping[str, Pod] = read_roles(Path(__file__).with_name("pods.yaml").read_text())


def _size(asked: Pod, gpus: int) -> dict[str, Any]:
    """What a pod asks for and may take."""
    gpu = str(gpus) if gpus else None
    size = Resources(cpu=asked.cpu, mem=asked.mem, ephemeral_storage=asked.disk, gpu=gpu)
    return {"requests": size, "limits": size}


def pod(role: str) -> dict[str, Any]:
    """The arguments of `@task` by which a stage asks for the pod of its role."""
    asked = ROLES[role]
    return {
        "container_image": f"{{{{.image.{asked.image}}}}}",
        **_size(asked, asked.gpu),
        "accelerator": GPUAccelerator(asked.accelerator) if asked.gpu and asked.accelerator else None,
        "shared_memory": asked.shared_memory or None,
        "retries": asked.retries,
        "timeout": timedelta(minutes=asked.timeout_minutes),
        "interruptible": asked.interruptible,
        "environment": {ROLE: role},
        **(_with_environment(asked.sidecar) if asked.sidecar else {}),
    }


class Sidecar:
    """Marks the task whose pod has a sidecar."""


class SidecarTask(PythonFunctionTask[Sidecar]):
    """flytekit writes the names of images into the containers of a pod; here also into its init containers."""

    def get_k8s_pod(self, settings: SerializationSettings) -> K8sPod:
        pod = super().get_k8s_pod(settings)
        for container in pod.pod_spec["initContainers"]:
            container["image"] = get_registerable_container_image(container["image"], settings.image_config)
        return pod


TaskPlugins.register_pythontask_plugin(Sidecar, SidecarTask)


def _with_environment(name: str) -> dict[str, Any]:
    """The pod is written out, not named: of a PodTemplate that lies in the cluster, Flyte drops other containers."""
    from kubernetes.client import V1Container, V1PodSpec  # half a second, which others need not wait for

    # Without this Flyte would not show the end of the log of a container that failed.
    primary = V1Container(name="primary", termination_message_policy="FallbackToLogsOnError")
    spec = V1PodSpec(containers=[primary], init_containers=[sidecar.container(name)], volumes=sidecar.VOLUMES)
    return {"task_config": Sidecar(), "pod_template": PodTemplate(spec, primary.name)}


def pod_of_ranks(role: str, ranks: int) -> dict[str, Any]:
    """What changes, by `with_overrides`, where `ranks` processes share the pod of a role: a GPU for each of them.

    Without a GPU in the role its ranks compute on the CPU. Memory and cores are for all ranks together.
    """
    asked = ROLES[role]
    return _size(asked, max(ranks, asked.gpu)) if asked.gpu else {}
