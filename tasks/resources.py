"""The pod that each stage asks a Flyte cluster for: one record a role. A run on this machine asks for none.

GRPO_RESOURCES changes single fields, where the tasks are registered:

    export GRPO_RESOURCES='{"training": {"accelerator": "nvidia-h100", "mem": "160Gi"}, "rollout": {"retries": 5}}'

`{"rollout": {"sidecar": NAME}}` puts the server of the environment NAME into the rollout's pods, for
`--environment_url http://127.0.0.1:8000`. The names of the images are in flyte.config.
"""

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args

from flytekit import PodTemplate, PythonFunctionTask, Resources
from flytekit.configuration import SerializationSettings
from flytekit.core.python_auto_container import get_registerable_container_image
from flytekit.extend import TaskPlugins
from flytekit.extras.accelerators import GPUAccelerator
from flytekit.models.task import K8sPod
from pydantic import Field, model_validator

import tasks.flyte_types  # noqa: F401  # how records travel, for every task
from tasks.config import AtLeast0, Flag
from tasks.environments import sidecar
from tasks.environments.catalog import get_environment
from tasks.settings import Settings, merged, require

VARIABLE = "GRPO_RESOURCES"
Image = Literal["cpu", "rollout", "training"]  # images/<name>.Dockerfile
IMAGES = get_args(Image)
QUANTITY = r"\d+(\.\d+)?(m|[KMGT]i?)?"
IN_WORDS: Any = {"allowed": 'a Kubernetes quantity, such as "8" or "64Gi"'}
Quantity = Annotated[str, Field(pattern=f"^{QUANTITY}$", json_schema_extra=IN_WORDS)]


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


# Sized by the estimates of tasks/policy/memory.py for Qwen2.5-1.5B, whose training wants a GPU of 80 GB; none of it has
# been measured on a cluster.
GPU: Any = {"gpu": 1, "shared_memory": "16Gi"}


class Roles(Settings, section=VARIABLE, source=VARIABLE):
    """The pod of each role."""

    cpu: Pod = Pod(image="cpu", cpu="2", mem="8Gi", disk="20Gi")
    graph: Pod = Pod(image="cpu", cpu="1", mem="2Gi", disk="5Gi", timeout_minutes=0)
    """Compiles the loop; the clock of such a node runs until its last stage has ended."""
    policy: Pod = Pod(image="training", cpu="4", mem="32Gi", disk="60Gi")
    """Brings policy 0; `tiny` is made by the trainer."""
    rollout: Pod = Pod(
        image="rollout", cpu="8", mem="64Gi", disk="60Gi", timeout_minutes=720, interruptible=True, **GPU
    )
    """Also evaluates. What is lost with such a pod is sampled again, token for token."""
    training: Pod = Pod(image="training", cpu="8", mem="96Gi", disk="200Gi", timeout_minutes=1440, **GPU)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for role, asked in self:
            if asked.sidecar is not None:
                allowed = "null, only the rollout plays in the environment"
                require(role == "rollout", f"{VARIABLE}.{role}.sidecar", asked.sidecar, allowed)
                get_environment(asked.sidecar)
        return self


ROLES: Mapping[str, Pod] = dict(Roles())


def read_roles(given: str) -> dict[str, Pod]:
    """ROLES with the changes of GRPO_RESOURCES, JSON. Raises ValueError, in one sentence, for any other text."""
    allowed = f"an object of roles: {', '.join(ROLES)}"
    try:
        changes = json.loads(given or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{VARIABLE} is no JSON ({error}); allowed: {allowed}.") from None
    require(isinstance(changes, dict), VARIABLE, given, allowed)
    return dict(Roles.from_dict(merged(Roles().whole(), changes)))


_given = os.environ.get(VARIABLE, "")
_roles = read_roles(_given)
# A pod that compiles a `@dynamic` graph gets this environment, so that the graph asks for the same pods.
PASSED_ON = {VARIABLE: _given} if _given else {}


def _size(asked: Pod, gpus: int) -> dict[str, Any]:
    """What a pod asks for and may take."""
    gpu = str(gpus) if gpus else None
    size = Resources(cpu=asked.cpu, mem=asked.mem, ephemeral_storage=asked.disk, gpu=gpu)
    return {"requests": size, "limits": size}


def pod(role: str) -> dict[str, Any]:
    """The arguments of `@task` by which a stage asks for the pod of its role."""
    asked = _roles[role]
    return {
        "container_image": f"{{{{.image.{asked.image}}}}}",
        **_size(asked, asked.gpu),
        "accelerator": GPUAccelerator(asked.accelerator) if asked.gpu and asked.accelerator else None,
        "shared_memory": asked.shared_memory or None,
        "retries": asked.retries,
        "timeout": timedelta(minutes=asked.timeout_minutes),
        "interruptible": asked.interruptible,
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
    asked = _roles[role]
    return _size(asked, max(ranks, asked.gpu)) if asked.gpu else {}
