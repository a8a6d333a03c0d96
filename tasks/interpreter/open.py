"""The interpreter that a setting names, shared by all that this process runs."""

import atexit
import os
import sys
import threading

from tasks.interpreter.interface import Interpreter
from tasks.settings import require

_opened: dict[tuple[int, str], Interpreter] = {}  # by process: a fork does not share its parent's
_opening = threading.Lock()


def open_interpreter(setting: str) -> Interpreter:
    """The one interpreter of this process for `setting`, "local"; started by the first call, ended with the process.

    The first call says on stderr which isolation it has; it takes up to a second, and does no work of an event loop.
    Raises ValueError for another setting, RuntimeError where this machine cannot isolate code, in one sentence each.
    """
    require(setting == "local", "interpreter", setting, "local")
    with _opening:
        key = os.getpid(), setting
        if key not in _opened:
            from tasks.interpreter.local import LocalInterpreter

            made = LocalInterpreter()
            atexit.register(made.shut)
            print(f"interpreter: {made.description}", file=sys.stderr, flush=True)
            _opened[key] = made
        return _opened[key]
