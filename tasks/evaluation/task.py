"""Flyte shells of evaluation and comparison, and of the report that ends a training.

tasks/evaluation/report.py is imported inside the tasks: matplotlib would make every `--help` slower.
"""

import shutil
import tempfile
from pathlib import Path

from flytekit import Deck, FlyteContextManager, task
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import EvaluationConfig, GrpoConfig, RolloutConfig, Run, require
from tasks.evaluation.compare import check_tasks, compare_into
from tasks.evaluation.evaluate import TaskSet
from tasks.evaluation.page import Picture, evaluation_page, framed
from tasks.evaluation.records import each_evaluation
from tasks.evaluation.table import FEW_PARTS, REWARD, ended_badly, headline_text, headlines, results_table
from tasks.evaluation.tracked import candidate, flat_metrics
from tasks.folders import RUNS, atomic_directory, display_path, file_name, use_scratch_folder
from tasks.policy.checkpoint import import_checkpoint, read_manifest
from tasks.policy.named import find
from tasks.policy.task import fetched
from tasks.resources import pod
from tasks.run.create import check_episode, check_length, look, resolve
from tasks.seeds import derived_seed, fresh_seed
from tasks.settings import merged
from tasks.stages import CACHE_VERSION, stage, stage_folder
from tasks.tracking import console, mlflow_run, outbox
from tasks.tracking.provenance import library_versions

# Flyte's decks of these tasks, without flytekit's own parts, which list packages and print the source.
DECK = {"enable_deck": True, "deck_fields": ()}


@task(cache=True, cache_version=CACHE_VERSION, **DECK, **pod("rollout"))
def evaluate(run: Run, config: GrpoConfig, policy: FlyteDirectory, version: int) -> FlyteDirectory:
    """Play test tasks with `policy`, and register it; writes evaluation.json and the environment's own pictures."""
    from tasks.evaluation.report import evaluate_into

    with stage(run, "evaluate", step=version) as s:
        folder, weights = stage_folder(run, "evaluations", version), Path(policy.download())
        task_set = TaskSet(run.environment, config.evaluation.tasks, config.evaluation.seed, run.environment_url)
        with console.bar(f"evaluation of policy {version}", "episodes") as progress:
            found = evaluate_into(folder, weights, config.rollout, task_set, progress)
        if version == 0:
            outbox.send(run, tags=library_versions())  # on a cluster `create_run` ran in another image
        spec, pictures = task_set.spec(config.rollout), []
        for figure in spec.figures:
            path = folder / f"{figure.name}.png"
            pictures.append(Picture(figure.caption, path.read_bytes()))
            outbox.send(run, file=str(path), folder=f"evaluations/{version:05d}")
        made = candidate(run, config, weights, str(policy.remote_source or policy.path), found)
        outbox.send(run, policy=made, exists=_files().exists)
        s.result, s.metrics = folder, flat_metrics(found)
        numbers = headline_text([*headlines(spec), *ended_badly([found])], found)
        console.stage(f"evaluation of policy {version}", f"  {numbers}", style="bold green")
        for part, of in found.parts.items() if len(found.parts) <= FEW_PARTS else ():
            measured = [metric for metric in headlines(spec)[1:] if metric.key in of.metrics]
            console.stage(f"  {part}", f"  {headline_text([REWARD, *measured], of)}", style="green")
        Deck("Evaluation", framed(evaluation_page(spec, found, pictures)))
    return FlyteDirectory(str(folder))


@task(cache=True, cache_version=CACHE_VERSION, **pod("cpu"))
def gather_evaluations(run: Run, evaluations: list[FlyteDirectory], until: int) -> FlyteDirectory:
    """Copy the evaluations of a graph, the last at policy `until`, into one folder: Flyte keeps a list of all inputs of
    a graph in one file, of at most 2 MB."""
    folder = stage_folder(run, "evaluations_until", until)
    with stage(run), atomic_directory(folder) as new:
        for number, evaluation in enumerate(evaluations):
            shutil.copytree(evaluation.download(), new / f"{number:05d}")
    return FlyteDirectory(str(folder))


@task(**DECK, **pod("cpu"))
def report(run: Run, evaluations: list[FlyteDirectory], policies: list[FlyteDirectory], iterations: int) -> FlyteFile:
    """Write summary.json, report.html and the pictures, print the table, close the MLflow run; returns the summary.

    The last of the `policies` is what the training made. Raises RuntimeError, at last, where nothing was trained.
    """
    from tasks.evaluation.report import REPORT, write_report
    from tasks.history import check_trained, read_history

    with stage(run, "report") as s:
        folders = each_evaluation([Path(e.download()) for e in evaluations])
        last = Path(policies[-1].download())
        outbox.flush_pending(run, [*folders, last], _files().exists)
        outbox.send(run, tags={"policy.digest": read_manifest(last).digest})
        uri = str(policies[-1].remote_source or policies[-1].path)
        summary = write_report(run, folders, last, uri, iterations)
        mlflow_run.log_metrics(run, s.seconds(), iterations)
        names = {f.remote_source or display_path(Path(f.path)): Path(f.path) for f in (*evaluations, policies[-1])}
        outbox.report_pending(run, names)
        Deck("Report", framed(summary.with_name(REPORT).read_text()))
        check_trained(read_history(last))
    return FlyteFile(str(summary))


