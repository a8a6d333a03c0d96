"""What people see of a training: evaluation.json and pictures of one policy; summary, pictures and report.html of the
whole run."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tasks.config import RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation import pictures as drawn
from tasks.evaluation.evaluate import TaskSet, evaluate_policy
from tasks.evaluation.page import Picture, report_page
from tasks.evaluation.pictures import DARK, LIGHT, png
from tasks.evaluation.records import EVALUATION, Evaluation, read_evaluation
from tasks.evaluation.table import FEW_PARTS, display_name, headline_text, headlines, results_table
from tasks.evaluation.tracked import description, origin_of
from tasks.folders import atomic_directory, display_path, run_folder, write_file
from tasks.history import Iteration, episodes_before, read_history
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.tracking import console, outbox

PICTURES, REPORT, SUMMARY = "pictures", "report.html", "summary.json"


def evaluate_into(
    folder: Path, policy: Path, rollout: RolloutConfig, task_set: TaskSet, progress: ProgressCallback = no_progress
) -> Evaluation:
    """Evaluate `policy`; write evaluation.json and the environment's own pictures into `folder`."""
    found = evaluate_policy(policy, rollout, task_set, progress)
    with atomic_directory(folder) as new:
        (new / EVALUATION).write_text(json.dumps(found.to_dict(), indent=1) + "\n")
        for figure in task_set.spec(rollout).figures:
            drawn = figure.draw(found.details, f"Policy {found.policy_version}", LIGHT)
            (new / f"{figure.name}.png").write_bytes(png(drawn))
    return found


def write_report(run: Run, evaluations: list[Path], policy: Path, uri: str, iterations: int) -> Path:
    """Write summary.json, report.html and pictures into the run's folder and MLflow, describe the MLflow run and finish
    it, print the table; returns the summary's path. `uri` is where `policy` stays, a path or a URI."""
    found, history = [read_evaluation(folder) for folder in evaluations], read_history(policy)
    first, last = found[0], found[-1]
    spec = get_environment(last.environment, last.environment_options)
    folder, episodes = run_folder(run.name), episodes_before(history, iterations)
    played = [episodes_before(history, evaluation.policy_version) for evaluation in found]
    pictures = draw(run, spec, found, history, played)
    for name, picture in pictures.items():
        write_file(folder / PICTURES / f"{name}.png", picture.light)
    about = {
        "iterations": iterations,
        "episodes": episodes,
        "seconds": round(time.time() - run.started, 1),
        "mlflow_run_id": run.mlflow_run_id,
        "policy": uri,
    }
    path = folder / SUMMARY
    write_file(path, json.dumps(about | summary(spec, first, last, episodes), indent=1) + "\n")
    manifest, origin = read_manifest(policy), origin_of(run)
    described = {"mlflow.note.content": description(run, spec, found, episodes, manifest, uri, origin)}
    outbox.send(run, tags=described)  # shown at the top of the run's page
    page = report_page(run, spec, found, played, [*pictures.values()], manifest, origin, time.time())
    write_file(folder / REPORT, page)
    for name in (SUMMARY, REPORT):
        outbox.send(run, file=str(folder / name))
    for name in pictures:
        outbox.send(run, file=str(folder / PICTURES / f"{name}.png"), folder=PICTURES)
    outbox.send(run, status="FINISHED")
    below = {"policy": display_path(policy), "report": display_path(folder / REPORT), "curves": "make ui"}
    columns, rows, parts = results_table(spec, {"before": first, "after": last}, last.baselines)
    console.table(columns, rows + parts if len(last.parts) <= FEW_PARTS else rows, below)
    return path


def summary(spec: EnvironmentSpec, first: Evaluation, last: Evaluation, episodes: int) -> dict[str, Any]:
    """The results of a training for summary.json, with the environment's own keys beside them."""
    own = dict(spec.summary(first, last, episodes)) if spec.summary else {}
    return {
        "environment": last.environment,
        **last.numbers(),
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

    pictures: dict[str, Picture] = {}

    def add(name: str, caption: str, figure: Callable[..., Figure], *given: Any) -> None:
        pictures[name] = Picture(caption, *(png(figure(*given, theme)) for theme in (LIGHT, DARK)))

    parts = {
        part: [(at, of.parts[part].reward) for at, of in zip(played, evaluations, strict=True) if part in of.parts]
        for part in last.parts
    }
    title, shown = (
        f"{run.name}: learning {run.environment}",
        "test tasks with their 95 % band, the episodes of the training",
    )
    caption = f"Expected reward against episodes played: {shown}{', and the baselines' if baselines else ''}."
    add("learning_curve", caption, drawn.learning_curve, points, baselines, title, note, history)
    if 1 < len(parts) <= FEW_PARTS:
        caption = "Expected reward on the test tasks of each part of the environment, with its 95 % band."
        add("parts", caption, drawn.part_curves, parts, f"{run.name}: learning each part")
    caption = "What the episodes of the training were like, for each policy version."
    add("distributions", caption, drawn.distributions, history, "What the episodes were like")
    caption = "Seconds of each iteration by stage, evaluations left out."
    add("stage_times", caption, drawn.stage_times, history, "Where the time goes")
    for figure in spec.figures:
        add(figure.name, figure.caption, figure.draw, last.details, f"{run.name}: policy {last.policy_version}")
    return pictures
