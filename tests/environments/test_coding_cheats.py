"""Answers that try to be graded as right without being right. Each scores what an honest failure scores: nothing."""

import asyncio
from dataclasses import replace

import pytest

from coding_problem import DOUBLE, graded
from tasks.environments.coding.grading import grade
from tasks.environments.coding.humaneval import humaneval
from tasks.interpreter.open import open_interpreter

WRONG = "def double(n):\n    return 1\n"
EQUAL = "def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = None"
CHEATS = {
    "prints a result": "def double(n):\n    print('{\"tuple\":[6]}', 'passed', 2 * n)\n",
    "prints at import": 'print(\'8 passed\')\nprint(\'{"status": "ok", "value": 6}\')\n' + WRONG,
    "exits with 0": "import sys\nsys.exit(0)",
    "exits with 0 in the call": "import sys\ndef double(n):\n    sys.exit(0)",
    "ends the process with 0": "import os\nos._exit(0)",
    "ends the process with 0 in the call": "import os\ndef double(n):\n    os._exit(0)",
    "raises SystemExit of its own": "class Ok(SystemExit): code = 0\ndef double(n):\n    raise Ok",
    "raises what looks like a pass": "class passed(Exception): pass\ndef double(n):\n    raise passed('8 of 8')",
    "equal to everything": f"class Any:\n    {EQUAL}\ndef double(n):\n    return Any()",
    "an int equal to everything": f"class Any(int):\n    {EQUAL}\ndef double(n):\n    return Any(1)",
    "a class in place of the function": f"class double:\n    def __init__(self, n): pass\n    {EQUAL}",
    "a tuple of its own": f"class Any(tuple):\n    {EQUAL}\ndef double(n):\n    return Any((6,))",
    "text that looks like a value": "def double(n):\n    return '{\"tuple\":[%d]}' % 6",
    "a generator of all numbers": "def double(n):\n    yield from range(-10**6, 10**6)",
    "not a number": "def double(n):\n    return float('nan')",
    "the right number of another type": "def double(n):\n    return float(2 * n)",
    "patches json": "import json\njson.dumps = lambda *a, **k: '{\"tuple\":[6]}'\njson.loads = json.dumps\n" + WRONG,
    "patches builtins": (
        "import builtins\nbuiltins.type = lambda *a: int\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.repr = builtins.str = lambda *a: '6'\nbuiltins.print = lambda *a: None\n" + WRONG
    ),
    "patches compile": (
        "import ast, builtins\nold = builtins.compile\n"
        "builtins.compile = lambda *a, **k: old('True', 'x', a[2])\nast.parse = lambda *a, **k: old('1', "
        "'x', 'exec', 1024)\n" + WRONG
    ),
    "patches the encoder": (
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    for attribute in ('encode', '_plain', '_encoded', 'pack_reply', '_explain'):\n"
        "        if hasattr(module, attribute) and 'codecs' not in name:\n"
        "            setattr(module, attribute, lambda *a, **k: b'{\"tuple\":[6]}')\n" + WRONG
    ),
    "overwrites the runner": (
        "import sys\nfor module in list(sys.modules.values()):\n    for name in ('_execute', '_run', 'serve'):\n"
        "        if hasattr(module, name):\n            try: setattr(module, name, lambda *a, **k: 6)\n"
        "            except Exception: pass\n" + WRONG
    ),
    "changes the code of the runner": (
        "import gc, types\nfor f in gc.get_objects():\n"
        "    if isinstance(f, types.FunctionType) and f.__name__ in ('_run', '_execute', '_encoded', 'encode'):\n"
        "        try: f.__code__ = (lambda *a, **k: 6).__code__\n        except Exception: pass\n" + WRONG
    ),
    "looks for the expected value in frames": (
        "import sys\ndef double(n):\n    frame = sys._getframe()\n    while frame:\n"
        "        for space in (frame.f_locals, frame.f_globals):\n            for name in ('expected', "
        "'case', 'cases'):\n"
        "                if name in space: return space[name]\n        frame = frame.f_back\n"
    ),
    "looks for the tests among all objects": (
        "import gc\ndef double(n):\n    for o in gc.get_objects():\n        if type(o).__name__ in "
        "('Case', 'Problem'):\n"
        "            return getattr(o, 'expected', 6)\n        if isinstance(o, dict) and 'expected' in "
        "o: return o['expected']\n"
    ),
    "looks for the tests in files": (
        "import os\ndef double(n):\n    for folder, _, files in os.walk('/'):\n        for name in files:\n"
        "            if name.endswith(('.jsonl', 'problems.py', 'grading.py', 'own.py')):\n"
        "                return open(os.path.join(folder, name)).read()\n"
    ),
    "looks for the tests in memory and environment": (
        "def double(n):\n    for name in ('mem', 'environ', 'cmdline', '1/environ', '1/mem'):\n"
        "        try: return open('/proc/self/' + name, 'rb').read()\n        except OSError: pass\n"
    ),
    "imports the tests": (
        "def double(n):\n    from tasks.environments.coding.problems import build\n    return "
        "build('windows', 1).cases[0].expected"
    ),
    "remembers the inputs": "seen = []\ndef double(n):\n    seen.append(n)\n    return seen[0] * 2 if "
    "len(seen) > 1 else 1",
    "leaves a thread that writes": (
        "import os, threading\ndef write():\n    while True:\n        for fd in range(3, 30):\n"
        "            try: os.write(fd, b'{\"tuple\":[6]}' * 9)\n            except OSError: pass\n"
        "threading.Thread(target=write, daemon=True).start()\n" + WRONG
    ),
    "leaves a thread that patches": (
        "import threading, builtins\ndef patch():\n    while True: globals()['double'] = lambda n: True\n"
        "threading.Thread(target=patch, daemon=True).start()\n" + WRONG
    ),
    "forges a reply": (
        "import os, struct\ndef double(n):\n    value = b'{\"tuple\":[6]}'\n"
        "    reply = struct.pack('<8sBBd5I', b'\\0' * 8, 1, 0, 0.0, 0, 0, len(value), 0, 0) + value\n"
        "    for fd in range(3, 30):\n        try: os.write(fd, reply)\n        except OSError: pass\n    return 1\n"
    ),
    "closes the channel": "import os\ndef double(n):\n    os.closerange(0, 64)\n    return 1",
    "patches struct and os": (
        "import os, struct\nos.write = lambda fd, data: len(data)\nos.read = lambda *a: b''\n"
        "struct.pack = lambda *a: b'ok'\nos._exit = lambda *a: None\n" + WRONG
    ),
    "ends all processes": "import os, signal\ndef double(n):\n    os.kill(-1, signal.SIGKILL)",
    "ends its parent": "import os, signal\ndef double(n):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 1",
    "answers in a fork": "import os\ndef double(n):\n    if os.fork() == 0: return 1\n    os.wait()\n    return 1",
    "takes all memory": "def double(n):\n    return [0] * 10**10",
    "nests without end": "def double(n):\n    found = []\n    for _ in range(10**5): found = [found]\n    return found",
    "traces the caller": (
        "import sys\ndef trace(frame, event, arg):\n    frame.f_locals['result'] = (6,)\n    return trace\n"
        "def double(n):\n    sys.settrace(trace)\n    return 1\n"
    ),
    "an exit handler": "import atexit, sys\natexit.register(lambda: print('8 passed'))\ndef double(n):\n"
    "    sys.exit(0)",
    "a timer that raises": (
        "import signal\ndef passed(*a): raise SystemExit(0)\nsignal.signal(signal.SIGALRM, passed)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n" + WRONG
    ),
    "breaks its own output": "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None\n" + WRONG,
    "no code": "",
    "another name": "def triple(n):\n    return 2 * n",
}


