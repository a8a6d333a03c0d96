"""Which wall is taken where, and that none is no interpreter: on machines made poorer by a filter of system calls."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tasks.interpreter.filter import ALLOWED, build_filter
from tasks.interpreter.sandbox import WALLS, _python, start

ROOT = str(Path(__file__).parents[2])


def start_without(*calls: str) -> str:
    """The wall that is taken where these system calls are forbidden, or why there is none."""
    code = f"""
import errno, sys
sys.path.insert(0, {ROOT!r})
import pyseccomp
made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for name in {calls!r}:
    # By number: an older libseccomp does not know the newest names.
    number = {{"landlock_create_ruleset": 444}}.get(name, name)
    made.add_rule(pyseccomp.ERRNO(errno.EPERM), number)
made.load()
from tasks.interpreter.sandbox import start
try:
    sandbox, wall = start()
except RuntimeError as error:
    print(error)
else:
    print(wall)
    sandbox.close()
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_strongest_wall_that_holds_is_taken() -> None:
    sandbox, wall = start()
    sandbox.close()
    assert wall in WALLS
    assert start_without("mount") == "landlock"


def test_without_a_wall_there_is_no_interpreter() -> None:
    said = start_without("mount", "landlock_create_ruleset")
    assert said.startswith(
        "the local interpreter refuses: this machine cannot isolate code (bubblewrap, namespaces and"
    )
    assert said.endswith(").") and "; Landlock and seccomp: " in said and "\n" not in said


@pytest.mark.parametrize("wall", WALLS)
def test_nothing_stays_when_the_host_is_killed(wall: str) -> None:
    code = f"""
import asyncio, sys
sys.path.insert(0, {ROOT!r})
from tasks.interpreter.local import LocalInterpreter
async def main():
    interpreter = LocalInterpreter({wall!r})
    sessions = [await interpreter.open() for _ in range(3)]
    busy = [asyncio.create_task(session.run("while True: pass", 600)) for session in sessions[:2]]
    await asyncio.sleep(0.1)
    print("open", flush=True)
    await asyncio.gather(*busy)
asyncio.run(main())
"""
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert host.stdout and host.stdout.readline() == "open\n"
    children = psutil.Process(host.pid).children(recursive=True)
    assert len(children) >= 4
    host.kill()
    host.wait()
    host.stdout.close()
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left


def test_the_packages_of_this_python_are_hidden() -> None:
    sandbox, _ = start()
    sandbox.close()
    _, needed, hidden = _python()
    assert f"{sys.base_prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages" in hidden
    assert all(any(each.startswith(f"{folder}/") for folder in needed) for each in hidden)


def test_the_allowed_calls_are_known_on_both_architectures() -> None:
    import pyseccomp

    numbers = {
        name: [pyseccomp.resolve_syscall(arch, name) for arch in (pyseccomp.Arch.X86_64, pyseccomp.Arch.AARCH64)]
        for name in ALLOWED.split()
    }
    assert len(numbers) > 100 and all(-1 not in both for both in numbers.values())  # -1: a name that is none
    # What arm64 has instead of the older calls that it lacks, which are negative.
    assert {name for name, (_, arm) in numbers.items() if arm < 0} >= {"open", "stat", "mkdir", "poll", "select"}
    for name in ("openat", "newfstatat", "mkdirat", "unlinkat", "renameat", "readlinkat", "ppoll", "pselect6", "dup3"):
        assert min(numbers[name]) >= 0
    assert not {"socket", "execve", "fork", "vfork", "kill", "ptrace", "mount", "unshare", "setns"} & numbers.keys()


def test_without_libseccomp_there_is_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    build_filter.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(
        RuntimeError, match=r"^the local interpreter needs libseccomp\.so\.2 \(Debian: libseccomp2\)\.$"
    ):
        start()
    build_filter.cache_clear()


def test_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match=r"^the local interpreter needs Linux; "):
        start()
