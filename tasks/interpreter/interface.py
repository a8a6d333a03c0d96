"""What an interpreter of Python is, to the environments that give one to a policy or grade by one.

open_interpreter("local") ──► Interpreter.open() ──► Session.run(code, timeout_s) ──► Execution
"""

from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["ok", "error", "timeout", "killed", "unavailable"]


@dataclass(frozen=True)
class Execution:
    """What came of one piece of code.

    Example: `Execution("ok", stdout="7\\n", value="42", shown="42", seconds=0.0004)` for `print(7); 6 * 7`.
    """

    status: Status  # unavailable: the sandbox failed, not the code; never counted against a policy
    stdout: str = ""
    stderr: str = ""
    value: str = ""  # the last expression's, encoded by exact type (tasks.interpreter.values); "": none
    shown: str = ""  # its repr, for people and policies
    error: str = ""  # the exception's last line, or why it was killed or unavailable
    seconds: float = 0.0  # wall time
    cpu_seconds: float = 0.0
    truncated: bool = False  # whether output was cut


class Session(Protocol):
    """One interpreter with its variables, apart from all others."""

    async def run(self, code: str, timeout_s: float) -> Execution:
        """Run code; a failure of any kind is a status, never an exception."""
        ...

    async def close(self) -> None:
        """End it and all that it started."""
        ...


class Interpreter(Protocol):
    """Opens sessions; one for a process, shared by all environments in it."""

    description: str  # which isolation it has, for the console: "bubblewrap, namespaces and seccomp"

    async def open(self) -> Session:
        """A fresh session. Where none can be had, all that it is given is "unavailable"."""
        ...

    async def close(self) -> None:
        """Close all that is open."""
        ...
