"""What is refused before ranks are started, and how the error of one of them is read."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.config import TrainingConfig
from tasks.infrastructure import InfrastructureError
from tasks.training.elastic import _first_error, check_job


def test_one_pod_alone_where_several_were_asked_for_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    two = TrainingConfig(ranks=4, nodes=2)
    check_job(TrainingConfig(ranks=4))
    with pytest.raises(ValueError, match=r"^training.nodes is 2; allowed: 1, as this pod is alone, or a cluster that"):
        check_job(two)
    monkeypatch.setenv("PET_NNODES", "2")  # as Kubeflow's training operator sets it
    check_job(two)


@pytest.mark.parametrize(
    ("message", "exitcode", "kind", "sentence"),
    [
        ("ValueError: mismatch 0.4.", 1, ValueError, "mismatch 0.4."),
        ("KeyError: 'x'", 1, RuntimeError, "KeyError: 'x'"),
        ("DistBackendError: NCCL error in: x.cpp", 1, InfrastructureError, "DistBackendError: NCCL error in: x.cpp"),
        ("ValueError: mismatch 0.4.", -9, InfrastructureError, "rank 1 of the training was lost: Signal 9."),
    ],
)
def test_the_error_of_the_first_rank_is_raised(
    tmp_path: Path, message: str, exitcode: int, kind: type, sentence: str
) -> None:
    file = tmp_path / "1" / "error.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"message": {"message": message}}))
    failure = SimpleNamespace(error_file=str(file), exitcode=exitcode, message=" Signal 9 ")
    error = _first_error(SimpleNamespace(get_first_failure=lambda: (1, failure)))
    assert (type(error), str(error)) == (kind, sentence)
