"""The calls of the kernel that a session's process makes before the first line of foreign code, through libc by name.

Threat model. The code in a session is hostile: it knows this project's source and may run any machine code, with the
rights of its own process. What it must not do: read or change a file of the machine that is not Python's own; reach a
network, another process, another session, or the sandbox's own processes; outlive its session; use more memory,
processor time, files or threads than it is given; or make the host run, load or trust anything. What it may do: give
wrong replies in its own session, burn its own processor time, read Python's standard library and, under Landlock, find
out that a path exists. A hole in the kernel below the allowed calls is out of reach of all this; who must hold against
that runs the interpreter in a microVM (docs/interpreter.md).

Landlock's own calls are made by py-landlock, the filter by libseccomp; what follows has no binding for Python 3.11.
"""

import ctypes
import os

NEWNS, NEWIPC, NEWUSER, NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NOSUID, _NODEV = 2, 4
_SET_PDEATHSIG, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _CAPBSET_DROP = 1, 22, 38, 24
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones; NEWPID: the next children do."""
    _check(_libc.unshare(flags), "unshare")


def enter_pid_namespace(fd: int) -> None:
    """Have the next children in the pid namespace that `fd` is."""
    _check(_libc.setns(fd, NEWPID), "setns")


def mount_tmpfs(path: str, options: str) -> None:
    """An empty file system in memory at `path`."""
    result = _libc.mount(b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(_NOSUID | _NODEV), options.encode())
    _check(result, f"mount at {path}")


def drop_bounding_set() -> None:
    """No program can gain a capability from now on. Without the right to do this there is none to gain."""
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break


def drop_capabilities() -> None:
    """Give up all capabilities."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, of this id, ends."""
    _check(_libc.prctl(_SET_PDEATHSIG, ctypes.c_ulong(9), 0, 0, 0), "prctl")
    if os.getppid() not in (parent, 0):  # 0: it is outside of this pid namespace
        os._exit(1)


def load_filter(program: bytes) -> None:
    """No new privileges, and from now on only the system calls that the BPF program lets through."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "no_new_privs")
    buffer = ctypes.create_string_buffer(program, len(program))
    filled = _Program(len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(filled), 0, 0), "seccomp")