@task(**pod("rollout"))
def evaluate_once(
    policy: str, tasks: int, seed: int, environment: str, environment_url: str, config: RolloutConfig
) -> FlyteDirectory:
    """Evaluate a policy that need not belong to a run, and print the table."""
    from tasks.evaluation.report import evaluate_into

    EvaluationConfig(tasks=tasks, seed=seed)
    config, (source,) = _opened({"policy": policy}, environment, environment_url, config)
    name = f"{read_manifest(source).digest[:12]}-{tasks}-{seed}"
    folder = (RUNS / "evaluations" / f"{file_name(environment)}-{name}").absolute()
    task_set = TaskSet(environment, tasks, seed, environment_url)
    with console.bar("evaluation", "episodes") as progress:
        found = evaluate_into(folder, source, config, task_set, progress)
    columns, rows, parts = results_table(task_set.spec(config), {"policy": found}, found.baselines)
    console.table(columns, rows + parts, {"details": display_path(folder)})
    return FlyteDirectory(str(folder))


@task(**pod("rollout"))
def compare_once(
    policy: str,
    other: str,
    tasks: int,
    seed: int,
    environment: str,
    environment_url: str,
    config: RolloutConfig,
    other_config: RolloutConfig,
) -> FlyteDirectory:
    """Compare two policies that need not belong to a run, and print the table; the other one plays with `config` and
    what `other_config` changes in it."""
    check_tasks(tasks, seed)
    changed = other_config.to_dict()
    other_rollout = resolve(RolloutConfig.from_dict(merged(config.to_dict(), changed)), environment, environment_url)
    config, (first, second) = _opened({"policy": policy, "other": other}, environment, environment_url, config)
    digests = "-".join(read_manifest(folder).digest[:12] for folder in (first, second))
    name = f"{file_name(environment)}-{digests}-{tasks}-{seed}"
    if changed:
        name += f"-{derived_seed('other', other_config.to_json(), bits=32):08x}"
    folder = (RUNS / "comparisons" / name).absolute()
    task_set = TaskSet(environment, tasks, seed, environment_url)
    found = compare_into(folder, first, second, config, task_set, other_rollout)
    below = {"difference": found.in_words, "details": display_path(folder)}
    columns, rows, parts = results_table(task_set.spec(config), found.results, found.baselines)
    console.table(columns, rows + parts, below)
    return FlyteDirectory(str(folder))


@task(cache=True, cache_version=CACHE_VERSION, **pod("rollout"))
def compare_in_run(
    run: Run, config: GrpoConfig, policies: list[FlyteDirectory], other: FlyteDirectory, tasks: int
) -> FlyteDirectory:
    """Compare the last of the policies with the one that its training began from, on tasks that nobody has played."""
    with stage(run):
        policy = Path(policies[-1].download())
        version = read_manifest(policy).version
        console.stage(f"comparison of policy {version} with policy 0 on fresh test tasks")
        folder = stage_folder(run, "comparisons", version)
        task_set = TaskSet(run.environment, tasks, fresh_seed(run.name, run.seed), run.environment_url)
        sequential = config.evaluation.comparison == "sequential"
        compare_into(folder, policy, Path(other.download()), config.rollout, task_set, sequential=sequential)
    return FlyteDirectory(str(folder))


def _files() -> FileAccessProvider:
    """What reads paths and URIs."""
    return FlyteContextManager.current_context().file_access


def _opened(
    policies: dict[str, str], environment: str, environment_url: str, config: RolloutConfig
) -> tuple[RolloutConfig, list[Path]]:
    """The resolved settings, and directories of policies, by the input that names them: checked before any work."""
    config, uris = resolve(config, environment, environment_url), []
    files = _files().get_filesystem_for_path
    for name, policy in policies.items():
        require(policy != "tiny", name, policy, "the directory of a Hugging Face checkpoint, or models:/NAME@champion")
        uris.append(find(policy, files).uri)
        folder, known = look(uris[-1], files=files)
        check_length(known, config)
        assert folder is not None
        check_episode(folder, policy, config, environment, environment_url)
    use_scratch_folder()
    folders = [fetched(uri) for uri in uris]
    for number, folder in enumerate(folders):
        if not (folder / "policy.json").is_file():
            folders[number] = Path(tempfile.mkdtemp()) / "policy"
            import_checkpoint(folder, folders[number])
    return config, folders
