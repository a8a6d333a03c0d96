"""What a cluster is given of the project: tasks, workflows, launch plans, as `pyflyte package` writes them."""

import os
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core.tasks_pb2 import TaskTemplate

from rehearsal.pod import BIN, ROOT


@dataclass
class Packaged:
    """What `pyflyte package` hands to a cluster, by name."""

    tasks: dict[str, TaskTemplate] = field(default_factory=dict)
    workflows: dict[str, workflow_pb2.WorkflowSpec] = field(default_factory=dict)
    plans: dict[str, launch_plan_pb2.LaunchPlanSpec] = field(default_factory=dict)


def package(folder: Path) -> Packaged:
    """Package the project's workflows, for images of no registry."""
    line = [str(BIN / "pyflyte"), "-k", "workflows", "package", "--source", str(ROOT), "-f", "-o", "out.tgz"]
    line += [word for name in ("cpu", "rollout", "training") for word in ("--image", f"{name}=registry.invalid/it:1")]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "_F", "GRPO", "MLFLOW", "VLLM"))}
    subprocess.run(line, cwd=folder, env={**kept, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    found = Packaged()
    with tarfile.open(folder / "out.tgz") as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member).read()
            if member.name.endswith("_1.pb"):
                template = task_pb2.TaskSpec.FromString(content).template
                found.tasks[template.id.name] = template
            elif member.name.endswith("_2.pb"):
                workflow = workflow_pb2.WorkflowSpec.FromString(content)
                found.workflows[workflow.template.id.name] = workflow
            elif member.name.endswith("_3.pb"):
                plan = launch_plan_pb2.LaunchPlan.FromString(content)
                found.plans[plan.id.name] = plan.spec
    return found
