"""Small nights of a schedule: the policy of the first is better than what it began from, that of the second is not."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from small import SMALL
from tasks.config import GrpoConfig
from tasks.evaluation.compare import Comparison
from tasks.policy.checkpoint import read_manifest
from tasks.seeds import fresh_seed
from tasks.tracking import registry
from tasks.tracking.mlflow_store import client

MODEL = "nights"
# The policy that this night begins with always hits when it is greedy, and loses: it is easy to improve.
START = datetime(2026, 11, 30, 2, 0, 0, tzinfo=UTC)
SETTINGS = {
    **SMALL,
    "rollout": {"groups": 64, "max_groups": 256, "group_size": 4},
    "training": {"minibatch_size": 32, "learning_rate": 3e-3, "warmup_iterations": 0},
    "tracking": {"model": MODEL},
}
TASKS = 512


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nights")


@pytest.fixture
def night(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Run `retrain` in this process; returns its promotion.json."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/runs/mlflow.db")

    def run(name: str, start: datetime, *, learning_rate: float = 3e-3, iterations: int = 4) -> dict:
        from workflows.retraining import retrain

        training = {**SETTINGS["training"], "learning_rate": learning_rate}
        config = GrpoConfig.from_dict({**SETTINGS, "training": training})
        retrain(run_name=name, start_time=start, iterations=iterations, tasks=TASKS, config=config)
        return json.loads((home / "runs" / name / "promotion.json").read_text())

    return run


def test_the_first_night_promotes_and_the_second_does_not(night: Callable[..., dict], home: Path) -> None:
    uri = f"sqlite:///{home}/runs/mlflow.db"
    first = night("first", START)
    runs = home / "runs"
    assert first["promoted"] and first["version"] == 2  # version 1 is what it began from
    trained = runs / "first" / "policies" / "00004"
    champion = registry.find(uri, f"models:/{MODEL}@champion")
    assert (champion.number, champion.uri, champion.digest) == (2, str(trained), read_manifest(trained).digest)
    compared = Comparison.from_json((runs / "first" / "comparisons" / "00004" / "comparison.json").read_text())
    assert compared.policy == champion.digest
    assert compared.other == read_manifest(runs / "first" / "policies" / "00000").digest
    assert (compared.tasks, compared.seed) == (TASKS, fresh_seed("first", int(START.timestamp())))
    assert first["why"] == f"version 2 of {MODEL} is champion, the first one: {compared.in_words}"
    assert json.loads((runs / "first" / "summary.json").read_text())["iterations"] == 4

    # A learning rate at which nothing is learned: the weights differ, the replies do not.
    second = night("second", START + timedelta(days=1), learning_rate=1e-9, iterations=1)
    assert not second["promoted"] and second["version"] == 3
    assert second["why"].startswith(f"version 2 of {MODEL} stays champion, version 3 is not surely better than it: ")
    assert registry.find(uri, f"models:/{MODEL}@champion") == champion
    assert registry.find(uri, f"models:/{MODEL}@challenger").number == 3
    began = json.loads((runs / "second" / "run.json").read_text())
    assert began["inputs"]["policy"] == f"models:/{MODEL}/2" and began["source"]["uri"] == str(trained)
    assert read_manifest(runs / "second" / "policies" / "00000").digest == champion.digest
    assert first["seed"] != second["seed"] and began["inputs"]["seed"] == int(START.timestamp()) + 24 * 3600

    mlflow = client(uri)
    run = mlflow.get_run(str(mlflow.get_model_version(MODEL, "3").run_id))
    assert run.info.status == "FINISHED" and run.data.tags["promotion"] == second["why"]
    assert run.data.params["policy.version"] == f"models:/{MODEL}/2"
    assert run.data.params["policy.digest"] == champion.digest
    measured = mlflow.get_model_version(MODEL, "2").tags
    assert {"reward", "reward_ci95", "regret", "invalid", "tasks"} <= measured.keys()
    assert (measured["run"], measured["policy_version"]) == ("first", "4")


def test_the_champion_is_compared_promoted_and_demoted(
    night: Callable[..., dict], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from workflows.evaluation import compare
    from workflows.promotion import demote, promote

    kept = json.loads((home / "runs" / "first" / "promotion.json").read_text())
    other = str(home / "runs" / "first" / "policies" / "00000")
    folder = compare(policy=f"models:/{MODEL}@champion", other=other, tasks=TASKS, seed=kept["seed"])
    again = Comparison.from_json((Path(folder.path) / "comparison.json").read_text())
    assert again.difference == kept["difference"]  # the tasks of a promotion can be played again
    shown = capsys.readouterr().out
    assert f"difference  {again.in_words}" in shown and "optimum" in shown
    assert Path(folder.path).parent == home / "runs" / "comparisons"

    said = f"version 3 of {MODEL} is champion, in the place of version 2: promoted by hand"
    assert promote(model=MODEL, version=3) == said and said in capsys.readouterr().out
    said = f"version 2 of {MODEL} is champion again, version 3 is not any more"
    assert demote(model=MODEL) == said and said in capsys.readouterr().out
    assert client(f"sqlite:///{home}/runs/mlflow.db").get_model_version(MODEL, "3").tags["promotion"].endswith(said)
    with pytest.raises(ValueError, match="version 9"):
        promote(model=MODEL, version=9)
