"""The interpreter that a setting names, shared by all that this process runs."""

import atexit
import os
import sys
import threading
from multiprocessing import parent_process

from tasks.interpreter.interface import Interpreter
from tasks.settings import require

ALLOWED = "local, openenv:URL of a server of tasks.interpreter.serve, e2b, together or together:SNAPSHOT"
_opened: dict[tuple[int, str], Interpreter] = {}  # by process: a fork does not share its parent's
_opening = threading.Lock()


def open_interpreter(setting: str) -> Interpreter:
    """The one interpreter of this process for `setting`; started by the first call, ended with the process.

    The first call says on stderr what isolates the code; it takes up to a second. Raises, in one sentence each,
    ValueError for another setting or a missing key, RuntimeError where this machine cannot isolate code,
    ConnectionError where no server answers.
    """
    with _opening:
        key = os.getpid(), setting
        if key not in _opened:
            made = _make(setting)
            if parent_process() is None:  # else the process that began this one has said it
                print(f"interpreter: {made.description}", file=sys.stderr, flush=True)
            _opened[key] = made
        return _opened[key]


def _make(setting: str) -> Interpreter:
    kind, _, rest = setting.partition(":")
    require(setting in ("local", "e2b") or kind in ("openenv", "together"), "interpreter", setting, ALLOWED)
    if kind == "openenv":
        from tasks.interpreter.remote import RemoteInterpreter  # openenv takes seconds to import

        return RemoteInterpreter(rest)
    if kind == "e2b":
        from tasks.interpreter.e2b import E2BInterpreter

        return E2BInterpreter()
    if kind == "together":
        from tasks.interpreter.together import TogetherInterpreter

        return TogetherInterpreter(rest)
    from tasks.interpreter.local import LocalInterpreter

    made = LocalInterpreter()
    atexit.register(made.shut)
    return made
