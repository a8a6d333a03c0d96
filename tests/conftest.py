"""Small policies of one shape, so that a single vLLM engine serves all tests that need one; and server processes."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from servers import Server, free_port, mlflow_over
from tasks.config import TinyPolicyConfig, TrainingConfig
from tasks.policy.checkpoint import write_manifest
from tasks.policy.tiny import make_weights

# The same examples every time. No deadline: the first example may import torch.
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")

os.environ.setdefault("GRPO_ROLLOUT_PROCESSES", "1")  # each would open an engine of its own
ROOT = str(Path(__file__).parents[1])
TEMPORARY = (tempfile.tempdir, os.environ.get("TMPDIR"))
LONGEST = ("tests/workflows/", "tests/images/test_pods.py", "tests/training/test_ranks.py")

# A head has 32 dimensions, the fewest that vLLM's attention takes on a CPU.
TINY = TinyPolicyConfig(
    hidden_size=64,
    layers=1,
    heads=2,
    cold_start_demonstrations=256,
    cold_start_steps=60,
    cold_start_batch=16,
    cold_start_learning_rate=1e-2,
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that of several workers none has one left when the others end."""
    if "PYTEST_XDIST_WORKER" in os.environ or config.getoption("numprocesses", None):
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(autouse=True)
def temporary_folder() -> None:
    """The one with which the tests began: a run in this process sets its own, for good."""
    tempfile.tempdir = TEMPORARY[0]
    if TEMPORARY[1] is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = TEMPORARY[1]


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policy 0: most of its replies are HIT or STAND, a few cannot be read."""
    from tasks.training.cold_start import make_tiny

    folder = tmp_path_factory.mktemp("policies") / "tiny"
    make_tiny(folder, TINY, TrainingConfig(), "blackjack", seed=0)
    return folder


@pytest.fixture(scope="session")
def newborn(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes policies of the same shape with random weights; the seed is also the version. No reply can be read."""

    def make(seed: int) -> Path:
        folder = tmp_path_factory.mktemp("newborn") / f"seed-{seed}"
        shutil.copytree(tiny_policy, folder)
        ids = {"vocabulary": _vocabulary(folder), "end_id": 2, "pad_id": 0}
        make_weights(TINY, **ids, seed=seed, folder=folder)
        write_manifest(folder, version=seed, parent="")
        return folder

    return make


def _vocabulary(folder: Path) -> int:
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="session")
def newborn_policy(newborn: Callable[[int], Path]) -> Path:
    """A policy with random weights: its gradients are large."""
    return newborn(1)


@pytest.fixture
def closed_port() -> int:
    """A loopback port on which no process listens."""
    return free_port()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One MLflow server for all tests, since its start takes seconds. A test that kills it starts it again."""
    folder = tmp_path_factory.mktemp("mlflow")
    server = mlflow_over(folder, folder)
    yield server.start()
    server.kill()


@pytest.fixture(scope="session")
def openenv_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """Serves an environment in a process of its own: `with openenv_server("--max-sessions", "2") as url`.

    On a free port, unless the arguments name one.
    """

    @contextmanager
    def serve(*arguments: str, name: str = "blackjack") -> Iterator[str]:
        line = [sys.executable, "-m", "tasks.environments.serve", name, "--port", "{port}", *arguments]
        port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else 0
        server = Server(line, tmp_path_factory.mktemp("openenv"), port, PYTHONPATH=f"{ROOT}:{ROOT}/tests")
        try:
            yield server.start().url
        finally:
            server.kill()

    return serve
