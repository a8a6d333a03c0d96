"""Errors of the infrastructure, which a cluster tries again; those of the work end the run. The table is in
docs/cluster.md.

Flyte 1.16 repeats a stage that raised something only where that is a FlyteRecoverableException.
"""

import contextlib
import errno
import re
import sys
from collections.abc import Iterator

from tasks.tracking.provenance import flyte_execution


class InfrastructureError(RuntimeError):
    """A part of the infrastructure was lost, and the work itself has no fault: a rank, a server. One sentence."""


# Classes of libraries, which only some stages import. flytekit's own are of failed transfers; a bad CUDA or NCCL call
# is told by its text alone where torch has no class for it.
CLASSES = (
    ("flytekit.exceptions.system", "FlyteDownloadDataException"),
    ("flytekit.exceptions.system", "FlyteUploadDataException"),
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "ConnectionError"),
    ("aiohttp", "ClientError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    ("torch", "AcceleratorError"),
    ("torch.distributed", "DistBackendError"),
    ("torch.distributed", "DistNetworkError"),
    ("torch.distributed", "DistStoreError"),
    ("vllm.v1.engine.exceptions", "EngineDeadError"),
)
NAMES = {name for _, name in CLASSES} | {"InfrastructureError", "ConnectionResetError", "BrokenPipeError"}
DEVICE = re.compile(r"\b(CUDA|NCCL|cuBLAS) error\b|\bCUBLAS_STATUS_|ncclUnhandledCudaError|ncclSystemError")
OUR_FAULT = re.compile(r"device-side assert|out of memory")  # an index or a size of the work's own
NUMBERS = (errno.EIO, errno.ESTALE, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EREMOTEIO)


def is_infrastructure(error: BaseException) -> bool:
    """Whether the same work may well succeed elsewhere or later."""
    if isinstance(error, RuntimeError) and OUR_FAULT.search(str(error)):
        return False
    known = (getattr(sys.modules.get(module), name, None) for module, name in CLASSES)
    kinds = tuple(kind for kind in known if isinstance(kind, type))
    if isinstance(error, (InfrastructureError, ConnectionError, TimeoutError, *kinds)):
        return True
    if isinstance(error, OSError):
        return error.errno in NUMBERS
    return isinstance(error, RuntimeError) and DEVICE.search(str(error)) is not None


def is_named_so(kind: str, message: str) -> bool:
    """The same of an error that another process wrote down, as `DistBackendError` and its text."""
    return not OUR_FAULT.search(message) and (kind in NAMES or DEVICE.search(message) is not None)


def will_be_retried(error: BaseException) -> bool:
    """On a cluster: an error of the infrastructure, or the end of the process, which is no error of the stage."""
    return bool(flyte_execution()) and (is_infrastructure(error) or not isinstance(error, Exception))


@contextlib.contextmanager
def recoverable() -> Iterator[None]:
    """Raise errors of the infrastructure so that a cluster tries the stage again; elsewhere as they are."""
    try:
        yield
    except Exception as error:
        if not (flyte_execution() and is_infrastructure(error)):
            raise
        from flytekit.exceptions.user import FlyteRecoverableException

        raise FlyteRecoverableException(str(error) or type(error).__name__) from error
