"""Flyte shells of the evaluation and of the report that ends a training."""

import tempfile
from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, stage_folder, timed


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play held-out decks with `policy`; writes evaluation.json and the heat map."""
    from tasks.evaluation.evaluate import flat_metrics, numbers
    from tasks.evaluation.report import evaluate_into
    from tasks.tracking import console, mlflow_run

    with failing_loudly(run), timed(run, "evaluate", version):
        folder = stage_folder(run, "evaluations", version)
        found = evaluate_into(
            folder,
            Path(policy.download()),
            config.rollout,
            environment=run.environment,
            url=run.environment_url,
            games=config.evaluation.games,
            seed=config.evaluation.seed,
        )
        mlflow_run.log_metrics(run, flat_metrics(found), version)
        mlflow_run.log_file(run, folder / "choices.png", f"evaluations/{version:05d}")
        console.evaluation_line(version, numbers(found))
    return FlyteDirectory(str(folder))


@task(**pod("cpu"))
def report(run: Run, evaluations: list[FlyteDirectory], policies: list[FlyteDirectory], iterations: int) -> FlyteFile:
    """Write summary.json and the pictures, show the table, close the MLflow run; returns the summary.

    The last of the `policies` is what the training made.
    """
    from tasks.evaluation.report import write_report

    with failing_loudly(run), timed(run, "report", iterations):
        summary = write_report(
            run, [Path(e.download()) for e in evaluations], Path(policies[-1].download()), iterations
        )
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, games: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.config import EvaluationConfig, require
    from tasks.evaluation.report import evaluate_into, table_columns
    from tasks.folders import RUNS, shown, use_scratch_folder
    from tasks.policy.checkpoint import adopt, read_info
    from tasks.run.prepare import check_task
    from tasks.tracking import console

    EvaluationConfig(games=games, seed=seed)
    require(policy != "tiny", "policy", policy, "the directory of a Hugging Face checkpoint")
    check_task(policy=policy, environment=environment, environment_url=environment_url)
    use_scratch_folder()
    source = Path(policy)
    if not (source / "policy.json").is_file():
        source = Path(tempfile.mkdtemp()) / "policy"
        adopt(Path(policy), source)
    name = f"{read_info(source).digest[:12]}-{games}-{seed}"
    folder = (RUNS / "evaluations" / name).absolute()
    found = evaluate_into(folder, source, config, environment=environment, url=environment_url, games=games, seed=seed)
    console.evaluation_table(table_columns(found), found.players, shown(folder))
    return FlyteDirectory(str(folder))