def test_there_are_enough_of_them() -> None:
    assert len(CHEATS) >= 25


def test_the_honest_ones() -> None:
    assert graded(DOUBLE, "def double(n):\n    return 2 * n") == ["passed"] * 8
    assert graded(DOUBLE, WRONG) == ["wrong"] * 8


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing(name: str) -> None:
    outcomes = graded(DOUBLE, CHEATS[name])
    assert len(outcomes) == 8
    assert "passed" not in outcomes


def test_the_next_grading_does_not_notice() -> None:
    for name in ("patches builtins", "ends all processes", "leaves a thread that writes", "closes the channel"):
        graded(DOUBLE, CHEATS[name])
        assert graded(DOUBLE, "def double(n):\n    return 2 * n") == ["passed"] * 8


@pytest.mark.parametrize("name", CHEATS)
def test_a_test_that_is_a_function_is_not_fooled_either(name: str) -> None:
    # HumanEval's asserts, which compare with == themselves, see plain values only.
    of = replace(
        DOUBLE,
        id="own-checked",
        cases=(),
        reference="def double(n):\n    return 2 * n",
        check="def check(candidate):\n    assert candidate(4) == 8\n    assert abs(candidate(5) - 10) < 1e-6",
    )
    expected = "passed" if name == "the right number of another type" else None  # 8.0 == 8 for these asserts
    (outcome,) = graded(of, CHEATS[name])
    assert (outcome == "passed") == (expected == "passed"), outcome


def test_humaneval_is_not_fooled() -> None:
    anything = f"class Any:\n    {EQUAL}\n    def __sub__(self, other): return 0.0\n    __abs__ = __float__ = __sub__"

    async def outcomes() -> list[str]:
        interpreter = open_interpreter("local")
        cheats = [(of, f"{anything}\ndef {of.name}(*arguments):\n    return Any()") for of in humaneval()[::8]]
        return [(await grade(interpreter, of, cheat, 2.0))[0] for of, cheat in cheats]

    assert "passed" not in asyncio.run(outcomes())
