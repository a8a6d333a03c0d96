"""Against a real SQLite file and a real `mlflow server`: what is registered is read back by MLflow's own client."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from servers import Server
from tasks.tracking import registry
from tasks.tracking.mlflow_store import client, experiment

REGISTER = """
import json, sys
from tasks.tracking import registry
import mlflow, mlflow.store.tracking.sqlalchemy_store
store, own = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for digest in ("same", own, "same too"):
    candidate = registry.Version(model="twins", uri="s3://policies/" + digest, digest=digest, run_id="", tags={})
    made = registry.register(store, candidate)
    print(made.name, made.digest)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('registry') / 'mlflow.db'}"


@pytest.fixture(params=["file", "server"])
def uri(request: pytest.FixtureRequest, file: str, mlflow_server: Server) -> str:
    return file if request.param == "file" else mlflow_server.url


def candidate(model: str, uri: str, digest: str, run_id: str = "", **tags: str) -> registry.Version:
    return registry.Version(model=model, uri=uri, digest=digest, run_id=run_id, tags=tags)


def policy(folder: Path, digest: str) -> Path:
    """A directory as far as the registry looks at it."""
    (folder / digest).mkdir()
    (folder / digest / "policy.json").write_text(json.dumps({"version": 1, "digest": digest, "parent": ""}))
    return folder / digest


def registered(store: str, model: str, folder: Path, digest: str) -> registry.Version:
    lies_at = folder / digest if (folder / digest).exists() else policy(folder, digest)
    run = client(store).create_run(experiment(store), run_name=digest)
    given = candidate(model, str(lies_at), digest, run.info.run_id, reward="-0.05", episodes="128")
    return registry.register(store, given, is_directory)


def is_directory(uri: str) -> bool:
    return Path(uri).is_dir()


def test_a_policy_is_one_version_by_reference_however_often_it_comes(uri: str, tmp_path: Path) -> None:
    first, second = (registered(uri, "once", tmp_path, digest) for digest in ("aa", "bb"))
    again = registered(uri, "once", tmp_path, "aa")
    assert (first.number, second.number, again) == (1, 2, first)
    assert (first.name, first.uri) == ("models:/once/1", str(tmp_path / "aa"))
    found = client(uri).get_model_version("once", "1")
    assert found.tags == {"uri": str(tmp_path / "aa"), "digest": "aa", "reward": "-0.05", "episodes": "128"}
    assert client(uri).get_run(found.run_id).info.run_name == "aa"
    # A server takes no path of another machine for a source: there it is the run's, and the tag has the path.
    assert found.source == (f"runs:/{found.run_id}/policies/aa" if uri.startswith("http") else str(tmp_path / "aa"))
    assert {k: int(v) for k, v in client(uri).get_registered_model("once").aliases.items()} == {"challenger": 2}


def test_a_policy_in_object_storage_is_its_own_source(uri: str) -> None:
    stored = "s3://bucket/raw/policies/00032"
    registry.register(uri, candidate("far", stored, "aa"))
    assert client(uri).get_model_version("far", "1").source == stored
    assert registry.find(uri, "models:/far@challenger").uri == stored


def test_a_version_moves_only_where_its_weights_are_gone(file: str, tmp_path: Path) -> None:
    version = registered(file, "moved", tmp_path, "aa")
    (tmp_path / "elsewhere").mkdir()
    other = policy(tmp_path / "elsewhere", "aa")

    def again() -> registry.Version:
        return registry.register(file, candidate("moved", str(other), "aa", episodes="7"), is_directory)

    assert again() == version
    Path(version.uri).rename(tmp_path / "away")
    assert again() == registry.Version(model="moved", number=1, uri=str(other), digest="aa")
    assert registry.find(file, "models:/moved/1").uri == str(other)
    assert client(file).get_model_version("moved", "1").tags["episodes"] == "128"  # what was measured stays


def test_a_version_that_is_made_late_is_no_challenger_of_a_later_policy_of_its_run(uri: str) -> None:
    run_id = client(uri).create_run(experiment(uri)).info.run_id
    for version in (8, 16, 0):  # the server was away when policy 0 was evaluated
        registry.register(
            uri, candidate("late", f"s3://policies/{version}", f"{version}", run_id, policy_version=f"{version}")
        )
    assert registry.find(uri, "models:/late@challenger").digest == "16"
    registry.register(uri, candidate("late", "s3://policies/next", "next", "another run", policy_version="0"))
    assert registry.find(uri, "models:/late@challenger").digest == "next"


