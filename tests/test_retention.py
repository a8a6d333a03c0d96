"""What a run keeps of its versions."""

from pathlib import Path

import pytest

from tasks.config import RetentionConfig
from tasks.policy.checkpoint import read_info
from tasks.run.retention import drop_old_versions


def a_run(folder: Path, versions: int) -> Path:
    for stage in ("policies", "states", "trajectories"):
        for version in range(versions):
            (folder / stage / f"{version:05d}" / "step-1").mkdir(parents=True)
            (folder / stage / f"{version:05d}" / "content").write_text("1")
            (folder / stage / f"{version:05d}" / "_steps.csv").write_text("1")
            (folder / stage / f"{version:05d}" / "step-1" / "shard").write_text("1")
    return folder


def whole(folder: Path) -> list[int]:
    return [int(path.name) for path in sorted(folder.iterdir()) if (path / "content").exists()]


def test_the_newest_versions_and_every_nth_policy_stay(tmp_path):
    run = a_run(tmp_path, 12)
    for newest in range(1, 12):
        drop_old_versions(run, newest, RetentionConfig(last=3, every=4))
    assert whole(run / "policies") == [0, 4, 8, 9, 10, 11]
    assert whole(run / "states") == [9, 10, 11]
    assert whole(run / "trajectories") == list(range(12))
    # A cached stage finds the folder that was its result.
    assert sorted(path.name for path in (run / "policies" / "00002").iterdir()) == ["_removed.txt", "_steps.csv"]


def test_by_default_all_policies_stay(tmp_path):
    run = a_run(tmp_path, 6)
    drop_old_versions(run, 5, RetentionConfig())
    assert whole(run / "policies") == list(range(6))
    assert whole(run / "states") == [3, 4, 5]


def test_a_policy_that_was_removed_says_so(tmp_path):
    run = a_run(tmp_path, 6)
    drop_old_versions(run, 5, RetentionConfig(every=10))
    with pytest.raises(ValueError, match="which its run removed"):
        read_info(run / "policies" / "00001")
