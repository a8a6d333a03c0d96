"""The local interpreter: what an execution says, sessions side by side, time limits, and a sandbox that dies."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator

import psutil
import pytest

from tasks.interpreter import limits
from tasks.interpreter.interface import Execution
from tasks.interpreter.local import LocalInterpreter
from tasks.interpreter.open import open_interpreter
from tasks.interpreter.sandbox import WALLS
from tasks.interpreter.values import decode


@pytest.fixture(scope="module", params=WALLS)
def interpreter(request: pytest.FixtureRequest) -> Iterator[LocalInterpreter]:
    made = LocalInterpreter(request.param)
    yield made
    made.shut()


def run(interpreter: LocalInterpreter, *codes: str, timeout_s: float = 20.0) -> list[Execution]:
    """Each in turn, in one session."""

    async def session() -> list[Execution]:
        opened = await interpreter.open()
        found = [await opened.run(code, timeout_s) for code in codes]
        await opened.close()
        return found

    return asyncio.run(session())


def test_what_an_execution_says(interpreter: LocalInterpreter) -> None:
    first, second, third, none = run(
        interpreter, "import sys\nx = 6", "print(x); print('no', file=sys.stderr); x * 7", "(x, b'1')", "None"
    )
    assert (first.status, first.stdout, first.value, first.shown) == ("ok", "", "", "")
    assert (second.stdout, second.stderr, second.value, second.shown) == ("6\n", "no\n", "42", "42")
    assert (decode(third.value), third.shown, third.truncated) == ((6, b"1"), "(6, b'1')", False)
    assert (none.status, none.shown) == ("ok", "") and 0 < second.seconds < 20


def test_errors_are_pythons_own(interpreter: LocalInterpreter) -> None:
    division, syntax, leaving, after = run(interpreter, "y = 1\n\n1 / 0", "1 +", "import sys; sys.exit(0)", "y")
    assert (division.status, division.error) == ("error", "ZeroDivisionError: division by zero")
    assert re.search(r'File "<code>", line 3, in <module>\n    1 / 0\n', division.stderr)
    assert "zygote" not in division.stderr and "executor" not in division.stderr
    assert (syntax.status, syntax.error) == ("error", "SyntaxError: invalid syntax")
    assert (leaving.status, leaving.error) == ("error", "SystemExit: 0")
    assert after.value == "1"


def test_text_of_all_kinds(interpreter: LocalInterpreter) -> None:
    lone, emoji, raw, null = run(
        interpreter,
        "print('\\ud800'); '\\ud800'",
        "print('é😀'); 'é😀'",
        "import sys; sys.stdout.buffer.write(b'\\xff')",
        "\0",
    )
    assert lone.stdout == "\\ud800\n" and decode(lone.value) == "\ud800"
    assert (emoji.stdout, decode(emoji.value)) == ("é😀\n", "é😀")
    assert raw.status == "ok" and null.status == "error"
    (surrogate,) = run(interpreter, "'\ud800'")
    assert surrogate.status == "error" and "surrogates not allowed" in surrogate.error


def test_what_is_too_long_is_cut_by_bytes(interpreter: LocalInterpreter) -> None:
    out, shown, value, code = run(
        interpreter, "print('é' * 100_000)", "'x' * 10_000", "[0] * 190_000", f"1 {' ' * limits.CODE}"
    )
    assert out.truncated and out.stdout == "é" * (limits.OUTPUT // 2)
    assert shown.truncated and len(shown.shown) == limits.SHOWN and decode(shown.value) == "x" * 10_000
    assert value.status == "ok" and value.value == ""
    assert (code.status, code.error[:27]) == ("error", "the code has 262146 bytes; ")
    assert run(interpreter, f"1 {' ' * (limits.CODE - 2)}")[0].value == "1"  # in several pieces


def test_a_value_of_another_type_is_only_shown(interpreter: LocalInterpreter) -> None:
    (found,) = run(interpreter, "class A(int): pass\nA(3)")
    assert (found.status, found.value, found.shown) == ("ok", "", "3")


def test_chance_and_the_order_of_sets_are_the_same_in_each_session(interpreter: LocalInterpreter) -> None:
    code = "import random; [random.random(), list(set('abcdef'))]"
    other = LocalInterpreter(next(wall for wall, text in WALLS.items() if text == interpreter.description))
    assert len({run(made, code)[0].value for made in (interpreter, interpreter, other)}) == 1
    other.shut()


def test_two_hundred_sessions_at_once_each_with_its_own_variables(interpreter: LocalInterpreter) -> None:
    async def one(number: int) -> str:
        session = await interpreter.open()
        await session.run(f"mine = {number}", 60)
        await asyncio.sleep(0)
        found = await session.run("mine", 60)
        await session.close()
        await session.close()
        return found.value

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(one, range(200)))

    assert asyncio.run(all_of_them()) == [str(number) for number in range(200)]
    assert asyncio.run(one(7)) == "7"  # in another event loop


def test_the_event_loop_goes_on_while_code_runs(interpreter: LocalInterpreter) -> None:
    async def both() -> tuple[Execution, int]:
        session = await interpreter.open()
        running, turns = asyncio.create_task(session.run("import time; time.sleep(0.3); 1", 20)), 0
        while not running.done():
            turns += 1
            await asyncio.sleep(0.001)
        await session.close()
        return await running, turns

    found, turns = asyncio.run(both())
    assert found.value == "1" and turns > 20


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "while True: print(1)"])
def test_a_time_limit_ends_the_session(interpreter: LocalInterpreter, code: str) -> None:
    late, after = run(interpreter, code, "1", timeout_s=0.2)
    assert (late.status, late.error) == ("timeout", "the code ran longer than 0.2 s") and late.seconds >= 0.2
    assert (after.status, after.error) == ("killed", "the session ended at a time limit")


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass",
        "import os\nfor fd in range(3, 64):\n    try: os.close(fd)\n    except OSError: pass",
    ],
)
def test_ending_the_process_is_never_ok(interpreter: LocalInterpreter, code: str) -> None:
    first, after = run(interpreter, code, "1")
    assert "killed" in (first.status, after.status) and after.status == "killed"
    assert run(interpreter, "1")[0].value == "1"


def test_cancelling_ends_the_session(interpreter: LocalInterpreter) -> None:
    async def cancelled() -> Execution:
        session = await interpreter.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.run("while True: pass", 60), 0.1)
        return await session.run("1", 1)

    found = asyncio.run(cancelled())
    assert (found.status, found.error) == ("killed", "the session ended when its execution was cancelled")


def in_open_session(interpreter: LocalInterpreter, harm: Callable[[], None]) -> list[Execution]:
    """What an execution says during which `harm` is done, the next one, and one in a new session."""

    async def whole() -> list[Execution]:
        session = await interpreter.open()
        await session.run("1", 20)
        running: Awaitable[Execution] = asyncio.create_task(session.run("import time; time.sleep(60)", 60))
        await asyncio.sleep(0.1)
        harm()
        found = [await running, await session.run("1", 20)]
        return [*found, await (await interpreter.open()).run("1", 20)]

    return asyncio.run(whole())


def test_a_sandbox_that_dies_is_unavailable_and_is_started_again(interpreter: LocalInterpreter) -> None:
    def kill() -> None:
        # bubblewrap's process on this side, and the first one in its namespace; or the zygote and its sessions.
        outer = psutil.Process(interpreter._sandbox.process.pid)
        for process in [outer, *outer.children()]:
            process.kill()

    during, after, again = in_open_session(interpreter, kill)
    assert (during.status, after.status) == ("unavailable", "unavailable")
    assert during.error == "the sandbox ended" and again.value == "1"


def test_a_sandbox_that_was_stopped_is_unavailable(interpreter: LocalInterpreter) -> None:
    async def stopped() -> Execution:
        session = await interpreter.open()
        psutil.Process(session._pid).suspend()
        return await session.run("1", 0.2)

    found = asyncio.run(stopped())
    assert (found.status, found.error) == ("unavailable", "the sandbox was stopped")


def test_threads_and_files_of_its_own(interpreter: LocalInterpreter) -> None:
    threads = (
        "import threading\nfound = []\nmany = [threading.Thread(target=found.append, args=(i,)) for i in range(8)]"
    )
    threads += "\n[each.start() for each in many], [each.join() for each in many]\nsorted(found)"
    files = (
        "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('x'); f.seek(0); text = f.read()\ntext"
    )
    for each, expected in ((threads, list(range(8))), (files, "x")):
        (found,) = run(interpreter, each)
        if each is files and "Landlock" in interpreter.description:
            assert found.error.startswith("FileNotFoundError: [Errno 2] No usable temporary directory found")
        else:
            assert decode(found.value) == expected


def test_an_interpreter_that_was_closed_starts_again() -> None:
    made = LocalInterpreter()
    assert run(made, "1")[0].value == "1"
    asyncio.run(made.close())
    assert run(made, "1")[0].value == "1"
    made.shut()


def test_one_interpreter_for_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    made = open_interpreter("local")
    assert made is open_interpreter("local")
    assert made.description in WALLS.values()
    with pytest.raises(ValueError, match=r'^interpreter is "docker"; allowed: local, openenv:URL'):
        open_interpreter("docker")
