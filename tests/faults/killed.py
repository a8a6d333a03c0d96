"""A small training, killed anywhere and started again, ends as an undisturbed one: weights, batches, evaluations,
MLflow's points, and the listing of its folder.

    make kill                              # 40 random moments, and each kind of file operation
    PYTHONPATH=tests python tests/faults/killed.py --moments 4 --operations 0 --full 0 --removed 0 --seed 1

- At a random moment it is killed by SIGKILL or by SIGTERM, in every second trial once more on its way on. Moments are
  spread over the processor time that an undisturbed run takes, which is the same on a busy machine.
- The file operations are those of an undisturbed run below runs/, one for each kind of operation and file; the process
  ends just before it, as by SIGKILL, goes on, and ends before another one, up to four times.
- From such an operation on the disk is full: the run ends with a sentence that says so, and goes on once there is room.
- After a kill, `rm -r rollouts scored` makes room: what is needed of them is made again.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from outcome import differences, result
from warm import FULL_FROM, KILLED_BEFORE, MODULES, OPERATIONS, ROOT, Warm, environment

NAME = "killed"
CONFIG = {  # every stage, in seconds
    "rollout": {"groups": 8, "max_groups": 8, "group_size": 4},
    "algorithm": {"kl_coefficient": 0.01},
    "training": {"minibatch_size": 16},
    "evaluation": {"tasks": 8, "every": 2},
    "tracking": {"trace_groups": 1},
    "tiny": {
        "hidden_size": 64,
        "layers": 1,
        "heads": 2,
        "cold_start_steps": 40,
        "cold_start_demonstrations": 128,
        "cold_start_batch": 16,
        "cold_start_learning_rate": 0.01,
    },
}
LINE = ["run", str(ROOT / "workflows/grpo.py"), "grpo", "--iterations", "2", "--run_name", NAME]
LINE += ["--environment", "traffic_lights", "--config", json.dumps(CONFIG)]
CHAIN = 4  # kills before file operations in one trial
FULL = re.compile(r"\bruns/\S+ cannot be written: No space left on device")


class Trials:
    """One undisturbed training, and others that must end like it."""

    def __init__(self, work: Path, seed: int):
        self.work, self.random = work, random.Random(seed)
        modules, listed = work / "modules", work / "operations"
        home = self.home("reference")
        with open(home / "shown.txt", "wb") as shown:  # in a process of its own, as a user's is
            line = [sys.executable, str(Path(__file__).with_name("warm.py")), "train", *LINE]
            alone = environment(**{MODULES: str(modules)})
            assert subprocess.run(line, cwd=home, env=alone, stdout=shown, stderr=shown).returncode == 0, said(home)
        self.wanted = result(home / "runs", NAME)
        # Two, so that a training does not go on in the order in which the hashes of the killed one's process were.
        self.first, self.again = Warm(modules), Warm(modules)
        home = self.home("undisturbed")
        self.first.start(home, LINE, **{OPERATIONS: str(listed)})
        assert self.first.wait() == 0, said(home)
        self.seconds = self.first.processor_s  # of a processor
        assert not (wrong := differences(self.wanted, result(home / "runs", NAME))), wrong
        self.operations = listed.read_text().splitlines()

    def home(self, name: str) -> Path:
        """A new folder."""
        home = self.work / name
        home.mkdir()
        return home

    def killed(self, warm: Warm, home: Path) -> str:
        """Start it and kill it at a random moment; how and when."""
        process, after = warm.start(home, LINE), self.random.uniform(0.01, 0.9) * self.seconds
        how = self.random.choice((signal.SIGKILL, signal.SIGTERM))
        while (ended := warm.wait(0.02)) is None and processor_time(process) < after:
            pass
        if ended is not None:
            return f"had ended ({ended})"
        os.kill(process, how)
        warm.wait()
        return f"{how.name} after {after:.1f} s"

    def finished(self, home: Path, *, without: Sequence[str] = ()) -> str:
        """Start it again; "" where it ends like the undisturbed one, but for these folders, else what is wrong."""
        self.again.start(home, LINE)
        if code := self.again.wait():
            return f"exit status {code}: {said(home)}"
        return ", ".join(differences(self.wanted, result(home / "runs", NAME), without))

    def moment(self, number: int, count: int) -> tuple[str, str]:
        """What was done, and what is wrong afterwards."""
        home = self.home(f"moment-{number}")
        while (first := self.killed(self.first, home)).startswith("had ended"):  # the moment was too late
            self.seconds = min(self.seconds, self.first.processor_s)
            shutil.rmtree(home)
            home.mkdir()
        done = [first, *(self.killed(self.again, home) for _ in range(number % 2))]
        return " and ".join(done), self.finished(home)

    def operation(self, number: int, count: int) -> tuple[str, str]:
        """Likewise; the operations are spread over as many trials as there are."""
        home, done = self.home(f"operation-{number}"), []
        for kill, kind in enumerate(self.operations[number::count]):
            warm = (self.first, self.again)[kill % 2]
            warm.start(home, LINE, **{KILLED_BEFORE: kind})
            code = warm.wait()
            done.append(f"{kind}{'' if code == -signal.SIGKILL else f' (did not come, exit status {code})'}")
        return f"killed before {', '.join(done)}", self.finished(home)

    def full(self, number: int, count: int) -> tuple[str, str]:
        """Likewise."""
        kind = self.operations[len(self.operations) * number // count]
        home = self.home(f"full-{number}")
        self.first.start(home, LINE, **{FULL_FROM: kind})
        code, last = self.first.wait(), said(home).splitlines()[-1]
        wrong = "" if code and FULL.search(last) else f"exit status {code}, and the last line is {last[-300:]!r}, "
        return f"disk full from {kind} on", wrong + self.finished(home)

    def removed(self, number: int, count: int) -> tuple[str, str]:
        """Likewise."""
        home = self.home(f"removed-{number}")
        done = self.killed(self.first, home)
        for name in ("rollouts", "scored"):
            shutil.rmtree(home / "runs" / NAME / name, ignore_errors=True)
        return f"{done}, rm -r rollouts scored", self.finished(home, without=("rollouts", "scored"))


def processor_time(process: int) -> float:
    """Seconds that a process and its threads have had of a processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def said(home: Path) -> str:
    """The end of what it showed."""
    return (home / "shown.txt").read_text(errors="replace")[-1500:].strip()


