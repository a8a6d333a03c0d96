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
from tasks.stages import CACHE_VERSION, stage, stage_folder, stage_seconds, write_metrics

# Flyte's decks of these tasks, without flytekit's own parts, which list packages and print the source.
DECK = {"enable_deck": True, "deck_fields": ()}


@task(cache=True, cache_version=CACHE_VERSION, **DECK, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play test tasks with `policy`, and register it; writes evaluation.json and the environment's own pictures."""
    from tasks.evaluation.evaluate import TaskSet, flat_metrics
    from tasks.evaluation.page import framed
    from tasks.evaluation.registered import candidate
    from tasks.evaluation.report import evaluate_into, evaluated_spec, evaluation_deck
    from tasks.evaluation.table import ended_badly, headline_text, headlines
    from tasks.peak_memory import peak_memory
    from tasks.tracking import console, mlflow_run
    from tasks.tracking.provenance import library_versions

    with stage(run, "evaluate"):
        folder = stage_folder(run, "evaluations", version)
        weights = Path(policy.download())
        with console.bar(f"evaluation of policy {version}", "episodes") as progress:
            task_set = TaskSet(run.environment, config.evaluation.tasks, config.evaluation.seed, run.environment_url)
            found = evaluate_into(folder, weights, config.rollout, task_set, progress)
        if version == 0:
            mlflow_run.log_tags(run, library_versions())  # on a cluster `create_run` ran in another image
        spec = evaluated_spec(found)
        for figure in spec.figures:
            mlflow_run.log_file(run, folder / f"{figure.name}.png", f"evaluations/{version:05d}")
        made = candidate(run, config, weights, str(policy.remote_source or policy.path), found)
        mlflow_run.register_policy(run, made, _exists())
        write_metrics(run, folder, flat_metrics(found) | peak_memory("evaluate"), step=version)
        console.evaluation_line(version, headline_text([*headlines(spec), *ended_badly([found])], found))
        Deck("Evaluation", framed(evaluation_deck(folder)))
    return FlyteDirectory(str(folder))


@task(**DECK, **pod("cpu"))
def report(run: Run, evaluations: list[FlyteDirectory], policies: list[FlyteDirectory], iterations: int) -> FlyteFile:
    """Write summary.json, report.html and the pictures, print the table, close the MLflow run; returns the summary.

    The last of the `policies` is what the training made.
    """
    from tasks.evaluation.page import framed
    from tasks.evaluation.report import REPORT, write_report
    from tasks.folders import display_path
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import mlflow_run, outbox

    with stage(run, "report"):
        folders, last = [Path(e.download()) for e in evaluations], Path(policies[-1].download())
        outbox.flush_pending(run, [*folders, last], _exists())
        mlflow_run.log_tags(run, {"policy.digest": read_manifest(last).digest})
        uri = str(policies[-1].remote_source or policies[-1].path)
        summary = write_report(run, folders, last, uri, iterations)
        mlflow_run.log_metrics(run, stage_seconds(), iterations)
        names = {f.remote_source or display_path(Path(f.path)): Path(f.path) for f in (*evaluations, policies[-1])}
        outbox.report_pending(run, names)
        Deck("Report", framed(summary.with_name(REPORT).read_text()))
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, tasks: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.config import EvaluationConfig
    from tasks.evaluation.evaluate import TaskSet
    from tasks.evaluation.report import evaluate_into, evaluated_spec
    from tasks.evaluation.table import results_table
    from tasks.folders import RUNS, display_path
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import console

    EvaluationConfig(tasks=tasks, seed=seed)
    config, (source,) = _opened({"policy": policy}, environment, environment_url, config)
    name = f"{read_manifest(source).digest[:12]}-{tasks}-{seed}"
    folder = (RUNS / "evaluations" / f"{environment}-{name}").absolute()
    with console.bar("evaluation", "episodes") as progress:
        found = evaluate_into(folder, source, config, TaskSet(environment, tasks, seed, environment_url), progress)
    columns, rows = results_table(evaluated_spec(found), {"policy": found}, found.baselines)
    console.table(columns, rows, {"details": display_path(folder)})
    return FlyteDirectory(str(folder))


@task(**pod("rollout"))
def compare_once(
    policy: str, other: str, tasks: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Compare two policies that need not belong to a run, and print the table."""
    from tasks.evaluation.compare import check_tasks, compare_into
    from tasks.evaluation.evaluate import TaskSet
    from tasks.evaluation.table import results_table
    from tasks.folders import RUNS, display_path
    from tasks.policy.checkpoint import read_manifest
    from tasks.tracking import console

    check_tasks(tasks, seed)
    config, (first, second) = _opened({"policy": policy, "other": other}, environment, environment_url, config)
    digests = "-".join(read_manifest(folder).digest[:12] for folder in (first, second))
    folder = (RUNS / "comparisons" / f"{environment}-{digests}-{tasks}-{seed}").absolute()
    task_set = TaskSet(environment, tasks, seed, environment_url)
    found = compare_into(folder, first, second, config, task_set)
    below = {"difference": found.in_words, "details": display_path(folder)}
    console.table(*results_table(task_set.spec(config), found.results, found.baselines), below)
    return FlyteDirectory(str(folder))


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def compare_in_run(
    run: Run, config: GrpoConfig, policies: list[FlyteDirectory], other: FlyteDirectory, tasks: int
) -> FlyteDirectory:
    """Compare the last of the policies with the one that its training began from, on tasks that nobody has played."""
    from tasks.evaluation.compare import compare_into
    from tasks.evaluation.evaluate import TaskSet
    from tasks.policy.checkpoint import read_manifest
    from tasks.seeds import fresh_seed
    from tasks.tracking import console

    with stage(run):
        policy = Path(policies[-1].download())
        version = read_manifest(policy).version
        console.stage(f"comparison of policy {version} with policy 0 on fresh test tasks")
        folder = stage_folder(run, "comparisons", version)
        task_set = TaskSet(run.environment, tasks, fresh_seed(run.name, run.seed), run.environment_url)
        compare_into(folder, policy, Path(other.download()), config.rollout, task_set)
    return FlyteDirectory(str(folder))


def _exists() -> Callable[[str], bool]:
    """Whether something is at a path or a URI."""
    return FlyteContextManager.current_context().file_access.exists


def _opened(
    policies: dict[str, str], environment: str, environment_url: str, config: RolloutConfig
) -> tuple[RolloutConfig, list[Path]]:
    """The resolved settings, and directories of policies, by the input that names them: checked before any work."""
    from tasks.config import require
    from tasks.folders import use_scratch_folder
    from tasks.policy.checkpoint import import_checkpoint
    from tasks.policy.named import find
    from tasks.run.create import check_length, check_policy, resolve

    files = FlyteContextManager.current_context().file_access.get_filesystem_for_path
    config = resolve(config, environment, environment_url)
    uris = []
    for name, policy in policies.items():
        require(policy != "tiny", name, policy, "the directory of a Hugging Face checkpoint, or models:/NAME@champion")
        uris.append(find(policy, files).uri)
        check_length(check_policy(uris[-1], files=files), config)
    use_scratch_folder()
    folders = []
    for uri in uris:
        source = plain = fetched(uri)
        if not (plain / "policy.json").is_file():
            source = Path(tempfile.mkdtemp()) / "policy"
            import_checkpoint(plain, source)
        folders.append(source)
    return config, folders
