"""What is left of a run whose process ended before it, was moved, or whose results were removed; in real stores."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flyteidl.core.literals_pb2 import LiteralMap
from flytekit.core import local_cache
from flytekit.models.literals import LiteralMap as Literals
from flytekit.types.error.error import FlyteError

from runs import a_run
from tasks.config import GrpoConfig
from tasks.launcher import world_size
from tasks.run.create import another_of_that_name
from tasks.run.missing import forget_missing
from tasks.run.task import training_failed
from tasks.tracking import mlflow_run, registry
from tasks.tracking.mlflow_store import client

ROOT = str(Path(__file__).parents[2])
# A run with a stage that waits, as a user's process has it.
WAITS = """
import sys, time
from runs import a_run
from tasks.run import ending
from tasks.stages import stage
from tasks.tracking import mlflow_run
uri = sys.argv[1]
run_id = mlflow_run.open_run(uri=uri, name="monday", token="monday", parameters={}, tags={})
run = a_run(uri=uri, run_id=run_id)
if sys.argv[2] != "pod":
    ending.watch(run)
print(run_id, flush=True)
if sys.argv[2] != "between":
    with stage(run, "train"):
        print("waits", flush=True)
        time.sleep(60)
print("waits", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("where", "status", "reason"),
    [
        ("stage", "FAILED", "ended by SIGTERM"),
        ("between", "FAILED", "the process ended before its run"),
        ("pod", "KILLED", "ended by SIGTERM"),  # which is tried again, or was aborted
    ],
)
def test_a_run_that_sigterm_ends_says_so(tmp_path: Path, where: str, status: str, reason: str) -> None:
    uri, environment = f"sqlite:///{tmp_path}/mlflow.db", {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    if where == "pod":
        environment["FLYTE_INTERNAL_EXECUTION_ID"] = "f3a9"
    line = [sys.executable, "-c", WAITS, uri, where]
    process = subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    found = client(uri).get_run(run_id)
    assert (found.info.status, found.data.tags["failure"]) == (status, reason)
    # The same command goes on, and a run that ends well has no failure any more.
    mlflow_run.go_on(uri, run_id)
    assert (
        client(uri).get_run(run_id).info.status == "RUNNING" and "failure" not in client(uri).get_run(run_id).data.tags
    )


@pytest.mark.parametrize("status", ["RUNNING", "FINISHED", "FAILED", "KILLED"])
def test_the_failure_handler_of_a_cluster_tells_what_no_stage_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run_id = mlflow_run.open_run(uri=uri, name="monday", token="grpo/development/f3a9", parameters={}, tags={})
    if status == "FAILED":
        mlflow_run.fail(uri, run_id, "mismatch 0.4")
    elif status == "KILLED":  # a pod that was not tried again
        mlflow_run.kill(uri, run_id, "ended by SIGTERM")
    elif status == "FINISHED":
        client(uri).set_terminated(run_id, status)
    inputs = {"run_name": "", "policy": "tiny", "environment": "blackjack", "environment_url": "", "iterations": 1}
    inputs |= {"seed": 0, "lag": 0, "config": GrpoConfig()}
    error = FlyteError(message="[1/1] currentAttempt done.\nOOMKilled", failed_node_id="n2")
    training_failed.task_function(**inputs, err=error)  # no pod: nothing to tell
    assert client(uri).get_run(run_id).info.status == status
    for name, value in (("PROJECT", "grpo"), ("DOMAIN", "development"), ("ID", "f3a9")):
        monkeypatch.setenv(f"FLYTE_INTERNAL_EXECUTION_{name}", value)
    training_failed.task_function(**inputs, err=error)
    found = client(uri).get_run(run_id)
    told = {"RUNNING": ("FAILED", "OOMKilled"), "FINISHED": ("FINISHED", None), "FAILED": ("FAILED", "mismatch 0.4")}
    told["KILLED"] = told["RUNNING"]
    assert (found.info.status, found.data.tags.get("failure")) == told[status]


def test_the_same_name_on_a_cluster_is_told_what_goes_on_with_the_other_run(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def opened(token: str) -> str:
        return mlflow_run.open_run(uri=uri, name="monday", token=token, parameters={}, tags={})

    first = a_run(uri=uri, run_id=opened("grpo/development/f3a9"), token="grpo/development/f3a9")
    assert another_of_that_name(first) == ""
    opened("0c5e")  # of one machine
    second = a_run(uri=uri, run_id=opened("grpo/development/aa11"), token="grpo/development/aa11")
    assert another_of_that_name(second) == (
        "a new run; to go on with monday of execution f3a9 instead: "
        "flytectl create execution -p grpo -d development --recover f3a9"
    )


OPENS = """
import os, signal, sys
from tasks.config import GrpoConfig
from tasks.policy.named import Source
from tasks.run.create import open_run

def before_its_record(event, given):
    if event == "os.mkdir" and "/.monday.new-" in str(given[0]):
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1:]:
    sys.addaudithook(before_its_record)
inputs = {"run_name": "monday", "policy": "tiny", "environment": "blackjack", "environment_url": "", "seed": 0}
config = GrpoConfig()
run = open_run({**inputs, "iterations": 1}, config, config, {}, Source(given="tiny", uri="tiny"), {})
print(run.token, run.mlflow_run_id)
"""


def test_a_run_that_was_killed_before_it_had_its_record_is_the_same_in_mlflow(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment.pop("MLFLOW_TRACKING_URI", None)

    def opened(*words: str) -> tuple[int, str]:
        line = [sys.executable, "-c", OPENS, *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout.strip()

    assert opened("killed") == (-signal.SIGKILL, "") and not (tmp_path / "runs" / "monday").exists()
    status, first = opened()
    assert (status, opened()) == (0, (0, first))
    mlflow = client(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = mlflow.get_experiment_by_name("grpo")
    assert experiment is not None
    (only,) = mlflow.search_runs([experiment.experiment_id])
    assert only.info.run_id == first.split()[1]
    # Without its folder a run of the same name is a new one.
    shutil.rmtree(tmp_path / "runs" / "monday")
    status, second = opened()
    assert status == 0 and not set(second.split()) & set(first.split())


def test_a_moved_folder_takes_its_store_along(tmp_path: Path) -> None:
    old, new = tmp_path / "old" / "runs", tmp_path / "new" / "runs"
    uri = f"sqlite:///{old}/mlflow.db"
    run_id = mlflow_run.open_run(uri=uri, name="monday", token="m", parameters={}, tags={})
    mlflow_run.keep_config(uri, run_id, {"a": 1})
    made = registry.Version("grpo-x", f"{old}/monday/policies/00001", "d1", run_id=run_id, tags={"policy_version": "1"})
    registry.register(uri, made)
    shutil.move(tmp_path / "old", tmp_path / "new")
    code = (
        "import sys; from tasks.tracking import mlflow_run, registry; from tasks.tracking.mlflow_store import client\n"
        "uri = sys.argv[1]\n"
        "for _ in range(2): run = mlflow_run.open_run(uri=uri, name='monday', token='m', parameters={}, tags={})\n"
        "client(uri).log_text(run, 'x', 'more.txt')\n"
        "print(run, registry.find(uri, 'models:/grpo-x/1').uri)"
    )
    line, environment = [sys.executable, "-c", code, f"sqlite:///{new}/mlflow.db"], {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [f"{run_id} {new}/monday/policies/00001"], done.stderr[-2000:]
    kept = new / "mlflow-artifacts" / run_id / "artifacts"
    assert sorted(path.name for path in kept.iterdir()) == ["config.json", "more.txt"]
    assert not (tmp_path / "old").exists()


def test_cached_results_whose_folder_is_gone_and_needed_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_cache, "CACHE_LOCATION", str(tmp_path / "cache"))
    cache = local_cache.LocalTaskCache
    monkeypatch.setattr(cache, "_initialized", False)
    run = tmp_path / "runs" / "monday"
    kept = {"policies/00001", "trajectories/00000", "evaluations/00000"}
    names = [*kept, "rollouts/00000", "scored/00000", "rollouts/00001", "scored/00001", "evaluations/00001"]
    for name in names:
        if name in kept:
            (run / name).mkdir(parents=True)
        result = LiteralMap()
        result.literals["o0"].scalar.blob.uri = str(run / name)
        cache.set(name, "1", Literals({}), (), Literals.from_flyte_idl(result))
    assert forget_missing("tuesday") == 0
    assert forget_missing("monday") == 3
    left = {name for name in names if cache.get(name, "1", Literals({}), ()) is not None}
    # Iteration 0 has made its policy: what only it read is not made again.
    assert left == {*kept, "rollouts/00000", "scored/00000"}


def test_what_a_job_launcher_left_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert world_size() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert world_size() == 8


def test_training_with_a_world_size_in_the_environment(tmp_path: Path) -> None:
    code = (
        "from tasks.training import titan; from tasks.config import TrainingConfig\n"
        "print(titan.join_process_group(TrainingConfig()).world_size)"
    )
    environment = {**os.environ, "WORLD_SIZE": "1", "PYTHONPATH": ROOT}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1:] == ["1"], done.stderr[-1000:]
