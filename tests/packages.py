"""What a Flyte cluster registers, made offline, and the loop as the pod that compiles it leaves it for Flyte."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from flyteidl.admin import task_pb2
from flyteidl.core import dynamic_job_pb2, literals_pb2
from flyteidl.core.tasks_pb2 import TaskTemplate
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.types.directory import FlyteDirectory

from tasks.buffer.task import TrainingBatch
from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.environments.catalog import get_environment

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


def compiled(template: TaskTemplate, folder: Path, workers: int = 1) -> dynamic_job_pb2.DynamicJobSpec:
    """What `iterate` leaves for Flyte, run by its container's command in an empty folder."""
    first = FlyteDirectory.from_source("s3://bucket/policies/00000")
    given = {
        "run": Run(
            name="monday",
            token="6f9c",
            seed=0,
            environment="blackjack",
            environment_url="",
            mlflow_run_id="4be1",
            tracking_uri="http://mlflow.invalid",
        ),
        "first": first,
        "iterations": 2,
        "lag": 0,
        "config": GrpoConfig(rollout=RolloutConfig(workers=workers)).resolved(get_environment("blackjack").defaults),
        "begin": 0,
        "end": 2,
        "policies": [first],
        "states": [],
        "batches": [],
        "training_batch": TrainingBatch(),
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
