"""Small policies of one shape, so that a single vLLM engine serves all tests that need one."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from tasks.config import TinyPolicyConfig, TrainingConfig
from tasks.policy.checkpoint import write_manifest
from tasks.policy.tiny import make_weights

# The same examples every time; how long one takes says nothing, for the first may import torch.
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    """A loopback port on which nobody answers."""
    return _free_port()


@contextmanager
def _openenv_server(*arguments: str, name: str = "blackjack") -> Iterator[str]:
    port = int(arguments[arguments.index("--port") + 1]) if "--port" in arguments else _free_port()
    line = [sys.executable, "-m", "tasks.environments.serve", name, "--port", str(port), *arguments]
    process = subprocess.Popen(line, cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONPATH": "tests"})
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def openenv_server() -> Callable[..., AbstractContextManager[str]]:
    """Starts a real server process on the loopback interface, on a free port unless one is named; gives its URL."""
    return _openenv_server
