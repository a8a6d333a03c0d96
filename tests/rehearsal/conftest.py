"""The cluster of the rehearsal: object storage and an MLflow server, two processes on the loopback interface."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packages import BIN, ROOT, Packaged, package
from rehearsal.cluster import Cluster, Storage
from servers import CLEAN, Server


@pytest.fixture(scope="session")
def storage_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test tells the object storage to hold an upload."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="session")
def storage(storage_folder: Path) -> Iterator[Storage]:
    """Object storage, empty at first."""
    line = [sys.executable, str(Path(__file__).with_name("storage.py")), "{port}", str(storage_folder)]
    server = Server(line, storage_folder)
    yield Storage(server.start().url)
    server.kill()


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    """The project as a cluster gets it."""
    return package(tmp_path_factory.mktemp("packaged"))


@pytest.fixture
def cluster(packaged: Packaged, storage: Storage, mlflow_server: Server, tmp_path: Path) -> Cluster:
    """A cluster without a run; pods have folders under this test's."""
    return Cluster(packaged, storage, tmp_path / "pods", tmp_path / "logs", {"MLFLOW_TRACKING_URI": mlflow_server.url})


def run_here(home: Path, file: str, workflow: str, *arguments: str) -> None:
    """Run a workflow on this machine, in the folder `home`, as a user does."""
    line = [str(BIN / "pyflyte"), "run", str(ROOT / "workflows" / file), workflow, *arguments]
    home.mkdir(exist_ok=True)
    environment = {**CLEAN, "PYTHONPATH": str(ROOT), "TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="session")
def local() -> Callable[..., None]:
    """Runs a workflow in a folder on this machine: `local(folder, "grpo.py", "grpo", "--iterations", "2")`."""
    return run_here
