"""A warm pod's iterations against those of single stages, and one that takes over from a pod that was lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flytekit.types.directory import FlyteDirectory

from small import SMALL
from tasks.buffer.training_batch import TrainingBatch
from tasks.config import GrpoConfig
from tasks.lineage.records import source_of

ITERATIONS = 3


@pytest.fixture
def together(train: Callable[..., Path], home: Path) -> Callable[..., Any]:
    """Runs iterations as a warm pod does, of a run that was just created; returns its outputs."""
    from tasks.policy.task import initial_policy
    from tasks.run.task import create_run
    from tasks.warm.task import warm_iterations

    inputs = {"policy": "tiny", "environment": "blackjack", "environment_url": "", "iterations": ITERATIONS, "seed": 0}
    run, config = create_run.task_function(run_name="together", lag=0, config=GrpoConfig.from_dict(SMALL), **inputs)
    assert config.cluster.iterations_per_pod == 8
    first = FlyteDirectory(str(initial_policy.task_function(run=run, config=config).path))

    def iterations(begin: int, end: int) -> Any:
        return warm_iterations.task_function(
            run=run,
            config=config.on_one_rank(),
            first=first,
            begin=begin,
            end=end,
            policy=first,
            state=None,
            batches=[],
            training_batch=TrainingBatch(),
        )

    return iterations


def content(folder: Path) -> dict[str, bytes]:
    """The files that depend on the seed alone; names with an underscore are others."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "_"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_warm_pod_gives_what_single_stages_give_and_another_goes_on_after_it(
    train: Callable[..., Path], together: Callable[..., Any], home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    apart = train("in-stages", iterations=ITERATIONS)
    before = together(0, 2)  # and lost before its third
    capfd.readouterr()
    made = together(0, ITERATIONS)
    shown = capfd.readouterr().out
    assert shown.count("is done, by a pod before this one") == 2 and "policy 3/3" in shown and "policy 2/3" not in shown
    for kind, found in (("policies", made.policies), ("states", made.states), ("trajectories", made.batches)):
        for number, folder in enumerate(found, 0 if kind == "trajectories" else 1):
            known, here = content(apart / kind / f"{number:05d}"), content(Path(source_of(folder)))
            assert known and known.keys() == here.keys(), (kind, number)
            assert kind == "states" or here == known, (kind, number)  # policy 3 shows what is in a state
    assert [*map(source_of, before.policies)] == [*map(source_of, made.policies[:2])]
    assert made.training_batch.group_ids and before.training_batch != made.training_batch
    # What is in place does not fill the disk of the pod.
    assert not list((home / "runs" / "together" / "states").glob("00001"))


def test_progress_of_another_run_does_not_count(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    from runs import a_run
    from tasks.warm.progress import Progress

    def of(token: str) -> Progress:
        return Progress(LocalFileSystem(), str(tmp_path / "00000"), a_run(token=token))

    batch = TrainingBatch(["00004-00001"], {"00004-00001": 1}, {"buffer/groups": 1.0})
    of("one").keep(4, "/p/5", "/s/5", "/b/4", batch)
    found = of("one").find(4)
    assert found is not None and (found.policy, found.state, found.batch) == ("/p/5", "/s/5", "/b/4")
    assert found.training_batch == batch
    assert of("one").find(5) is None and of("another").find(4) is None
