"""Whole small trainings, started as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.config import GrpoConfig
from tasks.policy.checkpoint import read_info
from tasks.records import read_batch

ROOT = Path(__file__).parents[2]
SMALL = {
    "rollout": {"groups": 24, "group_size": 4},
    "training": {"minibatch_size": 32},
    "evaluation": {"games": 128},
    "tiny": {
        "hidden_size": 64,
        "layers": 1,
        "heads": 2,
        "cold_start_steps": 60,
        "cold_start_games": 256,
        "cold_start_batch": 16,
        "cold_start_learning_rate": 0.01,
    },
}
KEYS = {
    "expected_reward",
    "win_rate",
    "regret",
    "regret_ci95",
    "invalid_rate",
    "iterations",
    "games",
    "seconds",
    "mlflow_run_id",
    "policy",
}
OF_ONE_RUN = ("seconds", "mlflow_run_id", "policy")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the trainings of this module are started."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def train(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `grpo` in this process, where the engine is warm; returns the run's folder."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(name: str, **inputs: object) -> Path:
        from workflows.grpo import grpo

        grpo(run_name=name, iterations=2, config=GrpoConfig.from_dict(SMALL), **inputs)
        return home / "runs" / name

    return run


def command(home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command line of a small `grpo`, and an environment without this test's settings."""
    pyflyte = str(Path(sys.executable).with_name("pyflyte"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "MLFLOW", "VLLM"))}
    environment["TMPDIR"] = str(home / "tmp")
    (home / "tmp").mkdir(exist_ok=True)
    line = [pyflyte, "run", str(ROOT / "workflows/grpo.py"), "grpo", "--iterations", "2", *arguments]
    return [*line, "--config", json.dumps(SMALL)], environment


def weights(run: Path, version: int) -> bytes:
    return (run / "policies" / f"{version:05d}" / "model.safetensors").read_bytes()


def summary(run: Path) -> dict:
    found = json.loads((run / "summary.json").read_text())
    return {key: value for key, value in found.items() if key not in OF_ONE_RUN}


@pytest.fixture(scope="module")
def reference_run(home: Path) -> Path:
    """One training from the command line, whose result others must equal."""
    line, environment = command(home, "--run_name", "reference")
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (home / "reference.txt").write_text(done.stdout)
    return home / "runs" / "reference"


def test_a_training_from_the_command_line_moves_the_policy_and_leaves_its_results(reference_run: Path, home: Path):
    assert weights(reference_run, 0) != weights(reference_run, 1) != weights(reference_run, 2)
    infos = [read_info(reference_run / "policies" / f"{v:05d}") for v in range(3)]
    assert [info.version for info in infos] == [0, 1, 2]
    assert [info.parent for info in infos] == ["", infos[0].digest, infos[1].digest]

    found = json.loads((reference_run / "summary.json").read_text())
    assert set(found) >= KEYS
    assert (found["iterations"], found["games"], found["evaluation_games"]) == (2, 2 * 24 * 4, 128)
    assert Path(found["policy"]) == reference_run / "policies" / "00002"
    for picture in ("learning_curve.png", "choices.png", "stage_times.png"):
        assert (reference_run / picture).read_bytes().startswith(b"\x89PNG")

    batch = read_batch(reference_run / "trajectories" / "00001")
    assert batch.num_rows == 24 * 4
    assert set(batch["policy_version"].to_pylist()) == {1}
    assert {"reference_logprobs", "advantage"} <= set(batch.column_names)

    shown = (home / "reference.txt").read_text()
    assert "expected reward" in shown and "runs/reference/policies/00002" in shown and "make ui" in shown
    assert "\x1b" not in shown


def test_nothing_is_left_in_the_temporary_folder(reference_run: Path, home: Path):
    assert list((home / "tmp").iterdir()) == []
    assert list((home / "runs" / ".tmp").iterdir()) == []


