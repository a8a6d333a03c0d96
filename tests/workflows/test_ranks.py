"""A training on two ranks, started as a user starts it, beside the same one on one rank."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from small import SMALL

TWO = {"training": {**SMALL["training"], "ranks": 2}}
# Two ranks add the parts of a gradient in another order. Measured: 1.2e-7 on a weight, 2e-6 of a metric, and 2e-8 on a
# loss that is a difference of nearly equal numbers. The limit leaves room for other processors.
NEAR = 1e-5
LOST = "mismatch between generator and trainer on policy version 0, batch 00000, is "


@pytest.fixture(scope="module")
def ranks_run(home: Path, command) -> Path:
    line, environment = command("--run_name", "ranks", config=TWO)
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (home / "ranks.txt").write_text(done.stdout + done.stderr)
    return home / "runs" / "ranks"


def measured(run: Path, version: int) -> dict[str, float]:
    """What the training of a policy measured, but for seconds and memory."""
    metrics = json.loads((run / "policies" / f"{version:05d}" / "_metrics.json").read_text())
    return {
        name: value
        for name, value in metrics.items()
        if name.split("/")[0] in ("train", "buffer") and not name.endswith("_per_s")
    }


def test_two_ranks_train_as_one_does(ranks_run: Path, reference_run: Path) -> None:
    for version in (1, 2):
        by_two, by_one, before = (
            load_file(run / "policies" / f"{v:05d}" / "model.safetensors")
            for run, v in ((ranks_run, version), (reference_run, version), (reference_run, version - 1))
        )
        assert by_two.keys() == by_one.keys()
        for name, weight in by_one.items():
            assert (by_two[name] - weight).abs().max() < NEAR, name
        assert max((weight - before[name]).abs().max() for name, weight in by_one.items()) > 100 * NEAR
        one, two = (measured(run, version) for run in (reference_run, ranks_run))
        for name in ("train/mismatch_mean", "train/mismatch_max"):  # rounding only, in both
            assert 0 < one.pop(name) < NEAR and 0 < two.pop(name) < NEAR
        assert len(one) > 10 and two == pytest.approx(one, rel=NEAR, abs=NEAR / 10)
    found, wanted = (json.loads((run / "summary.json").read_text()) for run in (ranks_run, reference_run))
    for name in ("reward", "metrics", "baselines", "episodes", "iterations"):
        assert found[name] == wanted[name], name


def test_only_the_first_rank_prints_and_logs(ranks_run: Path, home: Path) -> None:
    from tasks.tracking.mlflow_store import client

    shown = (home / "ranks.txt").read_text()
    assert [shown.count(f"policy {version}/2") for version in (1, 2)] == [1, 1]
    assert not [word for word in ("Warning", "WARNING", "ENV[", "Traceback") if word in shown], shown
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    run_id = json.loads((ranks_run / "summary.json").read_text())["mlflow_run_id"]
    for name in ("train/loss", "train/grad_norm", "time/train_s"):
        assert [m.step for m in mlflow.get_metric_history(run_id, name)] == [0, 1], name
    assert mlflow.get_run(run_id).data.params["training.ranks"] == "2"
    assert mlflow.get_run(run_id).info.status == "FINISHED"


def test_all_ranks_write_one_state_and_nothing_is_left_behind(ranks_run: Path, home: Path) -> None:
    for version in (1, 2):
        (written,) = (ranks_run / "states" / f"{version:05d}").iterdir()
        assert {path.name for path in written.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    for folder in ("policies", "states"):
        assert [path.name for path in (ranks_run / folder).iterdir() if path.name.startswith(".")] == []
    scratch = [path.name for path in (home / "runs" / ".tmp").iterdir()]
    assert [
        name for name in scratch if f"-{os.getpid()}." not in name
    ] == []  # tests that train in this process have theirs


def test_a_run_continues_with_other_ranks(ranks_run: Path, home: Path, command) -> None:
    last = ranks_run / "policies" / "00002" / "policy.json"
    written = last.stat().st_mtime_ns
    line, environment = command("--run_name", "ranks")
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert last.stat().st_mtime_ns == written  # both versions were there already


@pytest.mark.parametrize(
    ("name", "config", "error", "sentence"),
    [
        ("apart", {"algorithm": {"max_mismatch": 1e-12}}, ValueError, LOST),
        (
            "burst",
            {"training": {"learning_rate": 1e30, "warmup_iterations": 0}},
            FloatingPointError,
            "training of policy version 0 stopped in epoch ",
        ),
    ],
)
def test_ranks_that_fail_say_why_in_one_sentence(
    train, home: Path, name: str, config: dict, error: type[Exception], sentence: str
) -> None:
    import tasks.training.task  # noqa: F401, first: flytekit has a handler of its own
    from tasks.tracking.mlflow_store import client

    handler, training = signal.getsignal(signal.SIGINT), {**config.get("training", {}), "ranks": 2}
    with pytest.raises(error, match=sentence) as caught:
        train(name, iterations=1, config={**config, "training": training})
    said = str(caught.value).strip().splitlines()[-1]
    assert sentence in said and "allowed: " in said
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    (run,) = mlflow.search_runs(
        [mlflow.get_experiment_by_name("grpo").experiment_id], f"attributes.run_name = '{name}'"
    )
    assert run.info.status == "FAILED"
    assert run.data.tags["failure"].startswith(sentence)
    assert not list((home / "runs" / name).glob("policies/00001")) + list((home / "runs" / name).glob("states/*"))
    assert signal.getsignal(signal.SIGINT) is handler
