"""Every writer on a full disk, and in a folder that is read-only: one sentence that names the file and the cause,
nothing half-written, what was there stays, and the same call goes on once it can."""

import contextlib
import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flytekit.core import local_cache
from flytekit.models.literals import LiteralMap

from evaluation.test_report import AFTER, BEFORE, HALF, evaluated
from runs import a_run
from tasks.config import GrpoConfig, TinyPolicyConfig, TrainingConfig
from tasks.folders import DiskError, write_file
from tasks.history import HISTORY, carry_on
from tasks.lineage import records as lineage
from tasks.policy.checkpoint import import_checkpoint, read_manifest, write_manifest
from tasks.policy.named import Source
from tasks.records import read_batch, write_batch
from tasks.run import names
from tasks.run.create import open_run
from tasks.stages import read_metrics, write_metrics
from tasks.tracking import mlflow_run, outbox, registry
from test_records import WRITTEN
from training.test_train import CONFIG, run, training_batch

RUN = a_run(uri="http://127.0.0.1:9")  # nothing is sent there: what waits is kept on the disk
MADE = registry.Version("m", "s3://bucket/1", "d", run_id="", tags={"policy_version": "1"})
INPUTS = {"policy": "tiny", "environment": "blackjack", "environment_url": "", "iterations": 2, "seed": 0}


def there(name: str) -> Path:
    """The folder of a result that an earlier stage or part of this one left."""
    assert Path(name).is_dir()
    return Path(name)


def batch(tiny: Path) -> None:
    assert read_batch(write_batch(WRITTEN, Path("runs/monday/rollouts/00000"))).equals(WRITTEN)


def cold_start(tiny: Path) -> None:
    from tasks.training.cold_start import tiny_policy

    config = TinyPolicyConfig(hidden_size=64, layers=1, heads=2, cold_start_steps=1, cold_start_demonstrations=64)
    assert read_manifest(tiny_policy(config, TrainingConfig(), "blackjack", 0)).version == 0


def initial_policy(tiny: Path) -> None:
    assert import_checkpoint(tiny, Path("runs/monday/policies/00000")) == read_manifest(tiny)


def policy_and_state(tiny: Path) -> None:
    from tasks.training.train import next_policy

    folders = {"target": Path("runs/monday/policies/00001"), "target_state": Path("runs/monday/states/00001")}
    next_policy(training_batch(tiny), tiny, tiny, None, CONFIG, run("w", 2), **folders)
    assert read_manifest(folders["target"]).version == 1 and (folders["target_state"] / "step-1/.metadata").is_file()


def metrics(tiny: Path) -> None:
    folder = there("runs/monday/trajectories/00000")
    write_metrics(RUN, folder, {"a/b": 1.0}, step=0)
    assert read_metrics(folder) == {"a/b": 1.0}


def pending(tiny: Path) -> None:
    folder = there("runs/monday/evaluations/00000")
    outbox.begin(RUN)
    outbox.send(RUN, file=str(tiny / "tokenizer.json"), folder="x")
    outbox.save_pending(RUN, folder)
    (entry,) = outbox.load_pending(RUN, [folder])
    assert Path(entry.file).read_bytes() == (tiny / "tokenizer.json").read_bytes()


def batch_lineage(tiny: Path) -> None:
    made = lineage.BatchLineage(iteration=0, sampled_by=lineage.PolicyName(0, "d", "policies/00000"))
    first, second = there("runs/monday/rollouts/00000"), there("runs/monday/scored/00000")
    lineage.write(first, made)
    lineage.carry(first, second)
    assert lineage.read(second, lineage.BatchLineage) == made


def history(tiny: Path) -> None:
    folder = there("runs/monday/policies/00001")
    measured = {"rollout/raw_reward": 0.5, "rollout/invalid_share": 0.0, "rollout/truncated_share": 0.0}
    carry_on(tiny, folder, WRITTEN, measured, 0)
    assert len((folder / HISTORY).read_text().splitlines()) == 1


def report(tiny: Path) -> None:
    from tasks.evaluation.report import write_report

    policy = there("runs/monday/policies/00002")
    ran = a_run(uri="http://127.0.0.1:9", iterations=2, policy="tiny", environment="evaluation.counting")
    write_report(ran, [Path("evaluations/0"), Path("evaluations/2")], policy, "s3://bucket/00002", 2)


def name_of_a_run(tiny: Path) -> None:
    names.take("monday")
    assert Path("runs/.names/monday").read_text().startswith("process ")


def run_record(tiny: Path) -> None:
    config = GrpoConfig()
    opened = open_run({**INPUTS, "run_name": "tuesday"}, config, config, {}, Source(given="tiny", uri="tiny"), {})
    assert opened.name == "tuesday" and Path("runs/tuesday/run.json").is_file()


