"""Against a real SQLite file and a real `mlflow server`: what is registered is read back by MLflow's own client."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.tracking import registry
from tasks.tracking.mlflow_store import client, experiment

REGISTER = """
import json, sys
from tasks.tracking import registry
import mlflow, mlflow.store.tracking.sqlalchemy_store
uri, own = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for digest in ("same", own, "same too"):
    place = "s3://policies/" + digest
    made = registry.register(uri, registry.Candidate("twins", place, digest, "", {}), lambda place: True)
    print(made.name, made.digest)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    line += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", str(home / "artifacts")]
    with open(home / "log.txt", "w") as log:
        process = subprocess.Popen(
            line, cwd=home, stdout=log, stderr=log, env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        )
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('registry') / 'mlflow.db'}"


@pytest.fixture(params=["file", "server"])
def uri(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


def policy(folder: Path, digest: str) -> Path:
    """A directory as far as the registry looks at it."""
    (folder / digest).mkdir()
    (folder / digest / "policy.json").write_text(json.dumps({"version": 1, "digest": digest, "parent": ""}))
    return folder / digest


def registered(uri: str, model: str, folder: Path, digest: str) -> registry.Version:
    place = folder / digest if (folder / digest).exists() else policy(folder, digest)
    run = client(uri).create_run(experiment(uri), run_name=digest)
    tags = {"expected_reward": "-0.05", "games": "128"}
    return registry.register(uri, registry.Candidate(model, str(place), digest, run.info.run_id, tags))


def test_a_policy_is_one_version_by_reference_however_often_it_comes(uri: str, tmp_path: Path) -> None:
    first, second = (registered(uri, "once", tmp_path, digest) for digest in ("aa", "bb"))
    again = registered(uri, "once", tmp_path, "aa")
    assert (first.number, second.number, again) == (1, 2, first)
    assert (first.name, first.place) == ("models:/once/1", str(tmp_path / "aa"))
    found = client(uri).get_model_version("once", "1")
    assert found.tags == {"place": str(tmp_path / "aa"), "digest": "aa", "expected_reward": "-0.05", "games": "128"}
    assert client(uri).get_run(found.run_id).info.run_name == "aa"
    # A server takes no path of another machine for a source; there it is the run's, and the tag says where it is.
    assert found.source == (f"runs:/{found.run_id}/policies/aa" if uri.startswith("http") else str(tmp_path / "aa"))
    assert {k: int(v) for k, v in client(uri).get_registered_model("once").aliases.items()} == {"challenger": 2}


def test_a_policy_in_object_storage_is_its_own_source(uri: str) -> None:
    place = "s3://bucket/raw/policies/00032"
    registry.register(uri, registry.Candidate("far", place, "aa", "", {}), lambda place: True)
    assert client(uri).get_model_version("far", "1").source == place
    assert registry.find(uri, "models:/far@challenger").place == place


def test_a_version_moves_only_where_its_weights_are_gone(file: str, tmp_path: Path) -> None:
    version = registered(file, "moved", tmp_path, "aa")
    (tmp_path / "elsewhere").mkdir()
    other = policy(tmp_path / "elsewhere", "aa")

    def again() -> registry.Version:
        return registry.register(file, registry.Candidate("moved", str(other), "aa", "", {"games": "7"}))

    assert again() == version
    Path(version.place).rename(tmp_path / "away")
    assert again() == registry.Version("moved", 1, str(other), "aa")
    assert client(file).get_model_version("moved", "1").tags["games"] == "128"  # what was measured stays


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


def test_who_only_asks_makes_no_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert registry.champion(uri, "nobody") is None
    with pytest.raises(ValueError, match="the registry has no model nobody"):
        registry.find(uri, "models:/nobody/1")
    assert not list(tmp_path.iterdir())


def test_up_and_down_again(uri: str, tmp_path: Path) -> None:
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
    # An alias that somebody moved by hand is what was before, too.
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
    assert registry.promote(uri, "stale", 2, "found", over="aa")[0]  # nobody is champion: nobody is in the way
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
        uri, "noted", 1, "it stays", run_id=run_id, **{"comparison.difference": 0.5 / 3, "comparison.games": 64}
    )
    tags = client(uri).get_model_version("noted", "1").tags
    assert tags["promotion"].endswith(" UTC: it stays") and tags["promotion"].startswith("20")
    assert (tags["comparison.difference"], tags["comparison.games"]) == ("0.166667", "64")
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


def test_what_a_server_could_not_take_is_registered_later(
    file: str, tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = f"http://127.0.0.1:{closed_port}"
    folders = [tmp_path / name for name in ("00000", "00008")]
    for folder in folders:
        folder.mkdir()
        made = registry.Candidate("late", f"/policies/{folder.name}", folder.name, "", {})
        registry.register_or_leave(away, made, folder, lambda place: True)
    assert capsys.readouterr().out.count("late has no version of this policy yet: ") == 2
    registry.register_left(away, folders, lambda place: True)
    assert "late lacks versions of /policies/00000, /policies/00008: " in capsys.readouterr().out
    registry.register_left(file, folders, lambda place: True)
    assert registry.find(file, "models:/late@challenger").place == "/policies/00008"
    assert capsys.readouterr().out == ""
