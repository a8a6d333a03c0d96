"""What a Flyte cluster registers, made offline."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from flyteidl.admin import task_pb2
from flyteidl.core.tasks_pb2 import TaskTemplate

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
NAMES = {name: f"registry.invalid/{name}:7" for name in ("cpu", "rollout", "training")}
Templates = dict[str, TaskTemplate]


def environment(**more: str) -> dict[str, str]:
    """This one's, without what an earlier test or a user has said to Flyte; some folder's `workflows` and `tasks`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "_F", "GRPO", "MLFLOW", "VLLM"))}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def package(folder: Path, **more: str) -> tuple[dict[str, bytes], Templates]:
    """All files of an archive, and its tasks by name."""
    line = [str(BIN / "pyflyte"), "-k", "workflows", "package", "--source", str(ROOT)]
    line += [word for name, image in NAMES.items() for word in ("--image", f"{name}={image}")]
    done = subprocess.run(
        [*line, "-f", "-o", str(folder / "out.tgz")],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with tarfile.open(folder / "out.tgz") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive.getmembers()}
    specs = [task_pb2.TaskSpec.FromString(content) for name, content in files.items() if name.endswith("_1.pb")]
    return files, {spec.template.id.name: spec.template for spec in specs}
