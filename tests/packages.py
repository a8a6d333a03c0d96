"""What a Flyte cluster registers, packaged offline, and the loop as the pod that compiles it leaves it for Flyte."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from flyteidl.admin import task_pb2
from flyteidl.admin.launch_plan_pb2 import LaunchPlan, LaunchPlanSpec
from flyteidl.admin.workflow_pb2 import WorkflowSpec
from flyteidl.core import dynamic_job_pb2, literals_pb2
from flyteidl.core.tasks_pb2 import TaskTemplate
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.types.directory import FlyteDirectory

from graphs import loop_inputs
from runs import a_run
from tasks.config import GrpoConfig, RolloutConfig
from tasks.settings import merged

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
NAMES = {name: f"registry.invalid/{name}:7" for name in ("cpu", "rollout", "training")}
Templates = dict[str, TaskTemplate]


class Packaged(NamedTuple):
    """What `pyflyte package` writes for a cluster: the files of the archive, and what they hold, by name."""

    files: dict[str, bytes]
    tasks: Templates
    workflows: dict[str, WorkflowSpec]
    plans: dict[str, LaunchPlanSpec]


def environment(source: Path = ROOT) -> dict[str, str]:
    """This one's, without what an earlier test or a user has set for Flyte, and the project in `source`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "_F", "GRPO", "MLFLOW", "VLLM"))}
    return {**kept, "PYTHONPATH": str(source)}


def with_pods(folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of the project whose pods.yaml has these changes, as a user makes them."""
    for name in ("tasks", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "tasks" / "pods.yaml"
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), changes)))
    return folder


def package(folder: Path, source: Path = ROOT) -> Packaged:
    """Package the project's workflows, for images of no registry."""
    line = [str(BIN / "pyflyte"), "-k", "workflows", "package", "--source", str(source)]
    line += [word for name, image in NAMES.items() for word in ("--image", f"{name}={image}")]
    line += ["-f", "-o", str(folder / "out.tgz")]
    done = subprocess.run(line, cwd=folder, env=environment(source), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with tarfile.open(folder / "out.tgz") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
    tasks, workflows, plans = (
        [kind.FromString(content) for name, content in files.items() if name.endswith(f"_{number}.pb")]
        for number, kind in ((1, task_pb2.TaskSpec), (2, WorkflowSpec), (3, LaunchPlan))
    )
    return Packaged(
        files,
        {spec.template.id.name: spec.template for spec in tasks},
        {spec.template.id.name: spec for spec in workflows},
        {plan.id.name: plan.spec for plan in plans},
    )


def compiled(
    template: TaskTemplate, folder: Path, workers: int = 1, source: Path = ROOT
) -> dynamic_job_pb2.DynamicJobSpec:
    """What `iterate` leaves for Flyte, run by its container's command in an empty folder."""
    config = GrpoConfig(rollout=RolloutConfig(workers=workers))
    context, inputs = FlyteContextManager.current_context(), literals_pb2.LiteralMap()
    for name, value in loop_inputs(config, end=2, run=a_run(uri="http://mlflow.invalid")).items():
        kind = list[FlyteDirectory] if isinstance(value, list) else type(value)
        literal = TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind))
        inputs.literals[name].CopyFrom(literal.to_flyte_idl())
    (folder / "inputs.pb").write_bytes(inputs.SerializeToString())
    paths = {
        "{{.input}}": folder / "inputs.pb",
        "{{.outputPrefix}}": folder / "outputs",
        "{{.rawOutputDataPrefix}}": folder / "raw",
        "{{.checkpointOutputPrefix}}": folder / "checkpoint",
        "{{.prevCheckpointPrefix}}": "",
    }
    line = [str(paths.get(word, word)) for word in template.container.args]
    own = environment(source) | {pair.key: pair.value for pair in template.container.env}
    done = subprocess.run([str(BIN / line[0]), *line[1:]], cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dynamic_job_pb2.DynamicJobSpec.FromString((folder / "outputs" / "futures.pb").read_bytes())
