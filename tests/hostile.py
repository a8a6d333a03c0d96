"""Runs the hostile programs in sandboxes and prints what they did, as JSON; as a process of its own, so as any user.

python hostile.py WALL '{"SECRET": …}'
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil

from tasks.interpreter import limits
from tasks.interpreter.local import LocalInterpreter

sys.path.insert(0, str(Path(__file__).parent))
from hostile_programs import SAFE, UNSAFE, program

LIMIT = 0.5  # seconds an execution
TOGETHER = 12
CLEAN = """
import os, threading, sys
def left(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
[left('/tmp') + left('/dev/shm'), threading.active_count(), 'harm' in globals(), len(str(1)), type(sys.stdout).__name__]
"""


def processes(interpreter: LocalInterpreter) -> set[int]:
    """All that the sandbox runs."""
    return {each.pid for each in psutil.Process(interpreter._sandbox.process.pid).children(recursive=True)}


async def attack(interpreter: LocalInterpreter, name: str, given: dict[str, object]) -> str:
    """How one program ended, and what it did; "contained" where that is nothing."""
    session = await interpreter.open()
    found = await session.run(program(name, given), LIMIT)
    await session.close()
    if max(len(found.stdout), len(found.stderr)) > limits.OUTPUT:
        return "long output"
    if found.error == "other work had the processors":  # ended all the same, on a machine that is very busy
        return "contained"
    contained = found.status in ("error", "timeout", "killed") or (found.status == "ok" and found.value in ("[]", ""))
    return "contained" if contained else f"{found}"[:500]


async def after(interpreter: LocalInterpreter, before: set[int], size: int) -> list[str]:
    """What is left of programs that have ended."""
    deadline, complaints = time.monotonic() + 20, []
    while (left := processes(interpreter) - before) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    if left:
        complaints.append(f"{len(left)} processes survive")
    if (grown := psutil.Process().memory_info().rss - size) > 50 << 20:
        complaints.append(f"the host grew by {grown >> 20} MiB")
    fresh = await interpreter.open()
    clean = await fresh.run(CLEAN, 20)
    if (clean.status, clean.value) != ("ok", '[[],1,false,1,"TextIOWrapper"]'):
        complaints.append(f"the next session: {clean}")
    await fresh.close()
    return complaints


async def attack_all(wall: str, given: dict[str, object]) -> dict[str, list[str]]:
    """What each program did, and what was left of it and those beside it."""
    interpreter, names = LocalInterpreter(wall), list(SAFE | UNSAFE)
    before, size, found = processes(interpreter), psutil.Process().memory_info().rss, {}
    try:
        for first in range(0, len(names), TOGETHER):
            group = names[first : first + TOGETHER]
            ended = await asyncio.gather(*(attack(interpreter, name, given) for name in group))
            left = await after(interpreter, before, size)
            found |= {name: [end, *left] for name, end in zip(group, ended, strict=True)}
        return found
    finally:
        interpreter.shut()


if __name__ == "__main__":
    os.environ["SECRET_TOKEN"] = "1"
    print(json.dumps(asyncio.run(attack_all(sys.argv[1], json.loads(sys.argv[2])))))
