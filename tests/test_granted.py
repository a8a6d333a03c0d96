"""A pod that got less than it asked for, in control groups made by hand."""

from pathlib import Path

import pytest

from runs import a_run
from tasks import granted, stages
from tasks.policy import machine
from tasks.resources import ROLE, ROLES
from tasks.stages import stage


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container of 1 GiB and two cores, as Flyte's own limits leave it; with much more on its node."""
    (tmp_path / "cgroup").write_text("0::/pod\n")
    (tmp_path / "pod").mkdir()
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    limits(tmp_path, str(2**30), "200000 100000")
    return tmp_path


def limits(container: Path, memory: str, cpu: str) -> None:
    (container / "pod" / "memory.max").write_text(memory + "\n")
    (container / "pod" / "cpu.max").write_text(cpu + "\n")


def test_what_is_missing_is_named_with_what_was_asked_for(container: Path) -> None:
    assert granted.shortfall(ROLES["training"]) == "memory 1 of 96 GiB, CPUs 2 of 8, GPUs 0 of 1"
    asked = ROLES["cpu"].replace(mem="1Gi", cpu="1500m")
    assert granted.shortfall(asked) == ""
    assert granted.shortfall(asked.replace(mem="1200M")) == "memory 1 of 1.12 GiB"
    limits(container, "max", "50000 100000")
    assert granted.shortfall(asked) == "CPUs 0.5 of 1.5"
    limits(container, "max", "max 100000")
    assert granted.shortfall(asked) == ""


def test_cgroups_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/pod\n3:cpu,cpuacct:/pod\n")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    for name, value in (
        ("memory/pod/memory.limit_in_bytes", 2**30),
        ("cpu,cpuacct/pod/cpu.cfs_quota_us", 50_000),
        ("cpu,cpuacct/pod/cpu.cfs_period_us", 100_000),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    assert (machine.memory_limit(), machine.cpu_limit()) == (2**30, 0.5)
    (tmp_path / "cpu,cpuacct/pod/cpu.cfs_quota_us").write_text("-1\n")
    assert machine.cpu_limit() == float("inf")


@pytest.mark.parametrize("in_pod", [True, False])
def test_a_stage_says_so_in_a_pod(
    container: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_pod: bool
) -> None:
    monkeypatch.chdir(container)
    monkeypatch.setattr(stages, "use_scratch_folder", lambda: None)  # which changes this process for good
    if in_pod:
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")
        monkeypatch.setenv(ROLE, "training")
    with stage(a_run(uri=f"sqlite:///{container}/mlflow.db"), "train"):
        pass
    shown = " ".join(capsys.readouterr().out.split())
    said = (
        "train got less than tasks/pods.yaml asks for as training: memory 1 of 96 GiB, CPUs 2 of 8, GPUs 0 of 1; "
        "raise task_resources.limits in flyteadmin's configuration, or ask for less"
    )
    assert (said in shown) == in_pod
