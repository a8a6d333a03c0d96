"""How many threads a process starts, by quotas of control groups written by hand, and how they wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import threads

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(threads, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(threads, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    return tmp_path


def quota(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_a_quota_there_are_as_many_as_cores(groups: Path) -> None:
    assert threads.cores() == 16  # without control groups at all
    (groups / "own").write_text("0::/pod/container\n")
    quota(groups / "groups", cpu__max="max 100000\n")
    assert threads.cores() == 16


def test_the_tightest_quota_of_version_2_counts(groups: Path) -> None:
    (groups / "own").write_text("0::/pod/container\n")
    quota(groups / "groups/pod", cpu__max="350000 100000\n")  # 3.5 cores
    assert threads.cores() == 4
    quota(groups / "groups/pod/container", cpu__max="50000 100000\n")
    assert threads.cores() == 1


def test_in_a_container_the_base_has_the_quota(groups: Path) -> None:
    (groups / "own").write_text("0::/kubepods/pod7/abc\n")  # the host's path, which is not here
    quota(groups / "groups", cpu__max="200000 100000\n")
    assert threads.cores() == 2


def test_a_quota_of_version_1(groups: Path) -> None:
    (groups / "own").write_text("5:memory:/pod\n4:cpu,cpuacct:/pod\n")
    quota(groups / "groups/cpu,cpuacct/pod", cpu__cfs_quota_us="300000\n", cpu__cfs_period_us="100000\n")
    assert threads.cores() == 3
    quota(groups / "groups/cpu,cpuacct/pod", cpu__cfs_quota_us="-1\n")
    assert threads.cores() == 16


def environment(**given: str) -> dict[str, str]:
    """What is set when a task's module is imported in a process of its own."""
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    code = f"import tasks.config, os; print([os.environ.get(name) for name in {names}])"
    done = subprocess.run([sys.executable, "-c", code], env={**clean, **given}, capture_output=True, text=True)
    return dict(zip(names, eval(done.stdout), strict=True))


def test_what_the_user_set_stays() -> None:
    assert environment()["GOMP_SPINCOUNT"] == threads.SPINS["GOMP_SPINCOUNT"]
    assert environment(GOMP_SPINCOUNT="7")["GOMP_SPINCOUNT"] == "7"
    active = environment(OMP_WAIT_POLICY="ACTIVE", OMP_NUM_THREADS="3")
    assert active["GOMP_SPINCOUNT"] is None and active["OMP_NUM_THREADS"] == "3"


def test_ranks_share_the_cores(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.NUMBER, raising=False)
    assert [threads.share(ranks) for ranks in (1, 3, 32)] == ["16", "5", "1"]
    quota(groups / "groups", cpu__max="600000 100000\n")
    (groups / "own").write_text("0::/\n")
    monkeypatch.setenv(threads.NUMBER, "9")
    assert threads.share(2) == "9"  # the user's own
    monkeypatch.delenv(threads.NUMBER)
    threads.configure()
    assert os.environ[threads.NUMBER] == "6" and threads.share(2) == "3"
    monkeypatch.setattr(threads, "_limited", False)
