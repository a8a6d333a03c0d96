"""What a `policy` may be called. The object storage of these tests is fsspec's own, in the memory of this process."""

import json
import shutil
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tasks.policy import named
from tasks.policy.checkpoint import read_manifest, write_manifest
from tasks.policy.task import fetched
from tasks.run.create import check_policy, start_of
from tasks.tracking import registry

URI = "memory://bucket/policies/00032"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    return uri


def put(folder: Path) -> MemoryFileSystem:
    files = MemoryFileSystem()
    if files.exists(URI):
        files.rm(URI, recursive=True)
    files.put(str(folder), URI, recursive=True)
    return files


def registered(store: str, folder: Path, uri: str) -> registry.Version:
    digest = read_manifest(folder).digest
    return registry.register(store, registry.Version(model="m", uri=uri, digest=digest, run_id="", tags={}))


@pytest.mark.parametrize("name", ["tiny", "runs/monday/policies/00032", "owner/name@main"])
def test_other_names_are_what_they_say(name: str) -> None:
    assert named.find(name) == named.Source(given=name, uri=name)


def test_a_version_is_the_directory_that_it_was_registered_with(store: str, tiny_policy: Path) -> None:
    registered(store, tiny_policy, str(tiny_policy))
    found = named.find("models:/m@challenger")
    digest = read_manifest(tiny_policy).digest
    assert found == named.Source(
        given="models:/m@challenger", uri=str(tiny_policy), version="models:/m/1", digest=digest
    )


def test_a_version_whose_directory_was_removed_or_changed_is_refused(
    store: str, tiny_policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(tiny_policy, folder)
    registered(store, folder, str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "note": "another"}))
    write_manifest(folder, version=0, parent="")
    with pytest.raises(ValueError, match=rf'^policy is "models:/m/1", whose directory {folder} holds another policy'):
        named.find("models:/m/1")
    shutil.rmtree(folder)
    with pytest.raises(ValueError) as caught:
        named.find("models:/m@challenger")
    assert str(caught.value) == (
        f'policy is "models:/m@challenger (models:/m/1)", whose directory {folder} is not there any more; allowed: a '
        "version whose directory was kept."
    )


def test_a_version_in_object_storage_is_looked_at_and_then_downloaded(store: str, tiny_policy: Path) -> None:
    files = put(tiny_policy)
    registered(store, tiny_policy, URI)
    found = named.find("models:/m/1")
    assert found.uri == URI and found.digest == read_manifest(tiny_policy).digest

    folder, weights = named.look(URI, named.files_of)
    assert weights == ["model.safetensors"]
    assert (folder / "tokenizer.json").is_file() and not list(folder.glob("*.safetensors"))
    known = check_policy(URI)
    assert known == json.loads((tiny_policy / "config.json").read_text())

    assert read_manifest(fetched(URI)) == read_manifest(tiny_policy)
    files.pipe_file(f"{URI}/model.safetensors", b"half of it")
    with pytest.raises(ValueError, match="allowed: weights that fit its policy"):
        fetched(URI)
    files.rm_file(f"{URI}/policy.json")
    with pytest.raises(ValueError, match=f"whose directory {URI} is not there any more"):
        named.find("models:/m/1")
    files.rm(URI, recursive=True)
    with pytest.raises(ValueError, match=f'policy is "{URI}", and nothing is there'):
        check_policy(URI)


def test_a_resumed_run_keeps_the_policy_that_it_began_with(store: str, tiny_policy: Path, newborn_policy: Path) -> None:
    registered(store, tiny_policy, str(tiny_policy))
    before = start_of("models:/m@challenger", "monday")
    kept = {"inputs": {"policy": "models:/m@challenger"}, "source": before.to_dict()}
    Path("runs/monday").mkdir(parents=True)
    Path("runs/monday/run.json").write_text(json.dumps(kept))
    registered(store, newborn_policy, str(newborn_policy))
    assert start_of("models:/m@challenger", "monday") == before
    assert start_of("models:/m@challenger", "tuesday").uri == str(newborn_policy)
    assert start_of("models:/m/2", "monday").uri == str(newborn_policy)  # refused later: another policy
