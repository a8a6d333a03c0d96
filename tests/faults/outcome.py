"""What a training leaves that depends on its seed alone."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

CHANGED = re.compile(r"time/.*|stage/.*|memory/.*|.*_per_s|started")  # by the hour, and the machine's speed
EXACT = ("*.safetensors", "*.arrow", "evaluation.json", "policy.json", "_lineage.json", "_steps.csv")


def result(runs: Path, name: str) -> dict[str, Any]:
    """Of the run `name` in the folder `runs`: its files and their digests, its metrics, what MLflow has of it."""
    run = runs / name
    files = sorted(path for path in run.rglob("*") if path.is_file())
    found: dict[str, Any] = {str(path.relative_to(run)): "" for path in files}
    for path in files:
        key = str(path.relative_to(run))
        if any(path.match(pattern) for pattern in EXACT) and not key.startswith("states"):
            found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "_metrics.json":
            values = json.loads(path.read_text())
            found[key] = {name: value for name, value in values.items() if not CHANGED.fullmatch(name)}
        elif path.name == "summary.json":
            values = json.loads(path.read_text())
            found[key] = {k: v for k, v in values.items() if k not in ("seconds", "mlflow_run_id", "policy")}
    found["scratch"] = sorted(path.name for path in (runs / ".tmp").iterdir())
    with closing(sqlite3.connect(runs / "mlflow.db")) as store:
        points = store.execute("SELECT key, step, value FROM metrics ORDER BY key, step, value").fetchall()
        found["points"] = [point for point in points if not CHANGED.fullmatch(point[0])]
        found["steps"] = [point[:2] for point in points]  # each point once, also of times
        found["runs"] = store.execute("SELECT name, status FROM runs").fetchall()
        found["failures"] = store.execute("SELECT value FROM tags WHERE key = 'failure'").fetchall()
        found["versions"] = store.execute("SELECT name, version FROM model_versions ORDER BY version").fetchall()
        found["inputs"] = store.execute("SELECT name FROM datasets ORDER BY name").fetchall()
        found["traces"] = store.execute("SELECT count(*) FROM trace_info").fetchall()
    return found


def differences(one: dict[str, Any], other: dict[str, Any], without: Sequence[str] = ()) -> list[str]:
    """The names of what differs, but for what is in these folders."""
    names = sorted(name for name in one.keys() | other.keys() if name.partition("/")[0] not in without)
    return [name for name in names if one.get(name, "missing") != other.get(name, "missing")]
