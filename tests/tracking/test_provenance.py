"""Who started what, as MLflow's pages show it: from the environment, and no tag where that does not say."""

import getpass
import sys

import pytest

from tasks.tracking.provenance import FLYTE, started_by


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in FLYTE.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(sys, "argv", ["/home/ada/.venv/bin/pyflyte", "run", "workflows/grpo.py", "grpo", "--seed", "1"])


def test_on_this_machine_it_is_the_user_and_the_file_given_to_pyflyte(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"mlflow.user": "ada", "mlflow.source.name": "workflows/grpo.py", "mlflow.source.type": "LOCAL"}
    assert started_by() == tags
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada.lovelace")
    assert started_by() == {**tags, "mlflow.user": "ada.lovelace"}


def test_in_a_pod_it_is_the_workflow_and_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")
    monkeypatch.setattr(sys, "argv", ["pyflyte-execute", "--inputs", "…"])
    assert started_by() == {}
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_WORKFLOW", "workflows.grpo.grpo")
    assert started_by() == {"mlflow.source.name": "workflows.grpo.grpo", "mlflow.source.type": "LOCAL"}


def test_what_is_not_known_has_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_user() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", no_user)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/python", "notebook.py"])
    assert started_by() == {}
