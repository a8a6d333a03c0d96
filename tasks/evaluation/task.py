"""Flyte shells of evaluation and comparison, and of the report that ends a training."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from flytekit import Deck, FlyteContextManager, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.policy.task import fetched
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, stage_context, stage_folder, stage_seconds, write_metrics

# A deck holds what these tasks put there and nothing else: flytekit's own parts list packages and print the source.
DECK = {"enable_deck": True, "deck_fields": ()}


@task(cache=True, cache_version=CACHE_VERSION, **DECK, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play held-out decks with `policy`, and register it; writes evaluation.json and the heat map."""
    from tasks.evaluation.evaluate import flat_metrics, numbers
    from tasks.evaluation.page import framed
    from tasks.evaluation.registered import candidate
    from tasks.evaluation.report import evaluate_into, evaluation_deck
    from tasks.peak_memory import peak_memory
    from tasks.tracking import console, mlflow_run
    from tasks.tracking.provenance import library_versions

    with stage_context(run, "evaluate"):
        folder = stage_folder(run, "evaluations", version)
        weights = Path(policy.download())
        with console.bar(f"evaluation of policy {version}", "games") as progress:
            found = evaluate_into(
                folder,
                weights,
                config.rollout,
                environment=run.environment,
                url=run.environment_url,
                games=config.evaluation.games,
                seed=config.evaluation.seed,
                progress=progress,
            )
        if version == 0:
            mlflow_run.log_tags(run, library_versions())  # on a cluster, of an image that `create_run` did not run in
        mlflow_run.log_file(run, folder / "choices.png", f"evaluations/{version:05d}")
        made = candidate(run, config, weights, str(policy.remote_source or policy.path), found)
        mlflow_run.register_policy(run, made, _exists())
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
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import mlflow_run, outbox

    with stage_context(run, "report"):
        folders, last = [Path(e.download()) for e in evaluations], Path(policies[-1].download())
        outbox.flush_pending(run, [*folders, last], _exists())
        mlflow_run.log_tags(run, {"policy.digest": read_manifest(last).digest})
        place = str(policies[-1].remote_source or policies[-1].path)
        summary = write_report(run, folders, last, place, iterations)
        mlflow_run.log_metrics(run, stage_seconds(), iterations)
        names = {f.remote_source or shown(Path(f.path)): Path(f.path) for f in (*evaluations, policies[-1])}
        outbox.report_pending(run, names)
        Deck("Report", framed(summary.with_name(REPORT).read_text()))
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, games: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.config import EvaluationConfig
    from tasks.evaluation.page import table_columns
    from tasks.evaluation.report import evaluate_into
    from tasks.folders import RUNS, shown
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import console

    EvaluationConfig(games=games, seed=seed)
    (source,) = _opened({"policy": policy}, environment, environment_url)
    name = f"{read_manifest(source).digest[:12]}-{games}-{seed}"
    folder = (RUNS / "evaluations" / name).absolute()
    with console.bar("evaluation", "games") as progress:
        found = evaluate_into(
            folder,
            source,
            config,
            environment=environment,
            url=environment_url,
            games=games,
            seed=seed,
            progress=progress,
        )
    console.evaluation_table(table_columns(found), found.players, shown(folder))
    return FlyteDirectory(str(folder))


@task(**pod("rollout"))
def compare_once(
    policy: str,
    other: str,
    games: int,
    seed: int,
    environment: str,
    environment_url: str,
    config: RolloutConfig,
) -> FlyteDirectory:
    """Compare two policies that need not belong to a run, and print the table."""
    from tasks.evaluation.compare import check_decks, compare_into
    from tasks.folders import RUNS, shown
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import console

    check_decks(games, seed)
    first, second = _opened({"policy": policy, "other": other}, environment, environment_url)
    digests = "-".join(read_manifest(folder).digest[:12] for folder in (first, second))
    folder = (RUNS / "comparisons" / f"{digests}-{games}-{seed}").absolute()
    found = compare_into(
        folder, first, second, config, environment=environment, url=environment_url, games=games, seed=seed
    )
    columns = {"policy": found.players["policy"], "other": found.players["other"]}
    console.comparison_table(columns, found.players["optimum"], found.in_words, shown(folder))
    return FlyteDirectory(str(folder))


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def compare_in_run(
    run: Run, config: GrpoConfig, policies: list[FlyteDirectory], other: FlyteDirectory, games: int
) -> FlyteDirectory:
    """Compare the last of the policies with the one that its training began from, on decks that nobody has played."""
    from tasks.evaluation.compare import compare_into
    from tasks.policy.checkpoint import read_manifest
    from tasks.seeds import fresh_seed
    from tasks.tracking import console

    with stage_context(run):
        policy = Path(policies[-1].download())
        console.stage(f"comparison of policy {read_manifest(policy).version} with policy 0 on {games:,} fresh decks")
        folder = stage_folder(run, "comparisons", read_manifest(policy).version)
        compare_into(
            folder,
            policy,
            Path(other.download()),
            config.rollout,
            environment=run.environment,
            url=run.environment_url,
            games=games,
            seed=fresh_seed(run.name, run.seed),
        )
    return FlyteDirectory(str(folder))


def _exists() -> Callable[[str], bool]:
    """Whether there is something at a path or URI."""
    return FlyteContextManager.current_context().file_access.exists


def _opened(policies: dict[str, str], environment: str, environment_url: str) -> list[Path]:
    """Directories of policies, by the input that names them: all are looked at before any work."""
    from tasks.config import require
    from tasks.folders import use_scratch_folder
    from tasks.policy.checkpoint import import_checkpoint
    from tasks.policy.named import find
    from tasks.run.create import check_task

    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    places = []
    for name, policy in policies.items():
        require(policy != "tiny", name, policy, "the directory of a Hugging Face checkpoint, or models:/NAME@champion")
        places.append(find(policy, files).uri)
        check_task(policy=places[-1], environment=environment, environment_url=environment_url, files=files)
    use_scratch_folder()
    folders = []
    for place in places:
        source = plain = fetched(place)
        if not (plain / "policy.json").is_file():
            source = Path(tempfile.mkdtemp()) / "policy"
            import_checkpoint(plain, source)
        folders.append(source)
    return folders
