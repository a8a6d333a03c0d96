"""A small training, killed anywhere and started again, ends as an undisturbed one: weights, batches, evaluations,
MLflow's points, and the listing of its folder.

    make kill                              # 40 random moments, and each kind of file operation
    python tests/faults/killed.py --moments 4 --operations 0 --seed 1

At a random moment it is killed by SIGKILL or by SIGTERM, in every second trial once more on its way on. The file
operations are those of an undisturbed run in its own folder, one for each kind of operation and file; the process ends
just before it, as by SIGKILL. Half an hour to an hour on two cores; not part of `make test`.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from small import SMALL

ROOT = Path(__file__).parents[2]
NAME = "killed"
CHANGED = re.compile(r"time/.*|stage/.*|memory/.*|.*_per_s|started")  # by the hour, and the machine's speed
EXACT = ("*.safetensors", "*.arrow", "evaluation.json", "policy.json", "_lineage.json", "_steps.csv")
OPERATIONS, AT = "KILLED_OPERATIONS", "KILLED_AT"  # a file to list them in; the number of the one before which to end


def line() -> list[str]:
    """The command of the training."""
    inputs = ["--iterations", "2", "--run_name", NAME, "--config", json.dumps(SMALL)]
    return [sys.executable, __file__, "--child", "run", str(ROOT / "workflows/grpo.py"), "grpo", *inputs]


def child(arguments: list[str]) -> None:
    """The training, in a process that counts its file operations in the run's folder."""
    folder, listed, end = str(Path("runs", NAME).absolute()), os.environ.get(OPERATIONS), int(os.environ.get(AT, "0"))
    count = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")
        if not writes and event not in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"):
            return
        if not str(given[0]).startswith(folder):
            return
        count += 1
        if listed:
            with open(listed, "a") as file:
                file.write(json.dumps([event, str(given[0])[len(folder) :]]) + "\n")
        if count == end:
            os.kill(os.getpid(), signal.SIGKILL)

    if listed or end:
        sys.addaudithook(watch)
    from flytekit.clis.sdk_in_container.pyflyte import main

    sys.argv = ["pyflyte", *arguments]
    main()


def start(home: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """The training in `home`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "MLFLOW", "VLLM"))}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", **variables}
    with open(home / "shown.txt", "ab") as shown:
        return subprocess.Popen(line(), cwd=home, env=environment, stdout=shown, stderr=shown)


def finish(home: Path) -> str:
    """Start it again; "" where it ends well, else the end of what it showed."""
    code = start(home).wait()
    return "" if code == 0 else f"exit status {code}: {(home / 'shown.txt').read_text()[-1500:]}"


def result(home: Path) -> dict[str, Any]:
    """What a training leaves that depends on its seed alone."""
    run = home / "runs" / NAME
    files = sorted(path for path in run.rglob("*") if path.is_file())
    found: dict[str, Any] = {"files": [str(path.relative_to(run)) for path in files]}
    for path in files:
        key = str(path.relative_to(run))
        if any(path.match(pattern) for pattern in EXACT) and not key.startswith("states"):
            found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "_metrics.json":
            values = json.loads(path.read_text())
            found[key] = {name: value for name, value in values.items() if not CHANGED.fullmatch(name)}
    summary = json.loads((run / "summary.json").read_text())
    found["summary"] = {k: v for k, v in summary.items() if k not in ("seconds", "mlflow_run_id", "policy")}
    found["scratch"] = sorted(path.name for path in (home / "runs" / ".tmp").iterdir())
    with closing(sqlite3.connect(home / "runs" / "mlflow.db")) as store:
        points = store.execute("SELECT key, step, value FROM metrics ORDER BY key, step, value").fetchall()
        found["points"] = [point for point in points if not CHANGED.fullmatch(point[0])]
        found["steps"] = [point[:2] for point in points]  # each point once, also of times
        found["runs"] = store.execute("SELECT name, status FROM runs").fetchall()
        found["failures"] = store.execute("SELECT value FROM tags WHERE key = 'failure'").fetchall()
        found["versions"] = store.execute("SELECT name, version FROM model_versions ORDER BY version").fetchall()
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of what differs."""
    return [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]


def kinds(listed: Path) -> Iterator[tuple[int, str]]:
    """Of each kind of operation the first one, by its number, and what it is."""
    seen = set()
    for number, text in enumerate(listed.read_text().splitlines(), 1):
        event, path = json.loads(text)
        kind = f"{event} {re.sub(r'[.](new|old)-.*?[.][a-z0-9_]+', r'.new', re.sub(r'[0-9]+', 'N', path))}"
        if kind not in seen:
            seen.add(kind)
            yield number, kind


def main() -> None:
    """Try all, print each, and exit with 1 where one differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--operations", type=int, default=1000, help="kinds of file operations, at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, work, bad = random.Random(given.seed), Path(tempfile.mkdtemp(prefix="killed-")), 0
    reference = work / "reference"
    reference.mkdir()
    began = time.monotonic()
    assert start(reference, **{OPERATIONS: str(work / "operations")}).wait() == 0, (reference / "shown.txt").read_text()
    seconds, wanted = time.monotonic() - began, result(reference)
    found = list(kinds(work / "operations"))
    draw.shuffle(found)
    trials: list[tuple[str, int]] = [("moment", number) for number in range(given.moments)]
    trials += [(kind, number) for number, kind in found[: given.operations]]
    print(f"undisturbed: {seconds:.0f} s, {len(found)} kinds of file operations", flush=True)
    for number, (kind, operation) in enumerate(trials):
        home = work / f"trial-{number}"
        home.mkdir()
        if kind == "moment":
            said = []
            for _ in range(1 + number % 2):
                process, after = start(home), draw.uniform(0.02, 1) * seconds
                how = draw.choice((signal.SIGKILL, signal.SIGTERM))
                try:
                    process.wait(after)
                    said.append("had ended")
                except subprocess.TimeoutExpired:
                    process.send_signal(how)
                    said.append(f"{how.name} after {after:.1f} s")
                    process.wait()
            what = ", ".join(said)
        else:
            code = start(home, **{AT: str(operation)}).wait()
            what = f"before {kind} ({'killed' if code == -signal.SIGKILL else f'exit status {code}'})"
        wrong = finish(home) or ", ".join(differences(wanted, result(home)))
        bad += bool(wrong)
        print(f"{number + 1:>3}/{len(trials)}  {what}: {wrong or 'the same'}", flush=True)
        if not wrong:
            shutil.rmtree(home)
    print(f"{len(trials)} trials, {bad} differ{f', see {work}' if bad else ''}")
    if not bad:
        shutil.rmtree(work)
    sys.exit(bool(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
