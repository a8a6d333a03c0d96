"""Server processes on the loopback interface: each on a free port, ready when it answers, killed with its workers."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

LIMIT = 120  # seconds until a server answers, on a busy machine
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "_F", "GRPO", "MLFLOW", "VLLM", "AWS"))}


def free_port() -> int:
    """A loopback port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves HTTP. `line` is its command, in which "{port}" stands for the port.

    It runs in `folder` and writes its output to `log.txt` there. It can be started again, on the same port.
    """

    def __init__(self, line: Sequence[str], folder: Path, port: int = 0, **environment: str) -> None:
        self.port = port or free_port()
        self.line = [word.replace("{port}", str(self.port)) for word in line]
        self.folder, self.environment = folder, {**CLEAN, **environment}
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> "Server":
        """Start it where it does not run, and wait until it answers."""
        if self.process is None or self.process.poll() is not None:
            with open(self.folder / "log.txt", "a") as log:
                self.process = subprocess.Popen(
                    self.line, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
        deadline = time.monotonic() + LIMIT
        while not self._answers():
            late = self.process.poll() is not None or time.monotonic() > deadline
            assert not late, f"{self.line} does not answer:\n{(self.folder / 'log.txt').read_text()[-3000:]}"
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
        except urllib.error.HTTPError:
            return True  # a server without this page
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it without a warning; no worker of its own is left."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def mlflow_over(store: Path, folder: Path) -> Server:
    """An MLflow server, not yet started, over `mlflow.db` in `store`; it keeps artifacts and its log in `folder`."""
    line = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", "{port}", "--workers", "1"]
    line += ["--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"]
    line += ["--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")]
    # Without the job executor there are eight processes less.
    return Server(line, folder, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false", MLFLOW_DISABLE_TELEMETRY="true")
