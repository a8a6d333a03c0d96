"""What people see of a training: evaluation.json and pictures of one policy; summary, pictures and report.html of the
whole run."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tasks.config import RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation.description import description
from tasks.evaluation.evaluate import TaskSet, evaluate_policy
from tasks.evaluation.origin import origin_of
from tasks.evaluation.page import Picture, evaluation_page, report_page
from tasks.evaluation.pictures import DARK, LIGHT, Theme, distributions, learning_curve, png, save, stage_times
from tasks.evaluation.records import EVALUATION, Evaluation, read_evaluation
from tasks.evaluation.table import display_name, headline_text, headlines, results_table
from tasks.folders import atomic_directory, display_path, run_folder
from tasks.history import Iteration, episodes_before, read_history
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.tracking import console, mlflow_run

PICTURES, REPORT, SUMMARY = "pictures", "report.html", "summary.json"


def evaluated_spec(evaluation: Evaluation) -> EnvironmentSpec:
    """The environment of an evaluation, with the options that it had."""
    return get_environment(evaluation.environment, evaluation.environment_options)


def evaluate_into(
    folder: Path, policy: Path, rollout: RolloutConfig, task_set: TaskSet, progress: ProgressCallback = no_progress
) -> Evaluation:
    """Evaluate `policy`; write evaluation.json and the environment's own pictures into `folder`."""
    found = evaluate_policy(policy, rollout, task_set, progress)
    with atomic_directory(folder) as new:
        (new / EVALUATION).write_text(json.dumps(found.to_dict(), indent=1) + "\n")
        for figure in evaluated_spec(found).figures:
            save(figure.draw(found.details, f"Policy {found.policy_version}", LIGHT), new / f"{figure.name}.png")
    return found


def evaluation_deck(folder: Path) -> str:
    """What `evaluate_into` wrote, as a page."""
    found = read_evaluation(folder)
    spec = evaluated_spec(found)
    pictures = [Picture(figure.caption, (folder / f"{figure.name}.png").read_bytes()) for figure in spec.figures]
    return evaluation_page(spec, found, pictures)


def write_report(run: Run, evaluations: list[Path], policy: Path, uri: str, iterations: int) -> Path:
    """Write summary.json, report.html and pictures into the run's folder and MLflow, describe the MLflow run and finish
    it, print the table; returns the summary's path. `uri` is where `policy` stays, a path or a URI."""
    found, history = [read_evaluation(folder) for folder in evaluations], read_history(policy)
    first, last, spec = found[0], found[-1], evaluated_spec(found[-1])
    folder = run_folder(run.name)
    episodes = episodes_before(history, iterations)
    played = [episodes_before(history, evaluation.policy_version) for evaluation in found]
    pictures = draw(run, spec, found, history, played)
    for name, picture in pictures.items():
        path = folder / PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)  # a pod's own disk has no run yet
        path.write_bytes(picture.light)
    about = {
        "iterations": iterations,
        "episodes": episodes,
        "seconds": round(mlflow_run.seconds_since_start(run), 1),
        "mlflow_run_id": run.mlflow_run_id,
        "policy": uri,
    }
    path = folder / SUMMARY
    path.write_text(json.dumps(about | summary(spec, first, last, episodes), indent=1) + "\n")
    manifest, origin = read_manifest(policy), origin_of(run)
    mlflow_run.describe(run, description(run, spec, found, episodes, manifest, uri, origin))
    page = report_page(run, spec, found, played, list(pictures.values()), manifest, origin, time.time())
    (folder / REPORT).write_text(page)
    for name in (SUMMARY, REPORT):
        mlflow_run.log_file(run, folder / name)
    for name in pictures:
        mlflow_run.log_file(run, folder / PICTURES / f"{name}.png", PICTURES)
    mlflow_run.finish(run)
    below = {"policy": display_path(policy), "report": display_path(folder / REPORT), "curves": "make ui"}
    console.table(*results_table(spec, {"before": first, "after": last}, last.baselines), below)
    return path


def summary(spec: EnvironmentSpec, first: Evaluation, last: Evaluation, episodes: int) -> dict[str, Any]:
    """The results of a training for summary.json, with the environment's own keys beside them."""
    own = dict(spec.summary(first, last, episodes)) if spec.summary else {}
    return {
        "environment": last.environment,
        **last.numbers(),
        **({"pass_at": last.pass_at} if last.pass_at else {}),
        "baselines": {name: results.numbers() for name, results in last.baselines.items()},
        "tasks": last.tasks,
        **own,
        "before": first.numbers() | own.get("before", {}),
    }


def draw(
    run: Run,
    spec: EnvironmentSpec,
    evaluations: Sequence[Evaluation],
    history: Sequence[Iteration],
    played: Sequence[int],
) -> dict[str, Picture]:
    """The pictures of a run by the names of their files. `played` are the episodes before each of the evaluations."""
    last = evaluations[-1]
    points = list(zip(played, (evaluation.reward for evaluation in evaluations), strict=True))
    baselines = {display_name(name): results.reward.mean for name, results in last.baselines.items()}
    note = f"policy {last.policy_version}: {headline_text(headlines(spec), last, ', ')}"
    own = f"{run.name}: policy {last.policy_version}"
    named: dict[str, tuple[str, Callable[[Theme], Figure]]] = {
        "learning_curve": (
            "Expected reward against episodes played: test tasks with their 95 % band, the episodes of the training"
            f"{', and the baselines' if baselines else ''}.",
            partial(learning_curve, points, baselines, f"{run.name}: learning {run.environment}", note, history),
        ),
        "distributions": (
            "What the episodes of the training were like, for each policy version.",
            partial(distributions, history, "What the episodes were like"),
        ),
        "stage_times": (
            "Seconds of each iteration by stage, evaluations left out.",
            partial(stage_times, history, "Where the time goes"),
        ),
        **{figure.name: (figure.caption, partial(figure.draw, last.details, own)) for figure in spec.figures},
    }
    return {name: Picture(alt, png(make(LIGHT)), png(make(DARK))) for name, (alt, make) in named.items()}
