"""Against a real `mlflow server` on the loopback interface that is killed, and started again, while stages write."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from runs import a_run
from servers import Server
from slow_server import slow_server
from tasks.config import GrpoConfig, Run, TrackingConfig
from tasks.lineage.records import BatchUse, PolicyName
from tasks.lineage.training import log_datasets
from tasks.policy.named import Source
from tasks.records import write_batch
from tasks.run.create import open_run
from tasks.stages import write_metrics
from tasks.tracking import mlflow_run, mlflow_store, outbox, registry
from tasks.tracking.provenance import flyte_execution

TINY = Source(given="tiny", uri="tiny")
TRAINING = """
import sys
from pathlib import Path
from runs import a_run
from tasks.tracking import mlflow_run, outbox
import mlflow, mlflow.store.artifact.mlflow_artifacts_repo
uri, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
run_id = mlflow_run.open_run(uri=uri, name=name, token=name, parameters={"seed": 3, "environment_url": ""}, tags={})
mlflow_run.keep_config(uri, run_id, {"training": {"epochs": 4}})
run = a_run(name, uri, run_id)
for version in range(20):
    mlflow_run.log_metrics(run, {"train/loss": version / 4, "train/kl": 0.5}, version)
Path(f"{name}.txt").write_text(name)
outbox.send(run, file=f"{name}.txt", folder="pictures")
outbox.send(run, status="FINISHED")
print(run_id)
"""


@pytest.fixture
def server(mlflow_server: Server) -> Iterator[Server]:
    """A test may kill it; the next one finds it running."""
    mlflow_store.ask_again(mlflow_server.url)
    yield mlflow_server
    mlflow_server.start()
    mlflow_store.note_answer(mlflow_server.url, True)


def opened(uri: str, token: str) -> Run:
    run_id = mlflow_run.open_run(uri=uri, name=token, token=token, parameters={}, tags={})
    return a_run(token, uri, run_id)


def points(run: Run, name: str) -> list[tuple[int, float]]:
    """(step, value) of every point, a doubled one twice."""
    found = mlflow_store.client(run.tracking_uri).get_metric_history(run.mlflow_run_id, name)
    return sorted((point.step, point.value) for point in found)


def artifacts(run: Run, folder: str = "") -> set[str]:
    return {a.path for a in mlflow_store.client(run.tracking_uri).list_artifacts(run.mlflow_run_id, folder)}


def candidate(run: Run, model: str, version: int) -> registry.Version:
    """Policy `version` of the run, as far as the registry looks at it."""
    return registry.Version(
        model=model,
        uri=f"s3://bucket/policies/{version}",
        digest=f"{model}-{version}",
        run_id=run.mlflow_run_id,
        tags={"policy_version": str(version)},
    )


def made(folder: Path) -> Path:
    """The folder of a stage's result."""
    folder.mkdir(parents=True)
    return folder


def in_another_pod(folder: Path) -> Path:
    """The folder as the next stage downloads it: elsewhere, and what this pod knew is gone."""
    return Path(shutil.move(folder, folder.with_name(f"{folder.name} downloaded")))


@pytest.mark.parametrize("store", ["server", "file"])
def test_two_trainings_write_to_one_store_at_once(store: str, server: Server, tmp_path: Path) -> None:
    uri = server.url if store == "server" else f"sqlite:///{tmp_path / 'mlflow.db'}"
    pipe, names = subprocess.PIPE, ("first", "second")
    lines = [[sys.executable, "-c", TRAINING, uri, name] for name in names]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    trainings = [
        subprocess.Popen(line, text=True, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path, env=environment)
        for line in lines
    ]
    assert [training.stdout.readline() for training in trainings if training.stdout] == ["ready\n"] * 2
    for training in trainings:
        assert training.stdin
        training.stdin.write("go\n")
        training.stdin.flush()
    said = [training.communicate(timeout=120) for training in trainings]
    assert [training.returncode for training in trainings] == [0, 0] and [err for _, err in said] == ["", ""], said
    mlflow = mlflow_store.client(uri)
    for name, (out, _) in zip(names, said, strict=True):
        run = a_run(name, uri, out.strip())
        record = mlflow.get_run(run.mlflow_run_id)
        assert record.info.status == "FINISHED"
        assert record.info.artifact_uri.startswith("mlflow-artifacts:") == (store == "server")
        assert record.data.params == {"seed": "3", "environment_url": ""}
        assert points(run, "train/loss") == [(version, version / 4) for version in range(20)]
        kept = mlflow.download_artifacts(run.mlflow_run_id, f"pictures/{name}.txt", str(tmp_path))
        assert Path(kept).read_text() == name
        config = mlflow.download_artifacts(run.mlflow_run_id, "config.json", str(tmp_path))
        assert json.loads(Path(config).read_text()) == {"training": {"epochs": 4}}


