"""What a cluster tries again, and what it does not: errors as the libraries raise them."""

import contextlib
import errno

import botocore.exceptions
import pytest
import requests
import torch
import torch.distributed
from flytekit import task
from flytekit.core.context_manager import FlyteContextManager
from flytekit.exceptions.system import FlyteDownloadDataException
from flytekit.exceptions.user import FlyteRecoverableException, FlyteUserRuntimeException
from flytekit.models.literals import Literal, LiteralMap, Primitive, Scalar

from tasks.infrastructure import InfrastructureError, is_infrastructure, is_named_so, recoverable

AGAIN = [
    FlyteDownloadDataException("Failed to get data from s3://bucket/a."),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://storage.invalid"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="http://storage.invalid"),
    requests.ConnectionError("refused"),
    requests.Timeout("15 s"),
    ConnectionResetError("by peer"),
    TimeoutError("60 s"),
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ESTALE, "Stale file handle"),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
    torch.distributed.DistBackendError("NCCL error in: …, unhandled system error"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    InfrastructureError("rank 1 of the training was lost: SIGKILL."),
]
FINAL = [
    ValueError("policy 3: mismatch 0.4."),
    RuntimeError("9 of 10 episodes failed in the environment"),
    FloatingPointError("the loss is nan."),
    MemoryError("12 GiB"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: device-side assert triggered"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ENOSPC, "No space left on device"),
]


@pytest.fixture
def in_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f3a9")


@pytest.mark.parametrize("error", AGAIN, ids=lambda error: f"{type(error).__name__}")
def test_errors_of_the_infrastructure_are_raised_as_recoverable(error: Exception, in_pod: None) -> None:
    assert is_infrastructure(error)
    with pytest.raises(FlyteRecoverableException) as caught, recoverable():
        raise error
    assert str(error) in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("error", FINAL, ids=lambda error: f"{type(error).__name__}")
def test_errors_of_the_work_are_final(error: Exception, in_pod: None) -> None:
    assert not is_infrastructure(error)
    with pytest.raises(type(error)) as caught, recoverable():
        raise error
    assert caught.value is error


def test_on_one_machine_errors_stay_as_they_are() -> None:
    with pytest.raises(ConnectionResetError), recoverable():
        raise ConnectionResetError


@pytest.mark.parametrize(
    ("message", "again"),
    [
        ("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("RuntimeError: CUDA error: unspecified launch failure", True),
        ("AcceleratorError: CUDA error: device-side assert triggered", False),
        ("ValueError: mismatch", False),
    ],
)
def test_what_a_rank_wrote_down_is_told_by_its_name(message: str, again: bool) -> None:
    kind, _, sentence = message.partition(": ")
    assert is_named_so(kind, sentence) == again


def test_flyte_tries_a_stage_again_that_could_not_download(in_pod: None) -> None:
    @task
    def reads(again: bool) -> None:
        with recoverable() if again else contextlib.nullcontext():
            raise FlyteDownloadDataException("Failed to get data from s3://bucket/a.")

    # flytekit's entrypoint writes RECOVERABLE where `value` is of this class; its own errors of transfers are not.
    for again in (True, False):
        with pytest.raises(FlyteUserRuntimeException) as caught:
            reads.dispatch_execute(FlyteContextManager.current_context(), _inputs(again))
        assert isinstance(caught.value.value, FlyteRecoverableException) == again


def _inputs(again: bool) -> LiteralMap:
    return LiteralMap({"again": Literal(scalar=Scalar(primitive=Primitive(boolean=again)))})
