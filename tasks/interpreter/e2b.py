"""Sessions in E2B's microVMs, by its package e2b-code-interpreter: `pip install flyte-grpo[e2b]`, and E2B_API_KEY set.

A session is a sandbox of its own without a way to the internet. The code runs in the sandbox's Python kernel.
"""

import os

from tasks.interpreter.interface import Session
from tasks.interpreter.machine import LONGEST_LINE, MachineSession, NoMachine, boot_code

_LIFETIME = 3600  # seconds after which E2B ends a sandbox


class E2BInterpreter:
    """Raises ValueError, in one sentence, where the package or the key is missing."""

    description = "microVMs of E2B"

    def __init__(self) -> None:
        if not os.environ.get("E2B_API_KEY"):
            raise ValueError('interpreter is "e2b" and E2B_API_KEY is not set; it needs a key of https://e2b.dev.')
        try:
            import e2b_code_interpreter  # noqa: F401
        except ImportError:
            raise ValueError('interpreter is "e2b"; it needs pip install "flyte-grpo[e2b]".') from None

    async def open(self) -> Session:
        """A fresh session. Where none can be had, all that it is given is unavailable."""
        from e2b_code_interpreter import AsyncSandbox

        try:
            sandbox = await AsyncSandbox.create(timeout=_LIFETIME, allow_internet_access=False)
        except Exception as error:  # E2B's many exceptions have no base of their own
            return NoMachine(error)
        session = E2BSession(sandbox)
        try:
            booted = await sandbox.run_code(boot_code(), timeout=60)
        except Exception as error:
            await session.close()
            return NoMachine(error)
        if booted.error:
            await session.close()
            return NoMachine(RuntimeError(booted.error.value))
        return session

    async def close(self) -> None:
        """The sandboxes are ended one by one."""


class E2BSession(MachineSession):
    """One sandbox."""

    def __init__(self, sandbox) -> None:
        super().__init__()
        self._sandbox = sandbox

    async def _answer(self, line: str, timeout_s: float) -> str:
        size = 0

        def count(message) -> None:
            nonlocal size
            size += len(message.line)
            if size > LONGEST_LINE:
                raise ValueError("more than a reply")

        found = await self._sandbox.run_code(
            f"print(_answer('{line}'))", on_stdout=count, on_stderr=count, timeout=timeout_s + 5
        )
        if found.error:
            raise EOFError(found.error.name)  # the kernel was started anew, or _answer is not what it was
        return "".join(found.logs.stdout).strip()

    async def _alive(self) -> bool:
        return await self._sandbox.is_running(request_timeout=8)

    async def _stop(self) -> None:
        await self._sandbox.kill()
