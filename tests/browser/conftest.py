"""The runs that are looked at, MLflow's server over them, and a browser on it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.page import Page, opened
from small import SMALL

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "GRPO", "MLFLOW", "VLLM"))}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs to look at: RUNS, or that of a small training made for this, with a champion."""
    given = os.environ.get("RUNS", "")
    if given:
        return Path(given).absolute()
    home = tmp_path_factory.mktemp("home")
    for line in (
        ["grpo.py", "grpo", "--run_name", "monday", "--iterations", "3", "--config", json.dumps(SMALL)],
        ["promotion.py", "promote", "--model", "grpo-blackjack", "--version", "1"],
    ):
        command = [str(BIN / "pyflyte"), "run", str(ROOT / "workflows" / line[0]), *line[1:]]
        done = subprocess.run(command, cwd=home, env=CLEAN, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return home / "runs"


@pytest.fixture(scope="session")
def server(runs: Path) -> Iterator[str]:
    """The address of MLflow's server over these runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    line = [str(BIN / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{runs / 'mlflow.db'}", "--workers", "1"]
    process = subprocess.Popen(
        [*line, "--port", address.rpartition(":")[2]],
        cwd=runs,
        # its job executor's helpers have nothing to do here
        env={**CLEAN, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "MLflow's server did not start"
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its workers too
        process.wait()


@pytest.fixture(scope="session")
def page(runs: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The browser, on no page yet."""
    with opened(server, runs, tmp_path_factory.mktemp("profile")) as found:
        yield found
