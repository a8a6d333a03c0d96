"""Further processes of this machine that sample beside this one, each with an engine of its own.

    this process ──► its share, here
                └──► the other shares ──pipes──► processes that stay warm

With a small policy most of a rollout is Python: scheduling, prompts, environments. It takes one core, whatever number
there is. What is sampled does not depend on the number of processes, as it does not on that of workers.
"""

import atexit
import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tasks import threads
from tasks.config import RolloutConfig
from tasks.policy import machine
from tasks.policy.memory import LIBRARIES, generator_role, parameters
from tasks.settings import require

NUMBER = "GRPO_ROLLOUT_PROCESSES"
MOST = 4
EPISODES = 512  # of a batch, from which on the start of another process is worth it
PARAMETERS = 20e6  # up to which Python takes longer than the policy's own arithmetic

T = TypeVar("T")


def count(config_json: Mapping[str, Any], config: RolloutConfig) -> int:
    """Processes that share the sampling, with this one, for a policy with this config.json.

    Those of the environment variable NUMBER. Else, for a small policy without a GPU, one for each core, up to MOST and
    to half of the memory that is left; 1 for few episodes, and always where all replies share one stream of chance.
    Raises ValueError, in one sentence, for another value of NUMBER.
    """
    if config.seeds == "engine":
        return 1
    if given := os.environ.get(NUMBER):
        require(given.isdecimal() and 1 <= int(given) <= 64, NUMBER, given, "1 to 64, or unset")
        return int(given)
    few = config.groups * config.group_size < EPISODES
    if few or parameters(config_json) > PARAMETERS or machine.gpu_bytes():
        return 1
    room = machine.memory_left()[0] / 2 // (sum(generator_role(config_json, config)) + LIBRARIES)
    return max(len(_others) + 1, min(MOST, threads.cores(), 1 + int(room)))


@dataclass
class _Other:
    """One more process, and what it was asked before anybody waited for it."""

    process: BaseProcess
    pipe: Connection
    asked: list[str] = field(default_factory=list)

    def ask(self, function: Callable[..., Any], *given: Any) -> None:
        with contextlib.suppress(OSError):  # one that is gone gives no answer either
            self.pipe.send((function, given))
        self.asked.append(function.__name__)

    def answer(self) -> Any:
        """What it answers to the last question. Raises what its function raised, and RuntimeError where it is gone."""
        found = None
        while self.asked:
            self.asked.pop(0)
            try:
                raised, found = self.pipe.recv()
            except (EOFError, OSError) as error:
                self.process.join(5)
                said = f"a process that samples beside this one ended with {self.process.exitcode}"
                raise RuntimeError(f"{said}; with {NUMBER}=1 there is none") from error
            if raised and not self.asked:
                raise found
        return found


_others: list[_Other] = []


def start(number: int, function: Callable[..., Any], *given: Any) -> None:
    """Begin further processes, up to `number`, with a first work that nobody waits for."""
    context = get_context("spawn")  # torch's threads do not survive a fork
    while len(_others) < number:
        ours, theirs = context.Pipe()
        # A daemon ends with this process, when that ends by itself.
        process = context.Process(target=_serve, args=(theirs, threads.share(number + 1)), daemon=True)
        process.start()
        theirs.close()
        _others.append(_Other(process, ours))
        _others[-1].ask(function, *given)


@atexit.register
def _close() -> None:
    """Let them end by themselves, which gives back what they hold of the system."""
    for other in _others:
        other.pipe.close()
    for other in _others:
        other.process.join(10)


def together(here: Callable[[], T], beside: Callable[..., T], shares: Sequence[tuple[Any, ...]]) -> list[T]:
    """What `here()` returns, and `beside(*share)` for each share, which run at the same time in other processes.

    `beside` is a function of a module. Raises what any of them raises.
    """
    start(len(shares), int)
    with _stopped_on_error():
        for other, share in zip(_others, shares, strict=False):
            other.ask(beside, *share)
        found = [here()]
        found += [other.answer() for other, _ in zip(_others, shares, strict=False)]
    return found


@contextlib.contextmanager
def _stopped_on_error() -> Iterator[None]:
    """Nobody waits any more for what the other processes do: they end."""
    try:
        yield
    except BaseException:
        for other in _others:
            other.process.kill()
            other.process.join()
        _others.clear()
        raise


def _serve(pipe: Connection, number_of_threads: str) -> None:
    """Do what comes through the pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    os.environ[threads.NUMBER] = number_of_threads
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, given = pipe.recv()
            try:
                answer = (False, function(*given))
            except Exception as error:
                answer = (True, error if _travels(error) else RuntimeError(f"{type(error).__name__}: {error}"))
            pipe.send(answer)


def _travels(error: Exception) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False


def _end_with_parent() -> None:
    """A process that was killed tells nobody."""
    if parent := parent_process():
        parent.join()
    os._exit(1)
