"""Whole trainings as a cluster runs them, each task a process of its own, against the same training on this machine."""

import json
import math
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flyteidl.core.literals_pb2 import Literal, LiteralCollection, LiteralMap

from rehearsal.cluster import Cluster, Done
from rehearsal.moments import busy, uploading, written
from rehearsal.values import NOTHING, key_of, literal, uri_of
from servers import Server
from small import SMALL
from tasks.config import GrpoConfig, RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.policy.checkpoint import read_manifest

OF_ONE_RUN = ("seconds", "mlflow_run_id", "policy")
LOST = -9  # the status of a process that was killed


@dataclass(frozen=True)
class Case:
    """A training: how long, by how many workers its episodes are played, and how many iterations one pod does."""

    iterations: int
    workers: int = 1
    per_pod: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """What `--config` gets."""
        shared = {"workers": self.workers} if self.workers > 1 else {}
        pods = {"iterations_per_pod": self.per_pod}
        return {**SMALL, "rollout": {**SMALL["rollout"], **shared}, "cluster": pods}

    def on(self, cluster: Cluster, name: str) -> LiteralMap:
        """Train on the cluster, in an execution of that name."""
        inputs = {"run_name": name, "iterations": self.iterations, "config": GrpoConfig.from_dict(self.config)}
        return cluster.start("workflows.grpo.grpo", name, **{key: literal(value) for key, value in inputs.items()})