def test_an_attempt_on_another_disk_finds_the_run_of_its_execution(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    assert flyte_execution() == {}
    for part, value in {"PROJECT": "grpo", "DOMAIN": "development", "ID": "f3a9", "LAUNCHPLAN": "nightly"}.items():
        monkeypatch.setenv(f"FLYTE_INTERNAL_EXECUTION_{part}", value)
    inputs = {"run_name": "", "policy": "tiny", "environment": "blackjack", "environment_url": ""}
    inputs |= {"iterations": 4, "seed": 3}
    config = GrpoConfig(tracking=TrackingConfig(model="cards"))
    runs = []
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        monkeypatch.chdir(tmp_path / attempt)
        runs.append(open_run(dict(inputs), config, config, {"training": 2.0**30}, TINY, flyte_execution()))
        time.sleep(0.005)
    assert runs[0] == runs[1]
    assert (runs[0].name, runs[0].token) == ("blackjack-f3a9", "grpo/development/f3a9")
    assert abs(runs[0].started - time.time()) < 60
    data = mlflow_store.client(server.url).get_run(runs[0].mlflow_run_id).data
    assert data.tags["flyte.execution"] == "grpo/development/f3a9" and data.tags["flyte.launch_plan"] == "nightly"
    assert (data.params["tracking.model"], data.params["memory.expected_training_gib"]) == ("cards", "1.00")
    kept = mlflow_store.client(server.url).download_artifacts(runs[0].mlflow_run_id, "config.json", str(tmp_path))
    assert GrpoConfig.from_json(Path(kept).read_text()) == config
    # Another execution of the same inputs is another run; and without one, a run is known by its folder.
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "b7c1")
    assert open_run(dict(inputs), config, config, {}, TINY, flyte_execution()).mlflow_run_id != runs[0].mlflow_run_id
    named = {**inputs, "run_name": "monday"}
    assert open_run(named, config, config, {}, TINY, {}) == open_run(named, config, config, {}, TINY, {})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(ValueError, match=r'^MLFLOW_TRACKING_URI is "sqlite:.*"; allowed: on a cluster, .*server\.$'):
        open_run(dict(inputs), config, config, {}, TINY, flyte_execution())
    assert not (tmp_path / "mlflow.db").exists()


def test_a_batch_is_a_dataset_of_the_run_once_also_after_an_outage(server: Server, tmp_path: Path) -> None:
    run = opened(server.url, "datasets")
    rows = pa.table({"policy_version": pa.array([3], pa.int32()), "token_ids": [[1, 2]], "reward": [0.5]})
    folder = write_batch(rows, tmp_path / "trajectories" / "00003")
    remote, uses = "s3://bucket/x/batch", {}
    for iteration, uri in ((3, str(folder)), (4, remote)):
        sampler = PolicyName(version=iteration, digest=f"digest-{iteration}", uri=f"policies/{iteration:05d}")
        uses[uri] = BatchUse(
            uri=uri,
            digest=f"{iteration}" * 64,
            iteration=iteration,
            sampled_by=sampler,
            episodes=8,
            groups=4,
            age=1,
            used=["00003-00001"],
        )
    log_datasets(run, {str(folder): uses[str(folder)]}, {str(folder): folder}, 4)
    server.kill()
    policy = made(tmp_path / "policy")
    log_datasets(run, uses, dict.fromkeys(uses, folder), 5)
    write_metrics(run, policy, {"train/loss": 0.25}, step=4)
    server.start()
    for _ in range(2):
        outbox.flush_pending(run, [policy])
    inputs = mlflow_store.client(server.url).get_run(run.mlflow_run_id).inputs.dataset_inputs
    first, second = sorted(inputs, key=lambda found: found.dataset.name)
    assert (first.dataset.name, first.dataset.digest) == ("datasets/trajectories/00003", "3" * 36)
    assert (first.dataset.source_type, json.loads(first.dataset.source)) == ("local", {"uri": str(folder)})
    assert (second.dataset.source_type, json.loads(second.dataset.source)) == ("s3", {"uri": remote})
    tags = {"iteration": "3", "sampled_by_policy": "3", "trained_policy": "4"}
    assert {tag.key: tag.value for tag in first.tags} == {"mlflow.data.context": "training", **tags}
    columns = {c["name"]: c["type"] for c in json.loads(first.dataset.schema)["mlflow_colspec"]}
    assert columns == {"policy_version": "int32", "token_ids": "list<item: int64>", "reward": "double"}
    assert json.loads(first.dataset.profile) == {**uses[str(folder)].to_dict(), "used": 1}


