"""What people see of a training: evaluation.json and heat map of one policy, summary and curves of the whole run."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tasks.config import RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.evaluation import pictures
from tasks.evaluation.evaluate import Evaluation, evaluate_policy, heat_map_cells, numbers
from tasks.folders import run_folder, shown, written_whole
from tasks.tracking import console, mlflow_run

SEEN = 0.1  # the share of unreadable replies from which on they have a panel in the learning curve
STAGES = ("rollout", "reference", "train", "overhead")


def evaluate_into(
    folder: Path, policy: Path, rollout: RolloutConfig, *, environment: str, url: str, games: int, seed: int
) -> Evaluation:
    """Evaluate `policy`; write evaluation.json and choices.png into `folder`."""
    evaluation = evaluate_policy(policy, rollout, environment=environment, url=url, games=games, seed=seed)
    cells = heat_map_cells(get_environment(environment), evaluation)
    title = f"Policy {evaluation.policy_version}: what it does, beside the optimum"
    with written_whole(folder) as new:
        (new / "evaluation.json").write_text(json.dumps(asdict(evaluation), indent=1) + "\n")
        pictures.save(pictures.choice_heat_map(cells, title), new / "choices.png")
    return evaluation


def read_evaluation(folder: Path) -> Evaluation:
    """What `evaluate_into` wrote."""
    return Evaluation.from_json((folder / "evaluation.json").read_text())


def table_columns(evaluation: Evaluation) -> dict[str, float]:
    """An evaluation with its optimum's numbers beside it, as the console's table takes them."""
    optimum = {f"optimum_{name}": value for name, value in evaluation.players["optimum"].items()}
    return numbers(evaluation) | optimum


def write_report(run: Run, evaluations: list[Path], policy: Path, iterations: int) -> Path:
    """Write summary.json and pictures into the run's folder and MLflow, print the table, finish the MLflow run."""
    found = [read_evaluation(folder) for folder in evaluations]
    first, last = found[0], found[-1]
    folder = run_folder(run.name)
    games = [int(value) for _, value in mlflow_run.metric_history(run, "rollout/games")]
    played = [0, *itertools.accumulate(games)]
    _draw(run, folder, found, played)
    summary: Mapping[str, object] = {
        "expected_reward": last.expected_reward,
        "expected_reward_ci95": last.expected_reward_ci95,
        "win_rate": last.win_rate,
        "regret": last.regret,
        "regret_ci95": last.regret_ci95,
        "invalid_rate": last.invalid_rate,
        "agreement": last.agreement,
        "iterations": iterations,
        "games": played[-1],
        "evaluation_games": last.games,
        "before": {"expected_reward": first.expected_reward, "win_rate": first.win_rate, "regret": first.regret},
        "seconds": round(mlflow_run.seconds_since_start(run), 1),
        "mlflow_run_id": run.mlflow_run_id,
        "policy": str(policy),
    }
    path = folder / "summary.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    for name in ("summary.json", "learning_curve.png", "stage_times.png", "choices.png"):
        mlflow_run.log_file(run, folder / name)
    mlflow_run.finish(run)
    console.summary_table(table_columns(first), table_columns(last), shown(policy), "make ui")
    return path


def _draw(run: Run, folder: Path, evaluations: list[Evaluation], played: list[int]) -> None:
    """`played` are the games before policy version 0, 1, …"""
    points = [{**numbers(e), "version": e.policy_version, "games": played[e.policy_version]} for e in evaluations]
    players = evaluations[-1].players
    references = {name.replace("_", " "): player["expected_reward"] for name, player in players.items()}

    def by_games(metric: str) -> list[tuple[float, float]]:
        return [(played[step + 1], value) for step, value in mlflow_run.metric_history(run, metric)]

    unreadable = by_games("rollout/invalid_share")
    curve = pictures.learning_curve(
        points,
        references,
        f"{run.name}: learning {run.environment}",
        by_games("rollout/expected_reward"),
        unreadable if max((share for _, share in unreadable), default=0.0) > SEEN else [],
    )
    pictures.save(curve, folder / "learning_curve.png")
    times = {stage: [v for _, v in mlflow_run.metric_history(run, f"time/{stage}_s")] for stage in STAGES}
    times = {stage: seconds for stage, seconds in times.items() if seconds}
    pictures.save(pictures.stage_times(times), folder / "stage_times.png")
    cells = heat_map_cells(get_environment(run.environment), evaluations[-1])
    pictures.save(
        pictures.choice_heat_map(cells, f"{run.name}: the last policy beside the optimum"), folder / "choices.png"
    )
