"""The system calls that a session may make; all others are refused with EPERM, on x86-64 and arm64 alike.

A list of what is allowed, so that a call that a newer kernel adds is refused. libseccomp makes the filter of it; a name
that it or the architecture does not know is left out. Not on it, and so refused: sockets, new processes, programs,
signals to anyone, mounts, namespaces, ptrace, keys, other users, limits, shared memory segments, message queues,
watching files, and changing the mode, owner or times of a file, which Landlock does not control.
"""

import errno
import tempfile
from functools import cache

ALLOWED = """
access alarm brk chdir clock_getres clock_gettime clock_nanosleep close close_range copy_file_range creat dup dup2
dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 exit exit_group
faccessat faccessat2 fadvise64 fallocate fchdir fdatasync flock fstat fstatfs fsync ftruncate futex futex_waitv
get_robust_list getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpgid getpgrp getpid
getppid getrandom getresgid getresuid getrlimit getrusage getsid gettid gettimeofday getuid link linkat lseek lstat
madvise membarrier mkdir mkdirat mmap mprotect mremap msync munmap nanosleep newfstatat open openat pause pipe pipe2
poll ppoll pread64 preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readlink readlinkat readv rename renameat
renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler
sched_yield select sendfile set_robust_list set_tid_address setitimer sigaltstack stat statfs statx symlink symlinkat
sysinfo time times umask uname unlink unlinkat write writev
"""

_CLONE_THREAD, _CLONE_VM = 0x10000, 0x100
_CLONE_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)  # duplicate, flags, locks, size of a pipe; not who gets a signal
_IOCTL = (
    0x5401,
    0x5413,
    0x5421,
    0x541B,
    0x5450,
    0x5451,
)  # terminal or not, its size; flags; bytes left


@cache
def build_filter() -> bytes:
    """The filter as a BPF program for this machine's architecture.

    Raises RuntimeError, in one sentence, where libseccomp is not installed.
    """
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError):
        raise RuntimeError("the local interpreter needs libseccomp.so.2 (Debian: libseccomp2).") from None
    made = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    made.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for name in ALLOWED.split():
        if (number := seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)) >= 0:
            made.add_rule(seccomp.ALLOW, number)
    # Threads, by the old call whose flags a filter can see; glibc falls back to it where the new one is not there.
    flags = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD | _CLONE_VM | _CLONE_NAMESPACES, _CLONE_THREAD | _CLONE_VM)
    made.add_rule(seccomp.ALLOW, "clone", flags)
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    made.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(2, seccomp.EQ, 0))  # reading limits
    for command in _FCNTL:
        made.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    for request in _IOCTL:
        made.add_rule(seccomp.ALLOW, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
