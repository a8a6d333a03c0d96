"""What a stage leaves on disk and in MLflow, in a real SQLite store, when it succeeds and when it fails."""

import json
from pathlib import Path

import pytest

from tasks import stages
from tasks.config import Run
from tasks.run.ending import Terminated
from tasks.stages import METRICS, last_evaluation, read_metrics, shard_context, stage, stage_folder
from tasks.tracking import mlflow_run
from tasks.tracking.mlflow_store import client


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture
def run(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of its own for each test, whose folder is below the test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "use_scratch_folder", lambda: None)  # which changes this process for good
    token = tmp_path.name
    run_id = mlflow_run.open_run(uri=uri, name=token, token=token, parameters={}, tags={})
    return Run(
        name=token,
        token=token,
        seed=0,
        environment="blackjack",
        environment_url="",
        mlflow_run_id=run_id,
        tracking_uri=uri,
    )


def in_mlflow(run: Run) -> tuple[str, str, dict[str, tuple[int, float]]]:
    """Status, reason of a failure, and the last step and value of each metric."""
    found, mlflow = client(run.tracking_uri).get_run(run.mlflow_run_id), client(run.tracking_uri)
    points = {name: mlflow.get_metric_history(run.mlflow_run_id, name)[-1] for name in found.data.metrics}
    metrics = {name: (point.step, point.value) for name, point in points.items()}
    return found.info.status, found.data.tags.get("failure", ""), metrics


def test_a_stage_that_succeeds_writes_its_metrics(run: Run) -> None:
    folder = stage_folder(run, "scored", 7)
    folder.mkdir(parents=True)
    with stage(run, "score_reference", step=7) as s:
        s.result, s.metrics, s.carried = folder, {"time/reference_s": 1.5, "reference/scored": 3.0}, {"started": 9.0}
        assert not (folder / METRICS).exists()
    written = read_metrics(folder)
    assert 0 < written.pop("stage/score_reference_s") < 60
    assert 0 < written.pop("memory/score_reference_gib") < 100
    assert written == {"started": 9.0, "time/reference_s": 1.5, "reference/scored": 3.0}
    status, _, logged = in_mlflow(run)
    assert status == "RUNNING"
    assert logged["time/reference_s"] == (7, 1.5)
    # Of what was measured, what has no chart stays on disk; what other stages measured, they have logged themselves.
    assert set(logged) == {"time/reference_s", "stage/score_reference_s", "memory/score_reference_gib"}


def test_a_stage_without_a_result_writes_nothing(run: Run) -> None:
    with stage(run, "report") as s:
        s.metrics = {"time/report_s": 1.0}
    assert in_mlflow(run)[2] == {}


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError("policy 3: mismatch 0.4."), "policy 3: mismatch 0.4."), (KeyboardInterrupt(), "")]
)
def test_a_stage_that_fails_marks_the_run_failed_with_the_reason(
    run: Run, tmp_path: Path, error: BaseException, reason: str
) -> None:
    with pytest.raises(type(error)), stage(run, "train", step=3) as s:
        s.result, s.metrics = tmp_path, {"train/loss": 0.5}
        raise error
    assert in_mlflow(run) == ("FAILED", reason or "KeyboardInterrupt", {})
    assert not (tmp_path / METRICS).exists()


def test_one_of_several_ranks_leaves_that_to_the_process_that_started_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ValueError), stage(run, "train"):
        raise ValueError("rank 1 waits for rank 0.")
    assert in_mlflow(run) == ("RUNNING", "", {})


def lose(run: Run, shard: int, allowed_failures: int, error: BaseException) -> BaseException:
    with (
        pytest.raises(BaseException) as caught,
        shard_context(run, "rollout 0", shard, of=4, allowed_failures=allowed_failures),
    ):
        raise error
    return caught.value


def test_a_shard_may_fail_as_long_as_enough_are_left(run: Run) -> None:
    first = ValueError("out of memory.")
    assert lose(run, 2, 1, first) is first
    assert in_mlflow(run)[:2] == ("RUNNING", "")
    second = lose(run, 0, 1, ValueError("no server."))
    assert str(second) == "rollout 0 lost 2 of 4 shards; allowed: 1. The last, shard 0: no server."
    assert isinstance(second, RuntimeError)
    assert in_mlflow(run)[:2] == ("FAILED", str(second))


