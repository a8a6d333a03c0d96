"""A year of nights on one machine: what stays on its disk, and two that overlap."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.promotion.nights import retire
from tasks.run import names

ROOT = str(Path(__file__).parents[2])
MODEL = "grpo-blackjack"
SIZE = 1000  # bytes of a policy, a trainer state and a batch
ITERATIONS = 2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(names, "_held", {})
    monkeypatch.setattr(names, "_wanted", [])
    return tmp_path


def night(number: int, model: str = MODEL) -> Path:
    """The folder of a retraining, as its stages leave it."""
    folder = Path("runs", f"retraining-{number:03d}-{model}").absolute()
    for kind, first in (("policies", 0), ("states", 1), ("rollouts", 0), ("trajectories", 0), ("evaluations", 0)):
        for version in range(first, ITERATIONS + 1):
            of = folder / kind / f"{version:05d}"
            of.mkdir(parents=True)
            (of / "data").write_bytes(bytes(SIZE))
            (of / "_metrics.json").write_text("{}")
            if kind == "policies":
                (of / "policy.json").write_text("{}")
    (folder / "run.json").write_text(json.dumps({"inputs": {"seed": number}}))
    (folder / "promotion.json").write_text(json.dumps({"model": model}))
    return folder


def used() -> int:
    return sum(path.stat().st_size for path in Path("runs").rglob("*") if path.is_file())


def test_a_year_of_nights_needs_the_disk_of_the_last_and_of_their_records() -> None:
    champion = str(night(0) / "policies" / f"{ITERATIONS:05d}")
    whole, sizes = used(), []
    for number in range(1, 365):
        night(number)
        retired = retire(MODEL, 5, {champion})
        assert retired == ([f"retraining-{number - 5:03d}-{MODEL}"] if number >= 5 else [])
        sizes.append(used())
    # Three evaluations of an old night stay, a policy for the champion's, and notes of what was removed.
    records = (ITERATIONS + 1) * SIZE + 2000
    assert sizes[-1] < 6 * whole + 365 * records and sizes[-1] - sizes[-2] < records
    assert (Path(champion) / "data").stat().st_size == SIZE
    for number, full in ((1, False), (359, False), (360, True), (364, True)):
        folder = Path("runs", f"retraining-{number:03d}-{MODEL}")
        assert (folder / "policies" / "00002" / "policy.json").exists() == full
        assert (folder / "states" / "00002" / "data").exists() == full
        assert (folder / "trajectories").exists() == full
        assert (folder / "evaluations" / "00002" / "data").exists()
        assert (folder / "policies" / "00002" / "_metrics.json").exists()


def test_other_models_and_runs_that_are_no_nights_stay() -> None:
    other, running = night(1, "grpo-other"), night(2)
    (running / "promotion.json").unlink()
    for number in (3, 4):
        night(number)
    assert retire(MODEL, 0, ()) == []
    assert retire(MODEL, 1, ()) == [f"retraining-003-{MODEL}"]
    assert retire(MODEL, 1, ()) == []
    assert all((folder / "policies" / "00001" / "data").exists() for folder in (other, running))


def test_a_night_that_overlaps_with_another_says_so_and_ends() -> None:
    hold = "import sys\nfrom tasks.run import names\nnames.take_retraining(sys.argv[1], now=True)\n"
    hold += "print('has it', flush=True)\n"
    environment = {**os.environ, "PYTHONPATH": ROOT}
    line = [sys.executable, "-c", hold + "sys.stdin.read()", MODEL]
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "has it\n"
        said = (
            rf"^grpo-blackjack is retrained by process {first.pid} on .*, since 20\d\d-.* UTC; allowed: one retraining "
            r"of a model at a time on a machine; this one ends here, and the next start is as planned\.$"
        )
        with pytest.raises(ValueError, match=said):
            names.take_retraining(MODEL)
        names.take_retraining("grpo-other")
        assert not Path("runs/.names/.retraining-grpo-other").exists()  # nothing, before the inputs were checked
        names.take("monday")
        assert Path("runs/.names/.retraining-grpo-other").exists()
        first.communicate()
    names.take_retraining(MODEL)
