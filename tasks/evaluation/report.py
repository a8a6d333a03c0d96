"""What people see of a training: evaluation.json and heat map of one policy, summary, pictures and report.html of the
whole run."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config import RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.evaluation.description import description
from tasks.evaluation.evaluate import Evaluation, evaluate_policy, heat_map_cells, numbers
from tasks.evaluation.page import Origin, Picture, evaluation_page, report_page, table_columns
from tasks.evaluation.pictures import (
    DARK,
    LIGHT,
    Theme,
    choice_heat_map,
    distributions,
    learning_curve,
    png,
    save,
    stage_times,
)
from tasks.folders import atomic_directory, run_folder, shown
from tasks.history import Iteration, games_before, read_history
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.tracking import console, mlflow_run
from tasks.tracking.mlflow_store import client

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES, REPORT = "pictures", "report.html"
SEEN = 0.1  # the share of unreadable replies from which on they have a panel in the learning curve
STAGES = ("rollout", "reference", "train", "overhead")


def evaluate_into(
    folder: Path,
    policy: Path,
    rollout: RolloutConfig,
    *,
    environment: str,
    url: str,
    games: int,
    seed: int,
    progress: ProgressCallback = no_progress,
) -> Evaluation:
    """Evaluate `policy`; write evaluation.json and choices.png into `folder`."""
    evaluation = evaluate_policy(
        policy, rollout, environment=environment, url=url, games=games, seed=seed, progress=progress
    )
    cells = heat_map_cells(get_environment(environment), evaluation)
    title = f"Policy {evaluation.policy_version}: what it does, beside the optimum"
    with atomic_directory(folder) as new:
        (new / "evaluation.json").write_text(json.dumps(asdict(evaluation), indent=1) + "\n")
        save(choice_heat_map(cells, title), new / "choices.png")
    return evaluation


def evaluation_deck(folder: Path) -> str:
    """What `evaluate_into` wrote, as a page."""
    alt = "What the policy does in each situation, beside the optimum; frames mark where they disagree."
    return evaluation_page(read_evaluation(folder), [Picture(alt, (folder / "choices.png").read_bytes())])


def read_evaluation(folder: Path) -> Evaluation:
    """What `evaluate_into` wrote."""
    return Evaluation.from_json((folder / "evaluation.json").read_text())


def write_report(run: Run, evaluations: list[Path], policy: Path, place: str, iterations: int) -> Path:
    """Write summary.json, report.html and pictures into the run's folder and MLflow, describe the MLflow run and finish
    it, print the table; returns the summary's path. `place` is where `policy` stays, a path or a URI."""
    found, history = [read_evaluation(folder) for folder in evaluations], read_history(policy)
    first, last = found[0], found[-1]
    folder = run_folder(run.name)
    played = [games_before(history, evaluation.policy_version) for evaluation in found]
    games = games_before(history, iterations)
    drawn = _draw(run, found, history, played)
    for name, picture in drawn.items():
        path = folder / PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)  # a pod's own disk has no run yet
        path.write_bytes(picture.light)
    summary: Mapping[str, object] = {
        "expected_reward": last.expected_reward,
        "expected_reward_ci95": last.expected_reward_ci95,
        "win_rate": last.win_rate,
        "regret": last.regret,
        "regret_ci95": last.regret_ci95,
        "invalid_rate": last.invalid_rate,
        "agreement": last.agreement,
        "iterations": iterations,
        "games": games,
        "evaluation_games": last.games,
        "before": {"expected_reward": first.expected_reward, "win_rate": first.win_rate, "regret": first.regret},
        "seconds": round(mlflow_run.seconds_since_start(run), 1),
        "mlflow_run_id": run.mlflow_run_id,
        "policy": place,
    }
    path = folder / "summary.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    info, origin = read_manifest(policy), _origin(run)
    mlflow_run.describe(run, description(run, found, games, info, place, origin))
    page = report_page(run, found, played, list(drawn.values()), info, origin, time.time())
    (folder / REPORT).write_text(page)
    for name in ("summary.json", REPORT):
        mlflow_run.log_file(run, folder / name)
    for name in drawn:
        mlflow_run.log_file(run, folder / PICTURES / f"{name}.png", PICTURES)
    mlflow_run.finish(run)
    console.summary_table(table_columns(first), table_columns(last), shown(policy), "make ui", shown(folder / REPORT))
    return path


def _origin(run: Run) -> Origin | None:
    """What MLflow keeps of how the run was started; None when it cannot be asked: a report can do without."""
    try:
        known = client(run.tracking_uri).get_run(run.mlflow_run_id)
    except Exception:  # whatever went wrong, there was no answer
        return None
    return Origin(known.data.params, known.data.tags, known.info.start_time / 1000)


def _draw(
    run: Run, evaluations: list[Evaluation], history: Sequence[Iteration], played: list[int]
) -> dict[str, Picture]:
    """The pictures of a run by the names of their files. `played` are the games before each of the evaluations."""
    points = [
        {**numbers(e), "version": e.policy_version, "games": games}
        for e, games in zip(evaluations, played, strict=True)
    ]
    players = evaluations[-1].players
    references = {name.replace("_", " "): player["expected_reward"] for name, player in players.items()}
    training = [(iteration.played, iteration.expected_reward) for iteration in history]
    unreadable = [(iteration.played, iteration.invalid_share) for iteration in history]
    if max((share for _, share in unreadable), default=0.0) <= SEEN:
        unreadable = []
    stages = [stage for stage in STAGES if any(stage in iteration.seconds for iteration in history)]
    times = {stage: [iteration.seconds.get(stage, 0.0) for iteration in history] for stage in stages}
    cells = heat_map_cells(get_environment(run.environment), evaluations[-1])
    versions = [iteration.iteration for iteration in history]
    rewards, tokens = [i.rewards for i in history], [i.tokens for i in history]
    turns = [i.turns for i in history]
    named: dict[str, tuple[str, Callable[[Theme], Figure]]] = {
        "learning_curve": (
            "Expected reward a game against games played: held-out decks with their 95 % band, the games of the "
            "training, and other players.",
            lambda theme: learning_curve(
                points, references, f"{run.name}: learning {run.environment}", training, unreadable, theme
            ),
        ),
        "choices": (
            "What the last policy does in each situation, beside the optimum; frames mark where they disagree.",
            lambda theme: choice_heat_map(cells, f"{run.name}: the last policy beside the optimum", theme),
        ),
        "distributions": (
            "Rewards, replies and sampled tokens of the games of the training, for each policy version.",
            lambda theme: distributions(versions, rewards, tokens, turns, theme=theme),
        ),
        "stage_times": (
            "Seconds of each iteration by stage, evaluations left out.",
            lambda theme: stage_times(versions, times, theme=theme),
        ),
    }
    return {name: Picture(alt, png(draw(LIGHT)), png(draw(DARK))) for name, (alt, draw) in named.items()}
