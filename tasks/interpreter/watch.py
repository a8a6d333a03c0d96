"""When an execution has had its time.

A limit counts the time in which the code ran or slept. Time in which it was ready to run while other work had the
processors is the machine's: the execution gets it back. Where that goes on for several times the limit, the sandbox
is to blame and not the code, as it is where somebody stopped the process, which the code cannot do. So an endless
loop and an endless sleep are timeouts, also on a busy machine, and code that needs half of its limit is not too slow
only because the machine was busy. Both numbers are the kernel's: the session has no say in them. With more threads
than processors a session makes itself wait, but then it uses up its limit as processor time.
"""

import asyncio
import os
import time

_FIRST_LOOK = 0.02  # seconds; most executions are over by then, and cost no look at /proc
_GRACE = 10  # times the limit that an execution may take where other work has the processors


class Deadline:
    """Sets TimeoutError in a future after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, done: "asyncio.Future[bytes]") -> None:
        """Begin to count."""
        self._later(self._seconds, done)

    def cancel(self) -> None:
        """Stop counting."""
        if self._timer:
            self._timer.cancel()

    def _later(self, seconds: float, done: "asyncio.Future[bytes]") -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look, done)

    def _look(self, done: "asyncio.Future[bytes]") -> None:
        if not done.done():
            done.set_exception(TimeoutError())


class TimeLimit(Deadline):
    """The same for an execution in the process `pid`, by the rule above. `crowd`: executions a processor, now."""

    def __init__(self, seconds: float, pid: int, crowd: float) -> None:
        super().__init__(seconds)
        self._pid, self._patience = pid, seconds * (_GRACE + 2 * crowd)
        self._cpu = self._waited = -1.0

    def begin(self, done: "asyncio.Future[bytes]") -> None:
        """Begin to count."""
        self._began, self._cpu = time.monotonic(), processor_seconds(self._pid)
        self._later(min(_FIRST_LOOK, self._seconds), done)

    @property
    def cpu_seconds(self) -> float:
        """Processor time since the beginning, of all threads."""
        return max(0.0, processor_seconds(self._pid) - self._cpu)

    def _look(self, done: "asyncio.Future[bytes]") -> None:
        if done.done():
            return
        passed, waited = time.monotonic() - self._began, waiting_seconds(self._pid)
        if self._waited < 0:
            self._waited = waited
        elif passed >= self._patience:
            done.set_exception(TimeoutError("other work had the processors"))
            return
        left = self._seconds - max(passed - (waited - self._waited), self.cpu_seconds)
        if left <= 0 and is_stopped(self._pid):
            done.set_exception(TimeoutError("the sandbox was stopped"))
        elif left <= 0:
            done.set_exception(TimeoutError())
        else:
            self._later(min(max(left, 0.002), self._patience - passed), done)


def processor_seconds(pid: int) -> float:
    """Processor time of a process, all its threads together; 0 where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns
    except OSError:
        return 0.0


def waiting_seconds(pid: int) -> float:
    """How long the process's first thread was ready to run without running; 0 where the kernel does not tell."""
    try:
        fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 256).split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
    finally:
        os.close(fd)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
