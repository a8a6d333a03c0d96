"""The cluster of the rehearsal: object storage and an MLflow server, two processes on the loopback interface."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rehearsal.cluster import Cluster, Storage
from rehearsal.packaged import Packaged, package
from rehearsal.pod import BIN, ROOT

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "_F", "GRPO", "MLFLOW", "VLLM", "AWS"))}
CLEAN["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # its eight helpers have nothing to do here


@contextmanager
def serving(line: list[str], port: int, folder: Path) -> Iterator[str]:
    """A server process; gives its URL once it takes connections on `port`."""
    with (folder / "shown").open("wb") as shown:
        process = subprocess.Popen(line, cwd=folder, env=CLEAN, stdout=shown, stderr=shown, start_new_session=True)
        try:
            for _ in range(1200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (folder / "shown").read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    """One on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def storage_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one tells the object storage to hold an upload."""
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="session")
def storage(storage_folder: Path) -> Iterator[Storage]:
    """Object storage, empty at first."""
    port = free_port()
    line = [sys.executable, str(Path(__file__).with_name("storage.py")), str(port), str(storage_folder)]
    with serving(line, port, storage_folder) as url:
        yield Storage(url)


@pytest.fixture(scope="session")
def mlflow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the MLflow server has its mlflow.db."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="session")
def mlflow_server(mlflow_folder: Path) -> Iterator[str]:
    """An MLflow server that also keeps the artifacts."""
    folder, port = mlflow_folder, free_port()
    line = [str(BIN / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    line += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "kept")]
    with serving(line, port, folder) as url:
        yield url


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    """The project as a cluster gets it."""
    return package(tmp_path_factory.mktemp("packaged"))


@pytest.fixture
def cluster(packaged: Packaged, storage: Storage, mlflow_server: str, tmp_path: Path) -> Cluster:
    """A cluster without a run; pods have folders under this test's."""
    return Cluster(packaged, storage, tmp_path / "pods", tmp_path / "logs", {"MLFLOW_TRACKING_URI": mlflow_server})


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
