"""Flyte shells of evaluation and comparison, and of the report that ends a training."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from flytekit import FlyteContextManager, task
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.policy.task import fetched
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, failing_loudly, stage_folder


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play held-out decks with `policy`, and register it; writes evaluation.json and the heat map."""
    from tasks.evaluation.evaluate import flat_metrics, numbers
    from tasks.evaluation.registered import candidate
    from tasks.evaluation.report import evaluate_into
    from tasks.tracking import console, mlflow_run, registry

    with failing_loudly(run):
        folder = stage_folder(run, "evaluations", version)
        weights = Path(policy.download())
        found = evaluate_into(
            folder,
            weights,
            config.rollout,
            environment=run.environment,
            url=run.environment_url,
            games=config.evaluation.games,
            seed=config.evaluation.seed,
        )
        mlflow_run.log_metrics(run, flat_metrics(found), version)
        mlflow_run.log_file(run, folder / "choices.png", f"evaluations/{version:05d}")
        made = candidate(run, config, weights, str(policy.remote_source or policy.path), found)
        registry.register_or_leave(run.tracking_uri, made, folder, _exists())
        console.evaluation_line(version, numbers(found))
    return FlyteDirectory(str(folder))


@task(**pod("cpu"))
def report(run: Run, evaluations: list[FlyteDirectory], policies: list[FlyteDirectory], iterations: int) -> FlyteFile:
    """Write summary.json and the pictures, show the table, close the MLflow run; returns the summary.

    The last of the `policies` is what the training made.
    """
    from tasks.evaluation.report import write_report
    from tasks.tracking import registry

    with failing_loudly(run):
        registry.register_left(run.tracking_uri, [Path(e.download()) for e in evaluations], _exists())
        summary = write_report(
            run, [Path(e.download()) for e in evaluations], Path(policies[-1].download()), iterations
        )
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, games: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.config import EvaluationConfig
    from tasks.evaluation.report import evaluate_into, table_columns
    from tasks.folders import RUNS, shown
    from tasks.policy.checkpoint import read_info
    from tasks.tracking import console

    EvaluationConfig(games=games, seed=seed)
    (source,) = _opened({"policy": policy}, environment, environment_url)
    name = f"{read_info(source).digest[:12]}-{games}-{seed}"
    folder = (RUNS / "evaluations" / name).absolute()
    found = evaluate_into(folder, source, config, environment=environment, url=environment_url, games=games, seed=seed)
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
    from tasks.policy.checkpoint import read_info
    from tasks.tracking import console

    check_decks(games, seed)
    first, second = _opened({"policy": policy, "other": other}, environment, environment_url)
    digests = "-".join(read_info(folder).digest[:12] for folder in (first, second))
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
    from tasks.policy.checkpoint import read_info
    from tasks.seeds import fresh_seed
    from tasks.tracking import console

    with failing_loudly(run):
        policy = Path(policies[-1].download())
        console.stage(f"comparison of policy {read_info(policy).version} with policy 0 on {games:,} fresh decks")
        folder = stage_folder(run, "comparisons", read_info(policy).version)
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
    """Whether something is at a place, a path or a URI."""
    return FlyteContextManager.current_context().file_access.exists


def _opened(policies: dict[str, str], environment: str, environment_url: str) -> list[Path]:
    """Directories of policies, by the input that names them: all are looked at before any work."""
    from tasks.config import require
    from tasks.folders import use_scratch_folder
    from tasks.policy.checkpoint import adopt
    from tasks.policy.named import find
    from tasks.run.prepare import check_task

    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    places = []
    for name, policy in policies.items():
        require(policy != "tiny", name, policy, "the directory of a Hugging Face checkpoint, or models:/NAME@champion")
        places.append(find(policy, files).place)
        check_task(policy=places[-1], environment=environment, environment_url=environment_url, files=files)
    use_scratch_folder()
    folders = []
    for place in places:
        source = plain = fetched(place)
        if not (plain / "policy.json").is_file():
            source = Path(tempfile.mkdtemp()) / "policy"
            adopt(plain, source)
        folders.append(source)
    return folders
