"""GitHub's checks are those of .ci/run, with the Python that the project is for."""

import os
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_github_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads "on" as true
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[-1] == ".ci/run" and os.access(ROOT / ".ci" / "run", os.X_OK)
    (python,) = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert supported.startswith(f">={python},")
    for step in job["steps"]:
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/checkout@v5"))