def answer_lost_once(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The next request of this kind is made, and then raises."""
    real = getattr(MlflowClient, method)

    @functools.wraps(real)
    def once(self: MlflowClient, *given: Any, **named: Any) -> None:
        monkeypatch.setattr(MlflowClient, method, real)
        real(self, *given, **named)
        raise MlflowException("refused")

    monkeypatch.setattr(MlflowClient, method, once)


@pytest.mark.parametrize("method", ["create_registered_model", "create_model_version", "set_registered_model_alias"])
def test_a_policy_whose_answer_is_lost_is_registered_once(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    model = f"lost-{method}"
    answer_lost_once(monkeypatch, method)
    assert registered(uri, model, tmp_path, "aa").number == 1
    assert registry.find(uri, f"models:/{model}@challenger").number == 1
    assert len(client(uri).search_model_versions(f"name = '{model}'")) == 1


def test_a_surplus_version_of_the_run_is_deleted(uri: str) -> None:
    mlflow, run_ids = client(uri), ("run", "another run")
    mlflow.create_registered_model("surplus")
    for run_id in ("run", "run", "another run", "run"):
        mlflow.create_model_version("surplus", "s3://bucket/a", run_id, tags={"digest": "aa"}, await_creation_for=0)
    assert registry.register(uri, candidate("surplus", "s3://bucket/a", "aa", "run")).number == 1
    left = mlflow.search_model_versions("name = 'surplus'")
    assert sorted((int(version.version), version.run_id) for version in left) == [(1, run_ids[0]), (3, run_ids[1])]


@pytest.mark.parametrize("method", ["set_registered_model_alias", "set_registered_model_tag"])
def test_a_promotion_whose_answer_is_lost_is_one_promotion(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    model = f"lost-{method}-of-a-promotion"
    for digest in ("aa", "bb", "cc"):
        registered(uri, model, tmp_path, digest)
    for number in (1, 2, 3):
        answer_lost_once(monkeypatch, method)
        assert registry.promote(uri, model, number, "why")[0]
    down = []
    for _ in range(2):
        answer_lost_once(monkeypatch, method)
        down.append(registry.demote(uri, model))
    answer_lost_once(monkeypatch, "delete_registered_model_alias")
    assert down == [
        (3, f"version 2 of {model} is champion again, version 3 is not any more"),
        (2, f"version 1 of {model} is champion again, version 2 is not any more"),
    ]
    assert registry.find(uri, f"models:/{model}@champion").number == 1
    assert registry.demote(uri, model)[0] == 1 and registry.champion(uri, model) is None


def test_names_of_versions(uri: str, tmp_path: Path) -> None:
    for digest in ("aa", "bb", "cc"):
        registered(uri, "names", tmp_path, digest)
    registry.promote(uri, "names", 2, "by hand")
    found = {name: registry.find(uri, f"models:/names{name}").number for name in ("/1", "@champion", "@challenger")}
    assert found == {"/1": 1, "@champion": 2, "@challenger": 3}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("models:/refused", "allowed in the registry: models:/NAME@champion, "),
        ("models:/refused/0", "allowed in the registry: models:/NAME@champion, "),
        ("models:/refused/9", "and refused has no version 9; allowed: its versions (1)."),
        ("models:/refused@champion", "and no version is called so; allowed: models:/refused@challenger."),
        (
            "models:/nobody@champion",
            "and the registry has no model nobody; allowed: a model that a run has registered.",
        ),
    ],
)
def test_a_name_of_nothing_is_refused_in_one_sentence(name: str, sentence: str, file: str, tmp_path: Path) -> None:
    registered(file, "refused", tmp_path, "aa")
    with pytest.raises(ValueError) as caught:
        registry.find(file, name)
    assert str(caught.value).startswith(f'policy is "{name}"') and sentence in str(caught.value)


def test_a_question_makes_no_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert registry.champion(uri, "nobody") is None
    with pytest.raises(ValueError, match="the registry has no model nobody"):
        registry.find(uri, "models:/nobody/1")
    assert not list(tmp_path.iterdir())


def test_promotions_and_demotions(uri: str, tmp_path: Path) -> None:
    for digest in ("aa", "bb", "cc"):
        registered(uri, "stairs", tmp_path, digest)

    def number() -> int:
        found = registry.champion(uri, "stairs")
        return found.number if found else 0

    with pytest.raises(ValueError, match='model is "stairs", which has no champion'):
        registry.demote(uri, "stairs")
    with pytest.raises(ValueError, match=r"version is 4, and stairs has no version 4; allowed: its versions \(1, 2, 3"):
        registry.promote(uri, "stairs", 4, "")
    steps = []
    for up in (1, 3, 1):
        steps.append(registry.promote(uri, "stairs", up, "why"))
        assert number() == up
    assert steps == [
        (True, "version 1 of stairs is champion, the first one: why"),
        (True, "version 3 of stairs is champion, in the place of version 1: why"),
        (True, "version 1 of stairs is champion, in the place of version 3: why"),
    ]
    assert registry.promote(uri, "stairs", 1, "why") == steps[-1]  # a repeated stage changes nothing
    # A champion whose alias was set by hand counts as the one before, too.
    client(uri).set_registered_model_alias("stairs", "champion", "2")
    registry.promote(uri, "stairs", 3, "why")
    down = []
    for before in (2, 1, 3, 1, 0):
        lost, said = registry.demote(uri, "stairs")
        down.append(lost)
        assert number() == before
        assert f"version {lost}" in said and (f"version {before} " in said or "no champion" in said)
    assert down == [3, 2, 1, 3, 1]


def test_a_champion_that_changed_meanwhile_stays(uri: str, tmp_path: Path) -> None:
    for digest in ("aa", "bb", "cc"):
        registered(uri, "stale", tmp_path, digest)
    assert registry.promote(uri, "stale", 2, "found", over="aa")[0]  # there is no champion yet
    promoted, said = registry.promote(uri, "stale", 3, "found", over="aa")
    assert not promoted
    assert said == (
        "version 2 of stale stays champion, it became so meanwhile: version 3 was compared with another policy (found)"
    )
    assert registry.find(uri, "models:/stale@champion").number == 2
    assert registry.promote(uri, "stale", 3, "found", over="bb")[0]


def test_a_decision_is_kept_with_version_and_run(uri: str, tmp_path: Path) -> None:
    registered(uri, "noted", tmp_path, "aa")
    run_id = client(uri).get_model_version("noted", "1").run_id
    registry.note(
        uri, "noted", 1, "it stays", run_id=run_id, **{"comparison.difference": 0.5 / 3, "comparison.tasks": 64}
    )
    tags = client(uri).get_model_version("noted", "1").tags
    assert tags["promotion"].endswith(" UTC: it stays") and tags["promotion"].startswith("20")
    assert (tags["comparison.difference"], tags["comparison.tasks"]) == ("0.166667", "64")
    assert client(uri).get_run(run_id).data.tags["promotion"] == "it stays"


def test_two_processes_that_register_at_once_make_each_policy_one_version(uri: str) -> None:
    pipe = subprocess.PIPE
    twins = [
        subprocess.Popen([sys.executable, "-c", REGISTER, uri, own], text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        for own in ("left", "right")
    ]
    assert [twin.stdout.readline() for twin in twins if twin.stdout] == ["ready\n"] * 2
    for twin in twins:
        assert twin.stdin
        twin.stdin.write("go\n")
        twin.stdin.flush()
    said = [twin.communicate(timeout=120) for twin in twins]
    assert [twin.returncode for twin in twins] == [0, 0], said
    assert [error for _, error in said] == ["", ""]
    versions = client(uri).search_model_versions("name = 'twins'")
    assert sorted(version.tags["digest"] for version in versions) == ["left", "right", "same", "same too"]
    named = {f"models:/twins/{version.version} {version.tags['digest']}" for version in versions}
    assert {line for out, _ in said for line in out.split("\n") if line} == named
    newest = max(int(version.version) for version in versions)
    assert registry.find(uri, "models:/twins@challenger").number == newest