def test_a_shard_that_succeeds_after_all_is_not_lost(run: Run) -> None:
    lose(run, 2, 1, ValueError("out of memory."))
    with shard_context(run, "rollout 0", 2, of=4, allowed_failures=1):
        pass
    error = ValueError("no server.")
    assert lose(run, 0, 1, error) is error
    assert in_mlflow(run)[:2] == ("RUNNING", "")


@pytest.mark.parametrize(("allowed_failures", "error"), [(0, ValueError("no server.")), (3, KeyboardInterrupt("^C"))])
def test_a_shard_whose_failure_ends_the_run(run: Run, allowed_failures: int, error: BaseException) -> None:
    assert lose(run, 0, allowed_failures, error) is error
    assert in_mlflow(run)[:2] == ("FAILED", str(error))


def test_the_last_evaluation_below_a_version(run: Run) -> None:
    assert last_evaluation(run, 9) is None
    for version in (0, 8, 16):
        folder = stage_folder(run, "evaluations", version)
        folder.mkdir(parents=True)
        (folder / "evaluation.json").write_text(json.dumps({"reward": {"mean": version / 100, "ci95": 0.02}}))
    stage_folder(run, "evaluations", 9).mkdir()  # one that is not an evaluation yet
    assert last_evaluation(run, 16) == (8, 0.08)
    assert last_evaluation(run, 17) == (16, 0.16)
    assert last_evaluation(run, 0) is None


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConnectionResetError("by peer"), "RUNNING"), (KeyboardInterrupt(), "KILLED"), (ValueError("x"), "FAILED")],
)
def test_what_a_cluster_tries_again_does_not_fail_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")
    for allowed_failures in (0, 1):
        with pytest.raises(BaseException), stage(run, "train"):  # noqa: B017
            raise error
        assert in_mlflow(run)[0] == status
        lose(run, 0, allowed_failures, error)
        assert in_mlflow(run)[0] == status
    assert not [
        tag
        for tag in client(run.tracking_uri).get_run(run.mlflow_run_id).data.tags
        if status != "FAILED" and tag.startswith("lost.")
    ]


def test_what_was_ended_from_outside_is_killed_until_it_is_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")

    def end(error: BaseException) -> tuple[str, str]:
        with pytest.raises(type(error)), stage(run, "train"):
            raise error
        return in_mlflow(run)[:2]

    assert end(Terminated()) == ("KILLED", "ended by SIGTERM")
    with stage(run, "train"):
        assert in_mlflow(run)[:2] == ("RUNNING", "")
    lose(run, 0, 1, Terminated())
    assert in_mlflow(run)[:2] == ("KILLED", "ended by SIGTERM")
    with shard_context(run, "rollout 0", 0, of=4, allowed_failures=1):
        assert in_mlflow(run)[:2] == ("RUNNING", "")
    # A stage has failed, and the cluster ends the pods beside it.
    with stage(run, "train"):
        assert end(ValueError("mismatch 0.4.")) == ("FAILED", "mismatch 0.4.")
        mlflow_run.kill(run.tracking_uri, run.mlflow_run_id, "ended by SIGTERM")
    with shard_context(run, "rollout 0", 0, of=4, allowed_failures=1):
        assert in_mlflow(run)[:2] == ("FAILED", "mismatch 0.4.")


def test_the_first_stage_after_a_recovery_sets_the_run_right(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow_run.fail(run.tracking_uri, run.mlflow_run_id, "memory ran out")
    with stage(run, "train"):
        assert in_mlflow(run)[0] == "FAILED"  # no matter on one machine, where create_run opens the run again
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")
    with stage(run, "train"):
        assert in_mlflow(run)[:2] == ("RUNNING", "")
    client(run.tracking_uri).set_terminated(run.mlflow_run_id, "FINISHED")
    with stage(run, "decide_promotion"):  # comes after the report
        assert in_mlflow(run)[0] == "FINISHED"
