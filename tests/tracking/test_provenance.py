"""Who started what, as MLflow's pages show it: from the environment, and nothing where that does not say."""

import getpass
import sys

import pytest

from tasks.tracking.provenance import FLYTE, started_by


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in FLYTE.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(sys, "argv", ["/home/ada/.venv/bin/pyflyte", "run", "workflows/grpo.py", "grpo", "--seed", "1"])


def test_here_it_is_the_person_and_the_file_that_pyflyte_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"mlflow.user": "ada", "mlflow.source.name": "workflows/grpo.py", "mlflow.source.type": "LOCAL"}
    assert started_by() == tags
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada.lovelace")
    assert started_by() == {**tags, "mlflow.user": "ada.lovelace"}


def test_in_a_pod_it_is_the_workflow_and_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")
    monkeypatch.setattr(sys, "argv", ["pyflyte-execute", "--inputs", "…"])
    assert started_by() == {}
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_WORKFLOW", "workflows.grpo.grpo")
    assert started_by() == {"mlflow.source.name": "workflows.grpo.grpo", "mlflow.source.type": "LOCAL"}


def test_what_is_not_known_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_progress() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", no_progress)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/python", "notebook.py"])
    assert started_by() == {}
