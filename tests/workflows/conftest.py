"""Small trainings, started as a user starts them; one of them, from the command line, serves all files here."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from flytekit.clis.sdk_in_container import pyflyte
from flytekit.core import local_cache

from small import SMALL
from tasks.config import GrpoConfig

ROOT = Path(__file__).parents[2]
Command = Callable[..., tuple[list[str], dict[str, str]]]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the trainings are started."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def train(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run `grpo` in this process, where the engine is warm, with these changes to SMALL; returns the run's folder."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(name: str, *, iterations: int = 2, config: dict | None = None, **inputs: object) -> Path:
        from workflows.grpo import grpo

        changes = config or {}
        stages = {stage: {**SMALL.get(stage, {}), **changes.get(stage, {})} for stage in SMALL | changes}
        settings = GrpoConfig.from_dict(stages)
        grpo(run_name=name, iterations=iterations, config=settings, **inputs)
        return home / "runs" / name

    return run


@pytest.fixture(scope="session")
def command(home: Path) -> Command:
    """Makes the command line of a small `grpo`, with a `config` beside SMALL, and an environment without this test's
    settings."""

    def make(*arguments: str, config: dict | None = None) -> tuple[list[str], dict[str, str]]:
        pyflyte = str(Path(sys.executable).with_name("pyflyte"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "MLFLOW", "VLLM"))}
        environment["TMPDIR"] = str(home / "tmp")
        environment["CXX"] = "/bin/false"  # a fresh machine has no compiler
        (home / "tmp").mkdir(exist_ok=True)
        line = [pyflyte, "run", str(ROOT / "workflows/grpo.py"), "grpo", "--iterations", "2", *arguments]
        return [*line, "--config", json.dumps({**SMALL, **(config or {})})], environment

    return make


@pytest.fixture(scope="session")
def here(home: Path) -> Callable[..., tuple[int, str]]:
    """Runs `pyflyte` with these words in this process, where the imports are done and the engine is warm.

    For commands whose process is not what is tested. Returns the exit status and what the command, and processes that
    it started, showed. Flyte's cache is that of the trainings in `home`.
    """

    def run(*words: str) -> tuple[int, str]:
        (shown := home / "shown.txt").unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch, _output_to(shown) as file:
            patch.chdir(home)
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            patch.setenv("COLUMNS", "600")  # as into a log file
            patch.setattr(local_cache, "CACHE_LOCATION", str(home / "runs" / ".flyte-cache"))
            patch.setattr(local_cache.LocalTaskCache, "_initialized", False)
            try:
                pyflyte.main(words)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                file.write("" if end.code is None or isinstance(end.code, int) else f"{end.code}\n")
        return status, shown.read_text()

    return run


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[TextIO]:
    """Append what this process prints to a file, also what C libraries and new processes do."""
    kept = os.dup(1), os.dup(2)
    with open(path, "a", buffering=1) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            for number, descriptor in enumerate(kept, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)


@pytest.fixture(scope="session")
def reference_run(home: Path, command: Command) -> Path:
    """One training from the command line, whose result others must equal; what it showed is in reference.txt."""
    line, environment = command("--run_name", "reference")
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (home / "reference.txt").write_text(done.stdout)
    return home / "runs" / "reference"
