"""The runs that are looked at, MLflow's server over them, and a browser on it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.page import Page, opened
from packages import BIN, ROOT
from servers import CLEAN, mlflow_over
from small import SMALL

TOOLS = {  # a policy that calls its tool in a third of the episodes
    **SMALL,
    "rollout": {**SMALL["rollout"], "environment_options": {"numbers": 2, "maximum": 9}, "max_tokens": 12},
    "tiny": {**SMALL["tiny"], "cold_start_steps": 80, "drill_steps": 0},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs to look at: RUNS, or that of small trainings made for this, the last with a champion."""
    given = os.environ.get("RUNS", "")
    if given:
        return Path(given).absolute()
    home = tmp_path_factory.mktemp("home")
    tools = ["--run_name", "tools", "--iterations", "1", "--environment", "calculator"]
    for line in (
        ["grpo.py", "grpo", *tools, "--config", json.dumps(TOOLS)],
        ["grpo.py", "grpo", "--run_name", "monday", "--iterations", "3", "--config", json.dumps(SMALL)],
        ["promotion.py", "promote", "--model", "grpo-blackjack", "--version", "1"],
    ):
        command = [str(BIN / "pyflyte"), "run", str(ROOT / "workflows" / line[0]), *line[1:]]
        done = subprocess.run(command, cwd=home, env=CLEAN, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return home / "runs"


@pytest.fixture(scope="session")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of MLflow's server over these runs."""
    server = mlflow_over(runs, tmp_path_factory.mktemp("server"))
    yield server.start().url
    server.kill()


@pytest.fixture(scope="session")
def page(runs: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The browser, on no page yet."""
    with opened(server, runs, tmp_path_factory.mktemp("profile")) as found:
        yield found
