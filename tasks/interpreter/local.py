"""The interpreter on this machine: sessions are forks of a warm Python behind a wall (tasks.interpreter.sandbox)."""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import threading
import time

from tasks.interpreter import limits
from tasks.interpreter.channel import exchange
from tasks.interpreter.interface import Execution, Status
from tasks.interpreter.sandbox import WALLS, Sandbox, start
from tasks.interpreter.watch import Deadline, TimeLimit
from tasks.interpreter.wire import READY, REQUEST, parse_reply, ready_length, reply_length

_PROCESSORS = os.cpu_count() or 1


class LocalInterpreter:
    """Opens sessions in a sandbox, which is started again where it was killed.

    `wall` is one of WALLS; "": the first that holds here. Event loops may use it one after the other, or in several
    threads. Raises RuntimeError, in one sentence, where this machine cannot isolate code.
    """

    def __init__(self, wall: str = "") -> None:
        self._sandbox, self._wall = (Sandbox(wall), wall) if wall else start()
        self.description = WALLS[self._wall]
        self.running = 0  # executions, now
        self._starting, self._names = threading.Lock(), itertools.count()
        _allow_many_open_files()

    async def open(self) -> "LocalSession":
        """A fresh session. Where none can be had, it says "unavailable" to all it is given."""
        sandbox = self._sandbox
        try:
            if not sandbox.alive:
                sandbox = await asyncio.to_thread(self._start_again)
            session = LocalSession(self, sandbox, next(self._names).to_bytes(8, "big"))
            await session.begin()
        except (OSError, RuntimeError) as error:
            return LocalSession(self, sandbox, b"", f"no session can be opened: {error}")
        return session

    def _start_again(self) -> Sandbox:
        with self._starting:
            if not self._sandbox.alive:
                self._sandbox.close()
                self._sandbox = Sandbox(self._wall)
            return self._sandbox

    async def close(self) -> None:
        """End all sessions."""
        self.shut()

    def shut(self) -> None:
        """The same without an event loop."""
        self._sandbox.close()


class LocalSession:
    """One fork, and the host's end of its channel."""

    def __init__(self, owner: LocalInterpreter, sandbox: Sandbox, name: bytes, why: str = "") -> None:
        self._owner, self._sandbox, self._name = owner, sandbox, name
        self._ended = Execution("unavailable", error=why)  # what an execution is where there is no channel
        self._channel: socket.socket | None = None
        self._pid, self._busy = 0, False  # its process id in /proc of the host; whether it runs code

    async def begin(self) -> None:
        """Fork. Raises RuntimeError where there is no process, OSError where this one has no room for a channel."""
        try:
            self._channel = await self._sandbox.channel_soon(self._name)
            data = await exchange(self._channel, b"", ready_length, Deadline(limits.START_SECONDS))
            word, self._pid = READY.unpack_from(data)
            if not word.startswith(b"ready"):
                raise RuntimeError(data[READY.size :].decode(errors="replace"))
        except BaseException as error:
            self._end(Execution("unavailable", error="the sandbox did not answer"))
            if isinstance(error, (EOFError, ValueError, TimeoutError)):
                raise RuntimeError("the sandbox did not answer") from error
            raise

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Run code for at most `timeout_s` seconds; see tasks.interpreter.watch. Cancelling it ends the session."""
        channel = self._channel
        if channel is None:
            return self._ended
        body, token = code.encode("utf-8", "surrogatepass"), os.urandom(8)
        if len(body) > limits.CODE:
            return Execution("error", error=f"the code has {len(body)} bytes; allowed: up to {limits.CODE}.")
        if self._busy:
            raise RuntimeError("a session runs one piece of code at a time")
        self._owner.running, self._busy = self._owner.running + 1, True
        began = time.monotonic()
        limit = TimeLimit(timeout_s, self._pid, self._owner.running / _PROCESSORS)
        try:
            request = REQUEST.pack(token, len(body)) + body
            data = await exchange(channel, request, lambda data: reply_length(data, token), limit)
            reply = parse_reply(data)
        except TimeoutError as error:
            return self._late(f"{error}", timeout_s, time.monotonic() - began, limit.cpu_seconds)
        except (EOFError, ValueError) as error:
            status, why = await self._death(error)
            return Execution(status, error=why, seconds=time.monotonic() - began)
        except BaseException:
            self._end(Execution("killed", error="the session ended when its execution was cancelled"))
            raise
        finally:
            self._owner.running, self._busy = self._owner.running - 1, False
            if self._channel is None:
                channel.close()
        texts = (reply.stdout, reply.stderr, reply.value, reply.shown, reply.error)
        passed = time.monotonic() - began
        return Execution("ok" if reply.ok else "error", *texts, passed, reply.cpu_seconds, reply.truncated)

    def _late(self, blame: str, timeout_s: float, passed: float, cpu: float) -> Execution:
        self._end(Execution("killed", error="the session ended at a time limit"))
        if blame:
            return Execution("unavailable", error=blame, seconds=passed, cpu_seconds=cpu)
        why = f"the code ran longer than {timeout_s:g} s"
        return Execution("timeout", error=why, seconds=passed, cpu_seconds=cpu)

    async def _death(self, error: Exception) -> tuple[Status, str]:
        """Whether the code ended its session, or the sandbox ended: then there is no other session either."""
        why = "the process ended: by itself, or by a limit on memory, processor time or files"
        if isinstance(error, ValueError):
            why = "the code wrote to the channel of its session"
        self._end(Execution("killed", error=f"the session is over: {why}"))
        other = LocalSession(self._owner, self._sandbox, b"another" + self._name)
        try:
            await other.begin()
        except (OSError, RuntimeError):
            self._ended = Execution("unavailable", error="the sandbox ended")
            return "unavailable", "the sandbox ended"
        await other.close()
        return "killed", why

    async def close(self) -> None:
        """End the process. Calling it again does nothing."""
        self._end(Execution("killed", error="the session was closed"))

    def _end(self, ended: Execution) -> None:
        self._ended = ended
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)  # an execution that still waits for it sees the end
            if not self._busy:
                self._channel.close()
            self._channel = None
            self._sandbox.kill(self._name)


def _allow_many_open_files() -> None:
    """Each session is a socket, and the soft limit often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
