"""Sessions in Together's microVMs, by its package: `pip install flyte-grpo[together]`, and TOGETHER_API_KEY set.

A session is a sandbox of its own, made from a snapshot that has python3, and in it one Python process.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tasks.interpreter.interface import Session
from tasks.interpreter.machine import LONGEST_LINE, MachineSession, NoMachine, boot_code

_LIFETIME = 3600  # seconds after which Together ends a sandbox
_LOOP = "\nfor line in sys.stdin:\n    print(_answer(line), flush=True)\n"


class TogetherInterpreter:
    """Sandboxes of the snapshot with this alias; "": as the service chooses.

    Raises ValueError, in one sentence, where the package or the key is missing.
    """

    def __init__(self, snapshot: str = "") -> None:
        self._snapshot, self.description = snapshot or None, "microVMs of Together"
        if not os.environ.get("TOGETHER_API_KEY"):
            raise ValueError(
                'interpreter is "together" and TOGETHER_API_KEY is not set; it needs a key of https://together.ai.'
            )
        try:
            import together_sandbox  # noqa: F401
        except ImportError:
            raise ValueError('interpreter is "together"; it needs pip install "flyte-grpo[together]".') from None

    async def open(self) -> Session:
        """A fresh session. Where none can be had, all that it is given is unavailable."""
        from together_sandbox import TogetherSandbox

        sdk = TogetherSandbox()
        try:
            sandbox = await sdk.sandboxes.create(snapshot_alias=self._snapshot, ttl=_LIFETIME)
        except Exception as error:  # the service's, of many kinds
            await sdk.close()
            return NoMachine(error)
        session = TogetherSession(sdk, sandbox)
        try:
            await session.begin()
        except Exception as error:
            await session.close()
            return NoMachine(error)
        return session

    async def close(self) -> None:
        """The sandboxes are ended one by one."""


class TogetherSession(MachineSession):
    """One sandbox, and the process in it."""

    def __init__(self, sdk: Any, sandbox: Any) -> None:
        super().__init__()
        self._sdk, self._sandbox, self._process = sdk, sandbox, ""
        self._events: AsyncIterator[dict[str, Any]] | None = None

    async def begin(self) -> None:
        """Start Python there."""
        made = await self._sandbox.execs.create("python3", ["-u", "-c", boot_code() + _LOOP], autostart=True)
        self._process = made.id
        self._events = self._sandbox.execs.stream_output(made.id)

    async def _answer(self, line: str, timeout_s: float) -> str:
        assert self._events is not None
        await self._sandbox.execs.send_stdin(self._process, f"{line}\n")
        text = ""
        async for event in self._events:
            text += str(event.get("output", ""))
            if len(text) > LONGEST_LINE or (found := text.partition("\n"))[2]:
                raise ValueError("more than a reply")
            if found[1]:
                return found[0]
            if isinstance(event.get("exitCode"), int):
                raise EOFError(f"exit code {event['exitCode']}")
        raise EOFError("the output ended")

    async def _alive(self) -> bool:
        await self._sandbox.execs.list()
        return True

    async def _stop(self) -> None:
        with suppress(asyncio.TimeoutError):
            if self._events is not None:
                await asyncio.wait_for(self._events.aclose(), 5)  # type: ignore[attr-defined]
        try:
            await self._sandbox.terminate(snapshot=None)
        finally:
            await self._sandbox.close()
            await self._sdk.close()