def version(tiny: Path) -> None:
    uri = mlflow_run.tracking_uri()
    assert registry.find(uri, f"models:/m/{registry.register(uri, MADE).number}").digest == "d"


def flyte_cache(tiny: Path) -> None:
    import workflows  # sets flytekit up

    assert workflows
    local_cache.LocalTaskCache.set("a", "1", LiteralMap({}), (), LiteralMap({}))
    assert local_cache.LocalTaskCache.get("a", "1", LiteralMap({}), ()) is not None


def single_file(tiny: Path) -> None:
    write_file(Path("runs/lineage/a.json"), "{}" * 1000)


WRITERS = [batch, cold_start, initial_policy, policy_and_state, metrics, pending, batch_lineage, history, report]
WRITERS += [name_of_a_run, run_record, version, flyte_cache, single_file]
FULL = ("File too large", "disk I/O error", "the disk took less than there was to write")
CASES = {report: ["half"], run_record: ["nothing", "read-only"], version: ["read-only"]}  # slow ones


@contextlib.contextmanager
def full(size: int) -> Iterator[None]:
    """No file of this process may be longer, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written in this folder; root, whom no permission binds, is nobody meanwhile."""
    places = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in places}
    for path, mode in modes.items():
        path.chmod(mode & 0o555 | 0o444)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, but for databases and locks; MLflow's ids of runs are all the same here."""
    own = re.compile(r".*[.]db(-\w+)?|.*[.]lock|runs/[.]names/.*")
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {re.sub(r"[0-9a-f]{32}", "ID", name): p.read_bytes() for name, p in files.items() if not own.fullmatch(name)}


def prepare() -> None:
    """What earlier stages have left here."""
    for stage in ("rollouts", "scored", "trajectories", "evaluations"):
        Path(f"runs/monday/{stage}/00000").mkdir(parents=True)
    for version in (1, 2):
        Path(f"runs/monday/policies/0000{version}").mkdir(parents=True)
    policy = Path("runs/monday/policies/00002")
    (policy / "config.json").write_text("{}")
    write_manifest(policy, version=2, parent="aa")
    (policy / HISTORY).write_text("".join(f"{one.to_json()}\n" for one in (HALF, replace(HALF, iteration=1))))
    for one in (BEFORE, AFTER):
        evaluated(one)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store with its tables, since making one takes a second."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow_run.open_run(uri=f"sqlite:///{file}", name="a", token="a", parameters={}, tags={})
    return file


@pytest.fixture
def homes(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Makes folders, open to all, in each of which a writer works as in a fresh process."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o755)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(names, "_held", {})

    def make(name: str) -> Path:
        home = base / name
        new = not home.exists()
        (home / "runs").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(home)
        if new:
            prepare()
        if new and name != "nothing":
            shutil.copy(store, home / "runs" / "mlflow.db")
        for descriptor in names._held.values():
            os.close(descriptor)
        names._held.clear()
        monkeypatch.setattr(local_cache, "CACHE_LOCATION", str(home / "runs/.flyte-cache"))
        monkeypatch.setattr(local_cache.LocalTaskCache, "_initialized", False)
        return home

    yield make
    shutil.rmtree(base)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_that_cannot_write_says_what_and_why(
    writer: Callable[[Path], None], homes: Callable[[str], Path], tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = homes("whole")
    policy = Path(shutil.copytree(tiny_policy, whole.parent / "tiny"))
    for path in (policy, *policy.iterdir()):
        path.chmod(0o755)
    before = contents(whole)
    writer(policy)
    wanted = contents(whole)
    half = max((len(wanted[name]) for name in wanted if wanted[name] != before.get(name)), default=0) // 2
    for name in CASES.get(writer, ["nothing", "half", "read-only"]):
        if name == "half" and not half:
            continue  # a database, or only a lock
        home = homes(name)
        disk = read_only(home) if name == "read-only" else full(half if name == "half" else 0)
        why = ("Permission denied",) if name == "read-only" else FULL
        with pytest.raises((DiskError, ValueError)) as caught, disk:
            writer(policy)
        said = str(caught.value)
        assert any(words in said for words in why) and "\n" not in said, said
        assert said.startswith(("runs/", str(home.parent), "MLFLOW_TRACKING_URI is")), said
        left = contents(home)
        assert not [path for path in left if ".new" in path]
        assert not [path for path in left if wanted.get(path, b"") != left[path] == wanted[path][: len(left[path])]]
        homes(name)  # the next process
        writer(policy)
        assert contents(home).keys() == wanted.keys()
