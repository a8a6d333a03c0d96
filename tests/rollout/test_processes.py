"""Processes that sample beside another one: what they give, and when they end."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conftest import TINY
from tasks import threads
from tasks.config import RolloutConfig
from tasks.evaluation.evaluate import TaskSet
from tasks.policy.tiny import shape
from tasks.rollout import processes
from tasks.rollout.shards import sample_batch
from tasks.rollout.worker import RolloutWorker

SMALL = RolloutConfig(groups=6, max_groups=24, group_size=4, max_tokens=4, max_turns=6, max_episode_tokens=200)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with room, whose user has set nothing."""
    monkeypatch.delenv(processes.NUMBER, raising=False)
    monkeypatch.setattr(processes, "_others", [])
    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setattr(processes.machine, "memory_left", lambda: (64 * 2**30, "memory"))


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({}, 2),
        ({"groups": 63}, 1),  # 504 episodes are few
        ({"seeds": "engine"}, 1),  # what is sampled depends on what else is
    ],
)
def test_a_small_policy_is_sampled_by_a_process_for_each_core(changes: dict, number: int) -> None:
    assert processes.count(shape(TINY), RolloutConfig(**changes)) == number


def test_a_large_policy_or_little_memory_leave_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.count({**shape(TINY), "vocab_size": 200_000}, RolloutConfig()) == 1
    monkeypatch.setattr(processes.machine, "memory_left", lambda: (3 * 2**30, "memory"))
    assert processes.count(shape(TINY), RolloutConfig()) == 1


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.NUMBER, "3")
    assert processes.count(shape(TINY), RolloutConfig(groups=1)) == 3
    monkeypatch.setenv(processes.NUMBER, "two")
    with pytest.raises(ValueError, match='GRPO_ROLLOUT_PROCESSES is "two"; allowed: 1 to 64, or unset'):
        processes.count(shape(TINY), RolloutConfig())


def test_two_processes_sample_what_one_does(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def results() -> tuple:
        worker = RolloutWorker(tiny_policy, SMALL, "blackjack", "", 0, 0, progress)
        batch, metrics = sample_batch(worker)
        tasks = TaskSet("blackjack", 9, seed=0)
        chosen = tasks.choose(tasks.spec(SMALL))
        episodes = tasks.play(tiny_policy, SMALL, chosen, 1.0, lambda episode: ended.append(episode.task.id))
        timeless = {name: value for name, value in metrics.items() if not name.endswith(("_s", "_per_second"))}
        assert sorted(ended) == sorted(task.id for task in chosen)
        return batch, timeless, [(episode.task, episode.messages, episode.reward) for episode in episodes]

    def progress(done: int, wanted: int, note: str) -> None:
        assert 0 <= done <= wanted == SMALL.groups

    ended: list[str] = []
    monkeypatch.setenv(processes.NUMBER, "1")
    alone = results()
    ended.clear()
    monkeypatch.setenv(processes.NUMBER, "2")
    together = results()
    assert len(processes._others) == 1
    assert together[0].equals(alone[0]) and together[1:] == alone[1:]
    processes._close()


def test_an_error_of_one_is_raised_and_ends_all() -> None:
    with pytest.raises(ValueError, match="math domain error"):
        processes.together(list, math.sqrt, [(-1.0,), (4.0,)])
    assert not processes._others
    assert processes.together(os.getpid, math.sqrt, [(9.0,), (4.0,)]) == [os.getpid(), 3.0, 2.0]
    first = processes._others[0].process
    with pytest.raises(KeyboardInterrupt):
        processes.together(_interrupted, time.sleep, [(600,)])
    assert first.exitcode == -signal.SIGKILL and not processes._others


def test_one_that_is_gone_is_told() -> None:
    processes.start(1, int)
    processes._others[0].process.kill()
    with pytest.raises(RuntimeError, match=r"ended with -9; with GRPO_ROLLOUT_PROCESSES=1 there is none"):
        processes.together(list, math.sqrt, [(9.0,)])


def test_they_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    script = tmp_path / "begin.py"
    script.write_text(
        "import time\n"
        "from tasks.rollout import processes\n"
        "if __name__ == '__main__':\n"
        "    processes.start(1, time.sleep, 600)\n"
        "    print(processes._others[0].process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    began = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert began.stdout is not None
    other = psutil.Process(int(began.stdout.readline()))
    began.kill()
    began.wait()
    other.wait(timeout=60)


def _interrupted() -> None:
    raise KeyboardInterrupt
