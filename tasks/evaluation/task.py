"""Flyte shells of the evaluation and of the report that ends a training."""

import tempfile
from pathlib import Path

from flytekit import Deck, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, stage_folder, stage_seconds, write_metrics

# A deck holds what these tasks put there and nothing else: flytekit's own parts list packages and print the source.
DECK = {"enable_deck": True, "deck_fields": ()}


@task(cache=True, cache_version=CACHE_VERSION, **DECK, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play held-out decks with `policy`; writes evaluation.json and the heat map."""
    from tasks.evaluation.evaluate import flat_metrics, numbers
    from tasks.evaluation.page import framed
    from tasks.evaluation.report import evaluate_into, evaluation_deck
    from tasks.peak_memory import peak_memory
    from tasks.tracking import console, mlflow_run
    from tasks.tracking.provenance import library_versions

    with failing_loudly(run, "evaluate"):
        folder = stage_folder(run, "evaluations", version)
        with console.bar(f"evaluation of policy {version}", "games") as watch:
            found = evaluate_into(
                folder,
                Path(policy.download()),
                config.rollout,
                environment=run.environment,
                url=run.environment_url,
                games=config.evaluation.games,
                seed=config.evaluation.seed,
                watch=watch,
            )
        if version == 0:
            mlflow_run.log_tags(run, library_versions())  # on a cluster, of an image that `prepare` did not run in
        mlflow_run.log_file(run, folder / "choices.png", f"evaluations/{version:05d}")
        write_metrics(run, folder, flat_metrics(found) | peak_memory("evaluate"), step=version)
        console.evaluation_line(version, numbers(found))
        Deck("Evaluation", framed(evaluation_deck(folder)))
    return FlyteDirectory(str(folder))


@task(**DECK, **pod("cpu"))
def report(run: Run, evaluations: list[FlyteDirectory], policies: list[FlyteDirectory], iterations: int) -> FlyteFile:
    """Write summary.json, report.html and the pictures, show the table, close the MLflow run; returns the summary.

    The last of the `policies` is what the training made.
    """
    from tasks.evaluation.page import framed
    from tasks.evaluation.report import REPORT, write_report
    from tasks.folders import shown
    from tasks.policy.checkpoint import read_info
    from tasks.tracking import mlflow_run, outbox

    with failing_loudly(run, "report"):
        folders, last = [Path(e.download()) for e in evaluations], Path(policies[-1].download())
        outbox.send_rest(run, [*folders, last])
        mlflow_run.log_tags(run, {"policy.digest": read_info(last).digest})
        summary = write_report(run, folders, last, iterations)
        mlflow_run.log_metrics(run, stage_seconds(), iterations)
        names = {f.remote_source or shown(Path(f.path)): Path(f.path) for f in (*evaluations, policies[-1])}
        outbox.tell_what_is_missing(run, names)
        Deck("Report", framed(summary.with_name(REPORT).read_text()))
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, games: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.config import EvaluationConfig, require
    from tasks.evaluation.page import table_columns
    from tasks.evaluation.report import evaluate_into
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
    with console.bar("evaluation", "games") as watch:
        found = evaluate_into(
            folder,
            source,
            config,
            environment=environment,
            url=environment_url,
            games=games,
            seed=seed,
            watch=watch,
        )
    console.evaluation_table(table_columns(found), found.players, shown(folder))
    return FlyteDirectory(str(folder))
