"""Against a real SQLite store: what is written is read back from it, by MLflow's own client."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import a_run
from tasks.config import Run
from tasks.tracking import mlflow_run, outbox
from tasks.tracking.mlflow_store import client
from tasks.tracking.provenance import git_state

# After its imports each waits for a line, so that both find the store missing at the same moment.
OPEN = """
import sys
from tasks.tracking.mlflow_run import open_run
import mlflow, mlflow.store.tracking.sqlalchemy_store
print("ready", flush=True)
sys.stdin.readline()
print(open_run(uri=sys.argv[1], name="twin", token="twin", parameters={"a": 1}, tags={}))
"""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    # One store for all tests of this file, since making one takes a second; each test has its own token.
    return f"sqlite:///{tmp_path_factory.mktemp('runs of a test') / 'mlflow.db'}"


def opened(uri: str, token: str, **parameters: object) -> Run:
    run_id = mlflow_run.open_run(
        uri=uri, name="monday", token=token, parameters=parameters, tags={"grpo.policy": "tiny"}
    )
    return a_run("monday", uri, run_id, token=token)


def history(run: Run, name: str) -> list[tuple[int, float]]:
    """(step, value) in the order of steps."""
    points = client(run.tracking_uri).get_metric_history(run.mlflow_run_id, name)
    return sorted((point.step, point.value) for point in points)


def record(run: Run):
    return client(run.tracking_uri).get_run(run.mlflow_run_id)


def test_a_resumed_training_continues_its_own_run(uri: str) -> None:
    first, other = opened(uri, "resumed", epochs=4, seed=0), opened(uri, "another", epochs=4)
    mlflow_run.fail(uri, first.mlflow_run_id, "killed")
    again = opened(uri, "resumed", epochs=5, seed=0)
    assert again.mlflow_run_id == first.mlflow_run_id != other.mlflow_run_id
    data = record(again).data
    assert record(again).info.status == "RUNNING"
    assert "failure" not in data.tags
    assert data.params == {"epochs": "4", "seed": "0"}
    assert data.tags["resumed.epochs"] == "5"
    assert "resumed.seed" not in data.tags


def test_a_run_carries_more_parameters_than_mlflow_takes_at_once(uri: str) -> None:
    run = opened(uri, "many", **{f"p{i}": i for i in range(250)})
    assert len(record(run).data.params) == 250


def test_tags_name_the_code(uri: str) -> None:
    tags = record(opened(uri, "tags")).data.tags
    assert tags["grpo.policy"] == "tiny"
    assert tags["version.torch"].startswith("2.")
    assert tags["version.mlflow"].startswith("3.")
    assert {"version.vllm", "version.torchtitan", "version.flytekit"} <= set(tags)
    assert git_state().items() <= tags.items()


def test_metrics_lie_at_their_steps(uri: str) -> None:
    run = opened(uri, "metrics")
    for step, reward in ((2, -0.2), (0, -0.4), (1, -0.3)):
        mlflow_run.log_metrics(run, {"rollout/reward_mean": reward, "train/loss": 1.0}, step)
    assert history(run, "rollout/reward_mean") == [(0, -0.4), (1, -0.3), (2, -0.2)]
    assert history(run, "health/dropped_non_finite") == []


def test_a_repeated_stage_draws_no_second_point(uri: str) -> None:
    run = opened(uri, "repeated")
    for step, seconds in ((7, 0.5), (7, 0.25), (6, 1.0), (7, 0.125), (6, 2.0), (8, 3.0)):
        mlflow_run.log_metrics(run, {"a/b": 1.0, "time/a_s": seconds}, step)
        time.sleep(0.005)  # MLflow's clock counts milliseconds
    assert history(run, "a/b") == [(6, 1.0), (7, 1.0), (8, 1.0)]
    assert history(run, "time/a_s") == [(6, 1.0), (7, 0.5), (8, 3.0)]


def test_a_stage_whose_metrics_are_all_dropped_says_how_many(uri: str) -> None:
    run = opened(uri, "none")
    mlflow_run.log_metrics(run, {"a/nan": math.nan}, 3)
    mlflow_run.log_metrics(run, {}, 4)
    assert history(run, "health/dropped_non_finite") == [(3, 1.0)]


def test_a_parameter_that_is_too_long_is_cut_visibly(uri: str) -> None:
    kept = record(opened(uri, "long", policy="p" * 7000, seed=0)).data.params
    assert len(kept["policy"]) == 6000 and kept["policy"].startswith("ppp")
    assert kept["policy"].endswith("ppp… (cut, 7,000 characters)")
    assert record(opened(uri, "long", policy="p" * 7000, seed=0)).data.tags.keys().isdisjoint({"resumed.policy"})


def test_values_that_are_not_finite_are_dropped_and_counted(uri: str) -> None:
    run = opened(uri, "finite")
    mlflow_run.log_metrics(run, {"a/nan": math.nan, "a/inf": -math.inf, "a/one": 1.0}, 3)
    assert history(run, "a/one") == [(3, 1.0)]
    assert history(run, "a/nan") == history(run, "a/inf") == []
    assert history(run, "health/dropped_non_finite") == [(3, 2.0)]


def test_a_failed_run_says_why(uri: str) -> None:
    run = opened(uri, "failed")
    mlflow_run.fail(uri, run.mlflow_run_id, "policy 3: mismatch 0.4" + "." * 100_000)
    assert record(run).info.status == "FAILED"
    assert record(run).data.tags["failure"].startswith("policy 3: mismatch 0.4")
    outbox.send(opened(uri, "failed"), status="FINISHED")
    assert record(run).info.status == "FINISHED"


def test_files_lie_beside_the_store(uri: str, tmp_path: Path) -> None:
    run = opened(uri, "files")
    (tmp_path / "curve.png").write_bytes(b"a picture")
    outbox.send(run, file=str(tmp_path / "curve.png"), folder="pictures")
    home = Path(uri.removeprefix("sqlite:///")).parent / "mlflow-artifacts"
    kept = home / run.mlflow_run_id / "artifacts" / "pictures" / "curve.png"
    assert kept.read_bytes() == b"a picture"


def test_the_default_store_lies_among_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert mlflow_run.tracking_uri() == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert not (tmp_path / "runs").exists()  # a question leaves nothing
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example:5000")
    assert mlflow_run.tracking_uri() == "http://mlflow.example:5000"


def test_two_processes_that_open_one_new_store_find_one_run_and_say_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/runs/mlflow.db"]
    pipe = subprocess.PIPE
    twins = [subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(2)]
    assert [twin.stdout.readline() for twin in twins if twin.stdout] == ["ready\n"] * 2
    for twin in twins:
        assert twin.stdin
        twin.stdin.write("go\n")
        twin.stdin.flush()
    said = [twin.communicate(timeout=60) for twin in twins]
    assert [twin.returncode for twin in twins] == [0, 0], said
    assert said[0] == said[1]  # the same run id and nothing else, on stdout
    assert said[0][0].strip().isalnum()
    assert said[0][1] == ""  # none of the notes that MLflow and alembic print


def test_a_process_killed_while_it_makes_a_store_leaves_no_half_of_one(tmp_path: Path) -> None:
    made, line = tmp_path / ".mlflow.db.new", [sys.executable, "-c", OPEN, f"sqlite:///{tmp_path}/mlflow.db"]
    killed = subprocess.Popen(line, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert killed.stdin and killed.stdout and killed.stdout.readline() == "ready\n"
    killed.stdin.write("go\n")
    killed.stdin.flush()
    while not made.exists() or made.stat().st_size < 200_000:  # of 700,000, with tables and without others
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    assert not (tmp_path / "mlflow.db").exists()
    assert history(opened(f"sqlite:///{tmp_path}/mlflow.db", "next"), "a/b") == []
    assert not list(tmp_path.glob(".mlflow.db.new*"))


@pytest.mark.parametrize(
    "given",
    ["http://somebody:secret@127.0.0.1:{port}", "file:///tmp/mlruns", "mlruns", "sqlite:////proc/no/m.db"],
)
def test_a_store_that_cannot_be_used_is_one_sentence_soon(given: str, closed_port: int) -> None:
    started = time.monotonic()
    given = given.format(port=closed_port)
    with pytest.raises(ValueError, match=r'^MLFLOW_TRACKING_URI is "[^"]+".*; allowed: [^.]*\.$') as caught:
        mlflow_run.open_run(uri=given, name="a", token="a", parameters={}, tags={})
    assert given.replace("somebody:secret", "***") in str(caught.value)
    assert time.monotonic() - started < 15
