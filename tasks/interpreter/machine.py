"""Sessions in a machine elsewhere that runs Python: the executor of a local session, sent there, answers line by line.

Each provider says how a line is answered, whether the machine lives, and how it ends. Values so keep their exact types,
output is cut there, and what comes back is checked like a local session's reply.
"""

import asyncio
import base64
import os
import time
from pathlib import Path

from tasks.interpreter import limits
from tasks.interpreter.interface import Execution
from tasks.interpreter.wire import MOST, REPLY, parse_reply, reply_length

_MODULES = ("limits", "wire", "values", "executor")
_NETWORK = 1.0  # seconds on top of a limit, for the way there and back
LONGEST_LINE = (REPLY.size + sum(MOST)) * 4 // 3 + 1000  # of a reply

_BOOT = """
import base64, builtins, sys, types
for name in ("tasks", "tasks.interpreter"):
    sys.modules[name] = types.ModuleType(name)
for name, source in {sources!r}:
    module = types.ModuleType("tasks.interpreter." + name)
    module.__file__ = "<" + module.__name__ + ">"
    sys.modules[module.__name__] = module
    setattr(sys.modules["tasks.interpreter"], name, module)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
def _answer(line, namespace={{"__name__": "__main__", "__builtins__": builtins}}, execute=module.execute):
    request, streams = base64.b64decode(line), (sys.stdout, sys.stderr)
    try:
        reply = execute(request[:8], request[8:].decode("utf-8", "surrogatepass"), namespace)
    finally:
        sys.stdout, sys.stderr = streams
    return base64.b64encode(reply).decode()
"""


def boot_code() -> str:
    """Python, 3.10 or later, that defines `_answer(line)`: a reply as a line of base64, to a request as one."""
    folder = Path(__file__).parent
    return _BOOT.format(sources=[(name, (folder / f"{name}.py").read_text()) for name in _MODULES])


class MachineSession:
    """One machine, for one session. A provider fills in the first three methods."""

    async def _answer(self, line: str, timeout_s: float) -> str:
        """The line that answers it. Raises TimeoutError, EOFError where the code's process is gone, or any error."""
        raise NotImplementedError

    async def _alive(self) -> bool:
        """Whether the machine still answers."""
        raise NotImplementedError

    async def _stop(self) -> None:
        """End the machine."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._ended: Execution | None = None

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Run code; cancelling it ends the session."""
        if self._ended:
            return self._ended
        body, token, began = code.encode("utf-8", "surrogatepass"), os.urandom(8), time.monotonic()
        if len(body) > limits.CODE:
            return Execution("error", error=f"the code has {len(body)} bytes; allowed: up to {limits.CODE}.")
        line = base64.b64encode(token + body).decode()
        try:
            text = await asyncio.wait_for(self._answer(line, timeout_s + _NETWORK), timeout_s + _NETWORK)
            data = base64.b64decode(text, validate=True)
            if reply_length(data, token) != len(data):
                raise ValueError("not a reply")
            reply = parse_reply(data)
        except TimeoutError:
            late = Execution("timeout", error=f"the code ran longer than {timeout_s:g} s")
            return await self._fail(late, began)
        except (EOFError, ValueError) as error:
            why = "the code's process ended" if isinstance(error, EOFError) else "the code changed its session's output"
            return await self._fail(Execution("killed", error=why), began)
        except asyncio.CancelledError:
            await self._finish(Execution("killed", error="the session ended when its execution was cancelled"))
            raise
        except Exception as error:  # the provider's packages have many; none of them is the code's
            return await self._finish(Execution("unavailable", error=f"{type(error).__name__}: {error}"[:500]))
        texts = (reply.stdout, reply.stderr, reply.value, reply.shown, reply.error)
        passed = time.monotonic() - began
        return Execution("ok" if reply.ok else "error", *texts, passed, reply.cpu_seconds, reply.truncated)

    async def _fail(self, found: Execution, began: float) -> Execution:
        """The code's fault where the machine still answers, else the machine's."""
        try:
            alive = await asyncio.wait_for(self._alive(), 10)
        except Exception:  # as above
            alive = False
        if not alive:
            return await self._finish(Execution("unavailable", error="the machine does not answer"))
        await self._finish(Execution("killed", error=found.error))
        return Execution(found.status, error=found.error, seconds=time.monotonic() - began)

    async def _finish(self, ended: Execution) -> Execution:
        if self._ended is None:
            self._ended = ended
            try:
                await asyncio.wait_for(self._stop(), 30)
            except Exception:  # as above; the provider ends a machine after its time too
                return ended
        return ended

    async def close(self) -> None:
        """End the machine. Calling it again does nothing."""
        await self._finish(Execution("killed", error="the session was closed"))


class NoMachine:
    """A session that could not be had."""

    def __init__(self, error: Exception) -> None:
        self._said = Execution("unavailable", error=f"no session can be opened: {type(error).__name__}: {error}"[:500])

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Unavailable."""
        return self._said

    async def close(self) -> None:
        """Nothing is open."""
