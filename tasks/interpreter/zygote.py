"""The warm Python inside the wall: it forks a process for each session, which locks itself down and runs code.

The host sends, each as one message: b"open" and an id, with the session's end of its channel; b"kill" and an id. A
session first says on its channel that it is ready, or why not. When the host is gone, all end.
"""

import base64
import gc
import json
import os
import random
import resource
import signal
import socket
import sys

from tasks.interpreter import executor, limits, system
from tasks.interpreter.wire import READY

# Imported once, before the first fork: what short programs use. Each further one makes every fork slower, threading
# most of all.
_WARM = """
bisect collections copy dataclasses datetime fractions functools heapq itertools math operator random re statistics
string time typing
"""
_FIRST_UID, _UIDS = 20_000, 40_000


def main(config: str) -> None:
    """Serve the host until it is gone. `config` is JSON; see tasks.interpreter.sandbox."""
    given = json.loads(config)
    control, proc = socket.socket(fileno=given["control"]), given["proc"]
    wall = Wall(given, proc)
    sys.path[:] = [path for path in sys.path if path not in given["paths"]]
    for name in _WARM.split():
        __import__(name)
    system.drop_bounding_set()
    with os.fdopen(os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc), "w") as score:
        score.write("900")  # where memory runs out, a session goes first
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    pids: dict[bytes, int] = {}
    while True:
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        _reap(pids)
        word, session = message[:4], message[4:]
        if word == b"open":
            pids[session] = _spawn(wall, fds[0], proc)
            os.close(fds[0])
        elif word == b"kill" and session in pids:
            _kill(pids.pop(session))
        elif not message:
            for pid in pids.values():
                _kill(pid)
            os._exit(0)


def _reap(pids: dict[bytes, int]) -> None:
    """Forget the sessions that ended by themselves, before their process ids can belong to others."""
    try:
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            for session in [session for session, other in pids.items() if other == pid]:
                del pids[session]
    except ChildProcessError:
        pass


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _spawn(wall: "Wall", channel: int, proc: int) -> int:
    """A session's process. Where there can be none, the channel says so; then 0."""
    try:
        wall.before_fork()
        parent, pid = os.getpid(), os.fork()
    except OSError as error:
        _fail(channel, error)
        return 0
    if pid:
        return pid
    try:
        here = int(os.readlink("self", dir_fd=proc))
        wall.lock_down(parent, channel)
        os.write(channel, READY.pack(b"ready", here))
    except BaseException as error:
        _fail(channel, error)
        os._exit(1)
    try:
        executor.serve(channel)
    finally:
        os._exit(1)


def _fail(channel: int, error: BaseException) -> None:
    text = repr(error).encode()[:1000]
    os.write(channel, READY.pack(b"failed", len(text)) + text)


class Wall:
    """What stands between a session and all else, inside of bubblewrap's wall or, under Landlock, alone."""

    def __init__(self, given: dict, proc: int) -> None:
        self.filter = base64.b64decode(given["filter"])
        self.proc, self.root, self.opened = proc, os.getuid() == 0 and not given["mapped"], 0
        self.namespaces = given["wall"] == "namespaces"
        self.ruleset, self.threads = -1, limits.THREADS
        if self.namespaces:
            self.pid_namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=proc)
        else:
            from tasks.interpreter import landlock

            self.ruleset = landlock.readable(given["readable"], given["hidden"])
            if not self.root:
                self.threads += given["threads"]  # it counts all threads of the user

    def before_fork(self) -> None:
        """The next child gets a pid namespace of its own."""
        self.opened += 1
        if self.namespaces:
            system.enter_pid_namespace(self.pid_namespace)
            system.unshare(system.NEWPID)

    def lock_down(self, parent: int, channel: int) -> None:
        """In the child: give up everything but the channel."""
        os.setsid()
        uid = _FIRST_UID + self.opened % _UIDS
        if self.namespaces:
            self._unshare(uid if self.root else 0)
        if self.ruleset >= 0:
            os.dup2(self.ruleset, 3)
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.chdir("/tmp" if self.namespaces else "/")
        first = 3 if self.ruleset < 0 else 4
        os.closerange(first, channel)
        os.closerange(channel + 1, 1 << 16)
        if self.root:
            os.setgroups([])
            # Under Landlock the effective user stays: Python itself may lie in a folder of root's. The limit on threads
            # goes by the real one.
            (os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)) if self.namespaces else os.setresuid(uid, 0, 0)
        system.drop_capabilities()
        system.die_with_parent(parent)
        self._limit()
        random.seed(0)
        if self.ruleset >= 0:
            from tasks.interpreter import landlock

            landlock.enter(3)
            os.close(3)
        system.load_filter(self.filter)

    def _unshare(self, uid: int) -> None:
        """New namespaces; as an ordinary user with one of users, so that the limit on threads is the session's own."""
        flags = system.NEWNS | system.NEWIPC
        if self.root:
            system.unshare(flags)
        else:
            system.unshare(flags | system.NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
                file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self.proc)
                os.write(file, text.encode())
                os.close(file)
        owner = uid or 1000
        for path in ("/tmp", "/dev/shm"):
            options = f"size={limits.FILES // 2},nr_inodes={limits.INODES},mode=700,uid={owner},gid={owner}"
            system.mount_tmpfs(path, options)

    def _limit(self) -> None:
        for name, most in (
            ("CORE", 0),
            ("AS", limits.MEMORY),
            ("FSIZE", limits.FILES),
            ("NOFILE", limits.OPEN_FILES),
            ("CPU", limits.CPU_SECONDS),
            ("NPROC", self.threads),
            ("MEMLOCK", 0),
            ("MSGQUEUE", 0),
        ):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