def test_the_mlflow_run_has_parameters_metrics_of_every_stage_and_pictures(reference_run: Path, home: Path):
    from tasks.tracking.mlflow_store import client

    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    run_id = json.loads((reference_run / "summary.json").read_text())["mlflow_run_id"]
    run = mlflow.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "reference"
    assert run.data.params["rollout.groups"] == "24"
    assert len(run.data.tags["git.commit"]) == 40
    for name in (
        "rollout/reward_mean",
        "train/kl",
        "train/mismatch_mean",
        "advantage/kept_share",
        "buffer/groups",
        "time/rollout_s",
        "time/reference_s",
        "time/train_s",
        "time/overhead_s",
    ):
        assert [m.step for m in mlflow.get_metric_history(run_id, name)] == [0, 1], name
    assert [m.step for m in mlflow.get_metric_history(run_id, "eval/regret")] == [0, 2]
    assert all(name.count("/") == 1 for name in run.data.metrics)
    artifacts = {artifact.path for artifact in mlflow.list_artifacts(run_id)}
    assert {"summary.json", "choices.png", "learning_curve.png"} <= artifacts


def test_the_same_seed_gives_the_same_summary_and_weights_in_another_process(reference_run: Path, train):
    again = train("again")
    assert summary(again) == summary(reference_run)
    for version in range(3):
        assert weights(again, version) == weights(reference_run, version)
    for iteration in range(2):
        first, second = (read_batch(run / "trajectories" / f"{iteration:05d}") for run in (reference_run, again))
        assert first.equals(second)


def test_another_seed_gives_other_weights(reference_run: Path, train):
    assert weights(train("other", seed=1), 2) != weights(reference_run, 2)


def test_a_killed_training_goes_on_where_it_was_and_ends_the_same(reference_run: Path, home: Path):
    line, environment = command(home, "--run_name", "killed")
    with open(home / "killed.txt", "w") as shown:
        process = subprocess.Popen(line, cwd=home, env=environment, stdout=shown, stderr=shown)
        run = home / "runs" / "killed"
        deadline = time.monotonic() + 300
        # Killed while the second iteration is under way: the first one's policy is there, the second's not yet.
        while not (run / "policies" / "00001").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (run / "summary.json").exists()
    written = (run / "policies" / "00000" / "policy.json").stat().st_mtime_ns

    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (run / "policies" / "00000" / "policy.json").stat().st_mtime_ns == written
    assert summary(run) == summary(reference_run)
    assert weights(run, 2) == weights(reference_run, 2)


def test_a_run_name_in_use_with_other_inputs_is_refused(reference_run: Path, train):
    with pytest.raises(ValueError, match='run_name is "reference", a run with another seed; allowed:'):
        train("reference", seed=5)


def test_with_lag_one_a_rollout_samples_from_the_version_before(train):
    run = train("lagged", lag=1)
    versions = [set(read_batch(run / "trajectories" / f"{v:05d}")["policy_version"].to_pylist()) for v in range(2)]
    assert versions == [{0}, {0}]
    assert weights(run, 2) != weights(run, 1)


def test_a_failed_training_leaves_its_mlflow_run_failed_with_the_reason(train, home: Path):
    from tasks.tracking.mlflow_store import client
    from workflows.grpo import grpo

    config = GrpoConfig.from_dict({**SMALL, "algorithm": {"max_mismatch": 1e-12}})
    with pytest.raises(ValueError, match="policy version 0"):
        grpo(run_name="failing", iterations=1, config=config)
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    (run,) = mlflow.search_runs(
        [mlflow.get_experiment_by_name("grpo").experiment_id], "attributes.run_name = 'failing'"
    )
    assert run.info.status == "FAILED"
    assert "mismatch between generator and trainer on policy version 0" in run.data.tags["failure"]
    assert not (home / "runs" / "failing" / "policies" / "00001").exists()


def test_evaluate_prints_the_numbers_of_any_policy_directory(reference_run: Path, home: Path):
    line, environment = command(home)
    line = [line[0], "run", str(ROOT / "workflows/evaluation.py"), "evaluate"]
    line += ["--policy", str(reference_run / "policies" / "00002"), "--games", "128", "--seed", "0"]
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (home / "runs" / "evaluations").iterdir()
    found = json.loads((folder / "evaluation.json").read_text())
    assert found["regret"] == summary(reference_run)["regret"]
    assert found["expected_reward"] == summary(reference_run)["expected_reward"]
    assert "regret" in done.stdout and "optimum" in done.stdout
