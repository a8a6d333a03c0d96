"""A training whose iterations share a warm pod, which is killed in its fifth, against the same one on this machine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rehearsal.cluster import Cluster
from rehearsal.moments import written
from rehearsal.rehearse_grpo import LOST, Case, content, logged, of_the_seed
from rehearsal.values import uri_of
from servers import Server

ITERATIONS = 6
WARM = "tasks.warm.task.warm_iterations"


def test_a_warm_pod_that_is_killed_in_its_fifth_iteration_goes_on_with_it(
    cluster: Cluster, local: Callable[..., None], mlflow_server: Server, tmp_path: Path
) -> None:
    case = replace(Case(ITERATIONS), per_pod=ITERATIONS)
    home = tmp_path / "here"
    local(home, "grpo.py", "grpo", "--run_name", "here", "--iterations", "6", "--config", json.dumps(case.config))
    cluster.kills = {WARM: [written("trajectories/00004")]}  # between the rollout and the training of the fifth
    outputs = case.on(cluster, "thursday")

    (pod,) = (done for done in cluster.done if done.task == WARM)
    assert [attempt.status for attempt in pod.attempts] == [LOST, 0]
    second = pod.attempts[1].shown
    found = [v for v in range(ITERATIONS) if f"iteration {v} is done, by a pod before this one" in second]
    assert found == [0, 1, 2, 3]
    # Nothing is done twice but the iteration that was lost.
    uploaded = [policies(cluster, f"raw/thursday/{pod.node}/{attempt}/") for attempt in (0, 1)]
    assert uploaded == [["00001", "00002", "00003", "00004"], ["00005", "00006"]]

    run = home / "runs" / "here"
    for kind, first in (("policies", 1), ("states", 1), ("batches", 0)):
        made = pod.outputs.literals[kind].collection.literals
        assert len(made) == ITERATIONS
        for number, value in enumerate(made, first):
            folder = cluster.storage.fetch(uri_of(value), tmp_path / "fetched" / kind / str(number))
            name = "trajectories" if kind == "batches" else kind
            wanted = content(run / name / f"{number:05d}")
            assert content(folder).keys() == wanted.keys(), (kind, number)
            assert kind == "states" or content(folder) == wanted, (kind, number)  # policies show what is in states
            assert wanted or (kind == "states" and number <= ITERATIONS - 3), (kind, number)  # the last three stay
    (summary,) = cluster.storage.fetch(uri_of(outputs.literals["o0"]), tmp_path / "summary").iterdir()
    there, known = (json.loads(path.read_text()) for path in (summary, run / "summary.json"))
    assert (there["reward"], there["metrics"]) == (known["reward"], known["metrics"])
    stores = ((mlflow_server.folder / "mlflow.db", "thursday"), (home / "runs" / "mlflow.db", "here"))
    curves, wanted = (of_the_seed(logged(*store)) for store in stores)
    assert curves == wanted and len(wanted) > 30


def policies(cluster: Cluster, prefix: str) -> list[str]:
    """The numbers of the policies that a pod uploaded: `<prefix><random>/00004/model.safetensors`."""
    return sorted(key.split("/")[-2] for key in cluster.storage.sizes(prefix) if key.endswith("/model.safetensors"))
