"""Two nights of a retraining as a cluster runs them, the second from a champion that lies in object storage."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flyteidl.core.literals_pb2 import LiteralMap

from rehearsal.cluster import Cluster
from rehearsal.values import literal, uri_of
from small import SMALL
from tasks.config import GrpoConfig

NIGHTS = {"first": datetime(2026, 11, 30, 2, tzinfo=UTC), "second": datetime(2026, 12, 1, 2, tzinfo=UTC)}
CONFIG = {**SMALL, "tracking": {"model": "nights"}}
INPUTS = {"iterations": 1, "tasks": 512}


def test_nights_on_a_cluster_decide_as_on_this_machine(
    cluster: Cluster, local: Callable[..., None], tmp_path: Path
) -> None:
    home = tmp_path / "here"
    for name, start in NIGHTS.items():
        given = {**INPUTS, "run_name": name, "start_time": start, "config": GrpoConfig.from_dict(CONFIG)}
        inputs = {key: literal(value) for key, value in given.items()}
        outputs = cluster.start("workflows.retraining.on_demand", name, **inputs)
        words = [word for key, value in {**INPUTS, "run_name": name}.items() for word in (f"--{key}", str(value))]
        words += ["--start_time", f"{start:%Y-%m-%dT%H:%M:%S}", "--config", json.dumps(CONFIG)]
        local(home, "retraining.py", "retrain", *words)
        run = home / "runs" / name
        known = json.loads((run / "promotion.json").read_text())
        assert decision(cluster, outputs, tmp_path / name) == known
        assert weights(cluster, tmp_path / name) == (run / "policies" / "00001" / "model.safetensors").read_bytes()
        if name == "first":  # promoted by hand, so that the second night has a champion in any case
            chosen = {"model": "nights", "version": known["version"]}
            cluster.start("workflows.promotion.promote", "by-hand", **{k: literal(v) for k, v in chosen.items()})
            local(home, "promotion.py", "promote", "--model", "nights", "--version", str(known["version"]))
        else:
            champion = json.loads((run / "run.json").read_text())["inputs"]["policy"]
            assert champion.startswith("models:/nights/")


def decision(cluster: Cluster, outputs: LiteralMap, scratch: Path) -> dict:
    """The decision of a night on the cluster."""
    (path,) = cluster.storage.fetch(uri_of(outputs.literals["o0"]), scratch / "promotion").iterdir()
    return json.loads(path.read_text())


def weights(cluster: Cluster, scratch: Path) -> bytes:
    """Those that the last night on the cluster trained, in a warm pod as by default."""
    trained = [done for done in cluster.done if done.task == "tasks.warm.task.warm_iterations"][-1]
    (policy,) = trained.outputs.literals["policies"].collection.literals
    folder = cluster.storage.fetch(uri_of(policy), scratch / "policy")
    return (folder / "model.safetensors").read_bytes()