@pytest.fixture(scope="module")
def here(local: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """Trains on this machine, once a case; returns the folder of the run."""

    @cache
    def run(case: Case) -> Path:
        home = tmp_path_factory.mktemp("here")
        inputs = ["--run_name", "here", "--iterations", str(case.iterations), "--config", json.dumps(case.config)]
        local(home, "grpo.py", "grpo", *inputs)
        return home / "runs" / "here"

    return run


def of_the_seed(metrics: dict[str, float]) -> dict[str, float]:
    """Those that do not depend on the time or the machine."""
    others = ("time/", "stage/", "memory/")
    return {k: v for k, v in metrics.items() if not (k.startswith(others) or k.endswith("_per_s") or k == "started")}


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder that depend on the seed alone, by their path in it; names with an underscore are others."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths if p.name == "_steps.csv" or p.name[0] != "_"}


def logged(database: Path, name: str) -> dict[str, dict[int, float]]:
    """Metrics of the one run of that name, each a value a step, read from MLflow's tables."""
    with sqlite3.connect(database) as db:
        ((run, status),) = db.execute("SELECT run_uuid, status FROM runs WHERE name = ?", [name]).fetchall()
        found: dict[str, dict[int, float]] = {}
        rows = db.execute("SELECT key, step, value FROM metrics WHERE run_uuid = ? ORDER BY timestamp", [run])
        for key, step, value in rows:
            assert step not in found.setdefault(key, {}), f"{key} has two points at {step}"
            found[key][step] = value
    assert status == "FINISHED"
    return found


def same_as_here(
    cluster: Cluster, outputs: LiteralMap, name: str, here: Path, server: Path, scratch: Path, case: Case
) -> None:
    """Nothing that depends on the seed alone differs by a bit."""

    def made(task: str, out: str = "o0") -> list[Path]:
        """The folders that a stage made, in the order of their numbers."""
        found = sorted((d for d in cluster.done if d.task.endswith(f".{task}")), key=number)
        return [cluster.storage.fetch(uri_of(d.outputs.literals[out]), scratch / d.node / out) for d in found]

    (summary,) = cluster.storage.fetch(uri_of(outputs.literals["o0"]), scratch / "summary").iterdir()
    there, known = (json.loads(path.read_text()) for path in (summary, here / "summary.json"))
    assert there.keys() == known.keys()
    assert [(k, there[k]) for k in known if k not in OF_ONE_RUN] == [
        (k, known[k]) for k in known if k not in OF_ONE_RUN
    ]
    last = max((d for d in cluster.done if d.task == "tasks.training.task.train"), key=number)
    assert there["policy"] == uri_of(last.outputs.literals["policy"])
    stages = {
        "policies": [*made("initial_policy"), *made("train", "policy")],
        "scored": made("score_reference"),
        "trajectories": made("compute_advantages"),
        "rollouts": made("rollout" if case.workers == 1 else "join_rollout"),
    }
    for stage, folders in stages.items():
        assert len(folders) == case.iterations + (stage == "policies"), stage
        for i, folder in enumerate(folders):
            wanted = content(here / stage / f"{i:05d}")
            assert wanted and content(folder) == wanted, (stage, i)
    found, wanted = (of_the_seed(logged(*which)) for which in ((server, name), (here.parent / "mlflow.db", "here")))
    assert found == wanted and len(wanted) > 30
    assert all(math.isfinite(value) for points in found.values() for value in points.values())


def number(done: Done) -> int:
    """Which of its stage's nodes this is."""
    given = done.inputs.literals
    return given["iteration"].scalar.primitive.integer if "iteration" in given else 0


def test_each_task_in_a_pod_of_its_own_gives_what_one_process_gives(
    cluster: Cluster, here: Callable[[Case], Path], mlflow_server: Server, tmp_path: Path
) -> None:
    case = Case(iterations=2)
    outputs = case.on(cluster, "monday")
    same_as_here(cluster, outputs, "monday", here(case), mlflow_server.folder / "mlflow.db", tmp_path / "fetched", case)
    assert {len(done.attempts) for done in cluster.done} == {1}
    left = retired(cluster)
    assert {"_removed.txt", "_steps.csv"} <= left and all(name.startswith("_") for name in left)
    assert not list(cluster.folder.iterdir())  # no pod has left anything


def retired(cluster: Cluster) -> set[str]:
    """What is left of policy 1 in object storage once a pod has applied retention to it."""
    first, last = (done for done in cluster.done if done.task == "tasks.training.task.train")
    policy = first.outputs.literals["policy"]
    folders = Literal(collection=LiteralCollection(literals=[policy]))
    inputs = {"run": first.inputs.literals["run"], "folders": folders, "after": last.outputs.literals["policy"]}
    apply_retention = cluster.packaged.tasks["tasks.run.task.apply_retention"]
    cluster.execution("monday").run(apply_retention, LiteralMap(literals=inputs), "apply_retention")
    return {Path(key).name for key in cluster.storage.sizes(key_of(uri_of(policy)))}


def test_lost_pods_change_nothing(
    cluster: Cluster, here: Callable[[Case], Path], mlflow_server: Server, storage_folder: Path, tmp_path: Path
) -> None:
    case = Case(iterations=2)
    cluster.kills = {
        "tasks.run.task.create_run": [written("run.json")],
        "tasks.policy.task.initial_policy": [written("policies/*"), uploading("model.safetensors", storage_folder)],
        "tasks.rollout.task.rollout": [busy(5), written("rollouts/*")],
        "tasks.reference.task.score_reference": [written("scored/*", signal.SIGTERM)],
        "tasks.advantage.task.compute_advantages": [written("trajectories/*")],
        "tasks.training.task.train": [written("states/*"), uploading("policy.json", storage_folder)],
        "tasks.evaluation.task.report": [written("pictures/*")],
    }
    lost = {task: len(moments) for task, moments in cluster.kills.items()}
    outputs = case.on(cluster, "tuesday")
    same_as_here(
        cluster, outputs, "tuesday", here(case), mlflow_server.folder / "mlflow.db", tmp_path / "fetched", case
    )
    for task, times in lost.items():
        first = min((d for d in cluster.done if d.task == task), key=number)
        ended = 128 + signal.SIGTERM if task == "tasks.reference.task.score_reference" else LOST
        assert [attempt.status for attempt in first.attempts] == [ended] * times + [0], task
    for task, sentence in (
        ("tasks.policy.task.initial_policy", "allowed: weights that fit its policy.json, these were changed."),
        ("tasks.training.task.train", "this one has no policy.json."),
    ):
        assert_half_uploaded_is_refused(cluster, task, sentence, tmp_path / task)


def test_workers_that_are_pods_give_what_they_give_in_one_process(
    cluster: Cluster, here: Callable[[Case], Path], mlflow_server: Server, tmp_path: Path
) -> None:
    case = Case(iterations=1, workers=2)
    outputs = case.on(cluster, "wednesday")
    same_as_here(
        cluster, outputs, "wednesday", here(case), mlflow_server.folder / "mlflow.db", tmp_path / "fetched", case
    )
    lost = without_second_worker(cluster, case, tmp_path / "lost")
    assert (lost["rollout/lost_shards"], lost["rollout/episodes"]) == (1, 24 * 4 / 2)


def without_second_worker(cluster: Cluster, case: Case, scratch: Path) -> dict[str, float]:
    """The metrics of a batch without one of its two workers: a map task gives None for it."""
    (joined,) = (done for done in cluster.done if done.task == "tasks.rollout.task.join_rollout")
    given = RolloutConfig.from_dict({**case.config["rollout"], "workers_needed": 0.5})
    config = given.resolved(get_environment("blackjack").defaults)
    shards = LiteralCollection(literals=[joined.inputs.literals["shards"].collection.literals[0], NOTHING])
    inputs = {**joined.inputs.literals, "config": literal(config), "shards": Literal(collection=shards)}
    join = cluster.packaged.tasks[joined.task]
    outputs = cluster.execution("wednesday").run(join, LiteralMap(literals=inputs), "lost")
    folder = cluster.storage.fetch(uri_of(outputs.literals["o0"]), scratch)
    return json.loads((folder / "_metrics.json").read_text())


def assert_half_uploaded_is_refused(cluster: Cluster, task: str, sentence: str, scratch: Path) -> None:
    """What the second lost pod of `task` left of a policy in object storage cannot be taken for one."""
    first = min((d for d in cluster.done if d.task == task), key=number)
    prefix = f"raw/tuesday/{first.node}/1/"
    (beside,) = (key for key in cluster.storage.sizes(prefix) if key.endswith("/chat_template.jinja"))
    folder = cluster.storage.fetch(beside.rpartition("/")[0], scratch)
    with pytest.raises(ValueError) as refused:
        read_manifest(folder)
    assert str(refused.value).endswith(sentence)
