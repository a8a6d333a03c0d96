"""What a run keeps of its versions; which of them it leaves behind is tested with the graph."""

import fsspec
import pytest

from tasks.policy.checkpoint import read_manifest
from tasks.run.retention import empty


@pytest.fixture(params=["file", "memory"])
def policy(request, tmp_path):
    """A policy's or a state's folder, on a disk and in object storage: files, and its path there."""
    files = fsspec.filesystem(request.param)
    folder = str(tmp_path / "00001") if request.param == "file" else f"/{tmp_path.name}/00001"
    files.makedirs(f"{folder}/step-1")
    for name in ("policy.json", "model.safetensors", "_steps.csv", "step-1/shard"):
        files.pipe_file(f"{folder}/{name}", b"1")
    return files, folder


def names(files, folder):
    return sorted(path.rpartition("/")[2] for path in files.ls(folder, detail=False))


def test_what_was_measured_stays_and_a_note(policy):
    files, folder = policy
    for _ in range(2):  # a repeated stage finds its work done
        empty(files, folder)
        # A cached stage finds the folder that was its result.
        assert names(files, folder) == ["_removed.txt", "_steps.csv"]


def test_a_folder_that_is_not_there_stays_so(policy):
    files, folder = policy
    empty(files, f"{folder}-other")
    assert not files.exists(f"{folder}-other")


def test_a_policy_that_was_removed_says_so(tmp_path):
    (tmp_path / "policy.json").write_text("{}")
    empty(fsspec.filesystem("file"), str(tmp_path))
    with pytest.raises(ValueError, match="which its run removed"):
        read_manifest(tmp_path)