def main() -> None:
    """Try all, print each, and exit with 1 where one differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=40)
    parser.add_argument("--operations", type=int, default=1000, help="trials with kinds of file operations, at most")
    parser.add_argument("--full", type=int, default=12, help="kinds from which on the disk is full")
    parser.add_argument("--removed", type=int, default=4, help="moments after which rollouts are removed")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    work, began, bad = Path(tempfile.mkdtemp(prefix="killed-")), time.monotonic(), 0
    trials = Trials(work, given.seed)
    kinds = len(trials.operations)
    print(f"undisturbed: {trials.seconds:.1f} s of a processor, {kinds} kinds of file operations", flush=True)
    chains = -(-kinds // CHAIN)
    counts = {"moment": given.moments, "operation": min(given.operations, chains)}
    counts |= {"full": given.full, "removed": given.removed}
    for kind, count in counts.items():
        for number in range(count):
            done, wrong = getattr(trials, kind)(number, chains if kind == "operation" else count)
            bad += bool(wrong)
            print(f"{kind} {number + 1}/{count}  {done}: {wrong or 'the same'}", flush=True)
            if not wrong:
                shutil.rmtree(work / f"{kind}-{number}")
    tried = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"{tried} in {time.monotonic() - began:.0f} s: {bad} differ{f', see {work}' if bad else ''}")
    for warm in (trials.first, trials.again):
        warm.close()
    if not bad:
        shutil.rmtree(work)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