def test_what_another_run_left_in_a_folder_is_not_sent(server: Server, tmp_path: Path) -> None:
    first, other = opened(server.url, "mine"), opened(server.url, "other")
    left = [
        outbox.Entry(run_id=run.mlflow_run_id, time_ms=1000, step=1, metrics={"train/loss": 0.5})
        for run in (first, other)
    ]
    (tmp_path / "_pending.json").write_text(json.dumps([entry.to_dict() for entry in left]))
    outbox.flush_pending(first, [tmp_path])
    assert (points(first, "train/loss"), points(other, "train/loss")) == ([(1, 0.5)], [])


def test_what_mlflow_refuses_ends_no_stage_and_delays_nothing(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    run = opened(server.url, "refused")
    mlflow_run.log_metrics(run, {"train loss = 3": 0.5}, 0)
    mlflow_run.log_metrics(run, {"train/loss": 0.5}, 0)
    assert points(run, "train/loss") == [(0, 0.5)]
    outbox.report_pending(run, {})
    shown = capsys.readouterr().out
    assert f"MLflow at {server.url} refuses: INVALID_PARAMETER_VALUE" in shown and "is away" not in shown
    assert "lacks 1 records" in shown


def test_a_server_that_comes_back_misses_nothing_and_has_nothing_twice(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = opened(server.url, "outage")
    server.kill()
    started = time.monotonic()
    rollout = made(tmp_path / "rollout")
    write_metrics(run, rollout, {"rollout/episodes": 96.0}, step=4)
    rollout = in_another_pod(rollout)
    policy = made(tmp_path / "policy")
    write_metrics(run, policy, {"train/loss": 0.25}, step=4, sources=[rollout])
    policy = in_another_pod(policy)
    evaluation = made(tmp_path / "evaluation")
    (evaluation / "choices.png").write_bytes(b"a picture")
    (tmp_path / "curve.png").write_bytes(b"a curve")
    outbox.send(run, file=str(evaluation / "choices.png"), folder="evaluations/00005")
    outbox.send(run, file=str(tmp_path / "curve.png"), folder="pictures")
    outbox.send(run, policy=candidate(run, "outage", 5))
    write_metrics(run, evaluation, {"eval/reward": 0.5}, step=5)
    (tmp_path / "curve.png").unlink()
    evaluation = in_another_pod(evaluation)
    assert time.monotonic() - started < 10
    away = int(time.time() * 1000)

    server.start()
    monkeypatch.setattr(mlflow_store, "PAUSE_SECONDS", 0)
    mlflow_store.ask_again(run.tracking_uri)  # as in a pod, which knows nothing of the outage
    later = made(tmp_path / "later")
    write_metrics(run, later, {"train/loss": 0.125}, step=5, sources=[policy])
    outbox.send(run, policy=candidate(run, "outage", 6))  # a later evaluation, before the report
    assert points(run, "rollout/episodes") == [(4, 96.0)]
    assert points(run, "train/loss") == [(4, 0.25), (5, 0.125)]
    assert not (later / "_pending.json").exists()
    # Two of these were sent before: by the stage above, and by an earlier attempt at the report.
    outbox.flush_pending(run, [policy, rollout, evaluation])
    outbox.flush_pending(run, [evaluation, later])
    assert points(run, "rollout/episodes") == [(4, 96.0)]
    assert points(run, "train/loss") == [(4, 0.25), (5, 0.125)]
    assert points(run, "eval/reward") == [(5, 0.5)]
    assert artifacts(run, "evaluations/00005") == {"evaluations/00005/choices.png"}
    assert artifacts(run, "pictures") == {"pictures/curve.png"}
    versions = mlflow_store.client(server.url).search_model_versions("name = 'outage'")
    assert sorted(version.tags["digest"] for version in versions) == ["outage-5", "outage-6"]
    assert registry.find(server.url, "models:/outage@challenger").digest == "outage-6"
    (point,) = mlflow_store.client(server.url).get_metric_history(run.mlflow_run_id, "rollout/episodes")
    assert point.timestamp <= away  # when it was measured, not when it came

    outbox.report_pending(run, {"policy": policy})
    shown = capsys.readouterr().out
    assert shown.count(f"MLflow at {server.url} is away") == shown.count("is there again") == 1
    assert "lacks" not in shown


def test_a_server_that_stays_away_is_named_with_what_it_lacks(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = opened(server.url, "lost")
    server.kill()
    policy, evaluation = made(tmp_path / "policy"), made(tmp_path / "evaluation")
    write_metrics(run, policy, {"train/loss": 0.25, "train/kl": 0.5}, step=4)
    for version in (4, 5):
        outbox.send(run, policy=candidate(run, "lost", version))
    write_metrics(run, evaluation, {"eval/reward": 0.5}, step=5)
    outbox.flush_pending(run, [evaluation, policy])
    outbox.send(run, status="FINISHED")
    outbox.report_pending(run, {"s3://bucket/5": evaluation, "s3://bucket/4": policy})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "lacks" in line]
    assert f"MLflow at {server.url} lacks 5 records of this run, among them the versions of " in line
    assert "of s3://bucket/policies/4, s3://bucket/policies/5: what stages measured lies in " in line
    assert "_pending.json of s3://bucket/4 and 1 other folders" in line
    (left,) = json.loads((policy / "_pending.json").read_text())
    assert (left["step"], left["metrics"]) == (4, {"train/loss": 0.25, "train/kl": 0.5})


def test_a_stage_waits_once_for_a_server_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT

    # What a stage waits, in seconds, and some for the start of a connection.
    assert MLFLOW_HTTP_REQUEST_TIMEOUT.get() * (1 + MLFLOW_HTTP_REQUEST_MAX_RETRIES.get()) <= 20
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # and nothing accepts
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ValueError, match=r'^MLFLOW_TRACKING_URI is ".*" \(no answer\); allowed: '):
            opened(uri, "hangs")
        assert time.monotonic() - started < 15
        run, started = a_run("hangs", uri), time.monotonic()
        folder = made(tmp_path / "policy")
        for step in range(10):
            write_metrics(run, folder, {"train/loss": 0.25}, step=step, sources=[folder])
        assert time.monotonic() - started < 8
    assert len(json.loads((folder / "_pending.json").read_text())) == 10


def test_a_slow_server_gets_everything(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "policy")
    (folder / "choices.png").write_bytes(b"a picture")
    with slow_server(server.url) as slow:
        slow.seconds = 0.1  # each answer
        run = opened(slow.url, "slow")
        for step in range(3):
            write_metrics(run, folder, {"train/loss": step / 4}, step=step, sources=[folder])
        outbox.send(run, file=str(folder / "choices.png"), folder="pictures")
        outbox.send(run, policy=candidate(run, "slow", 3))
        outbox.send(run, status="FINISHED")
    there = run.replace(tracking_uri=server.url)
    assert points(there, "train/loss") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert artifacts(there, "pictures") == {"pictures/choices.png"}
    assert registry.find(server.url, "models:/slow@challenger").digest == "slow-3"
    assert mlflow_store.client(server.url).get_run(run.mlflow_run_id).info.status == "FINISHED"
    assert not (folder / "_pending.json").exists() and capsys.readouterr().out == ""


def test_what_a_server_took_but_said_too_late_is_there_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made(tmp_path / "rollout"), made(tmp_path / "policy")
    with slow_server(server.url) as slow:
        run = opened(slow.url, "late")
        slow.part, slow.seconds = "runs/log-batch", 2.0
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        write_metrics(run, first, {"rollout/episodes": 96.0}, step=4)
        assert any(slow.part in path for path in slow.passed[-2:])  # the server behind has them
        assert len(json.loads((first / "_pending.json").read_text())) == 1
        assert points(run.replace(tracking_uri=server.url), "rollout/episodes") == [(4, 96.0)]
        slow.seconds = 0.0
        mlflow_store.ask_again(slow.url)
        write_metrics(run, second, {"train/loss": 0.5}, step=4, sources=[first])
    there = run.replace(tracking_uri=server.url)
    assert points(there, "rollout/episodes") == [(4, 96.0)] and points(there, "train/loss") == [(4, 0.5)]
    assert not (second / "_pending.json").exists()
    shown = capsys.readouterr().out
    assert f"MLflow at {slow.url} is away" in shown and f"MLflow at {slow.url} is there again" in shown
