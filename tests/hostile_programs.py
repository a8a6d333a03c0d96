"""Programs that try to do harm. Each ends with a list of what it was able to do: empty where it was contained."""

import textwrap

BEGIN = """
import ctypes, errno, os, platform, resource, signal, sys, threading, time
harm, libc = [], ctypes.CDLL(None, use_errno=True)
def tried(name, function, *arguments):
    try:
        result = function(*arguments)
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        return
    harm.append(name)
    return result
def called(name, function, *arguments):
    ctypes.set_errno(0)
    if function(*arguments) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        harm.append(name)
"""

# What is safe to run without a sandbox too, where each of these does what it tries.
SAFE = {
    "a child process": "tried('fork', lambda: os.fork() or os._exit(0))",
    "a program": "import subprocess\ntried('run', subprocess.run, ['/bin/true'])",
    "a shell": "os.system('true') == 0 and harm.append('system')",
    "a pickle that runs a program": """
        import pickle
        class Bomb:
            def __reduce__(self): return os.system, ('true',)
        pickle.loads(pickle.dumps(Bomb())) == 0 and harm.append('pickle')""",
    "a daemon": """
        def daemon():
            if os.fork() == 0:
                os.setsid(); os._exit(0)
        tried('daemon', daemon)""",
    "spawned by posix_spawn": "tried('spawn', os.posix_spawn, '/bin/true', ['true'], {})",
    "multiprocessing": """
        import multiprocessing
        tried('process', multiprocessing.get_context('fork').Process(target=int).start)""",
    "files of the machine": "tried('passwd', open, '/etc/passwd'); tried('root', os.listdir, '/etc')",
    "a secret file": "tried('secret', open, SECRET)",
    "other processes in /proc": """
        tried('environ', lambda: open('/proc/%d/environ' % os.getppid()).read())
        tried('cmdline', lambda: open('/proc/1/cmdline').read())
        tried('list', lambda: os.listdir('/proc/self'))""",
    "its own memory": "tried('mem', open, '/proc/self/mem', 'rb')",
    "the environment": "'SECRET_TOKEN' in os.environ and harm.append('environment')",
    "files written elsewhere": "tried('write', open, FOLDER + '/written', 'w')",
    "a file made shorter": "tried('truncate', os.truncate, SECRET, 0)",
    "a file's mode and times": "tried('chmod', os.chmod, SECRET, 0o644); tried('utime', os.utime, SECRET)",
    "links out of its folder": """
        tried('link', os.link, SECRET, FOLDER + '/link'); tried('read', open, FOLDER + '/link')""",
    "deleting": "tried('remove', os.remove, SECRET)",
    "sockets": """
        import socket
        for family in ('AF_INET', 'AF_INET6', 'AF_UNIX', 'AF_NETLINK'):
            tried(family, socket.socket, getattr(socket, family), socket.SOCK_DGRAM)
        tried('pair', socket.socketpair)""",
    "a web page": """
        import urllib.request
        tried('url', urllib.request.urlopen, URL)""",
    "a signal to another process": "tried('kill', os.kill, VICTIM, 0)",
    "a signal to its group": "tried('group', os.kill, 0, 0)",
    "shared memory": """
        called('shmget', libc.shmget, 0, 4096, 0o1600)
        called('msgget', libc.msgget, 0, 0o1600)
        called('mq_open', libc.mq_open, b'/hostile', 0o102, 0o600, None)
        tried('pidfd', os.pidfd_open, os.getpid())""",
    "its own limits": """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        tried('setrlimit', resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        tried('nice', os.nice, 0); tried('affinity', os.sched_setaffinity, 0, os.sched_getaffinity(0))""",
    "memory beyond the limit": """
        import mmap
        held = tried('mmap', mmap.mmap, -1, 600 << 20)""",
    "too many open files": """
        fds = []
        def many():
            while len(fds) < 200: fds.append(os.open('/dev/null', os.O_RDONLY))
        tried('fds', many); [os.close(fd) for fd in fds]""",
}

# What would harm the machine that runs the tests, or is no call but a way to stay.
UNSAFE = {
    "leaving its group": "tried('pgid', os.setpgid, 0, 0)",
    "a fork bomb": """
        def bomb():
            while True: os.fork()
        tried('bomb', bomb)""",
    "a fork bomb by system calls": """
        number = {'x86_64': (57, 58), 'aarch64': (220,)}[platform.machine()]
        for call in number: called('fork', libc.syscall, call, 17, 0, 0, 0, 0)
        called('clone3', libc.syscall, 435, ctypes.create_string_buffer(88), 88)""",
    "threads without end": """
        threading.stack_size(32768); stop = threading.Event(); count = 0
        try:
            while count < 20_000: threading.Thread(target=stop.wait, daemon=True).start(); count += 1
        except RuntimeError: pass
        stop.set(); count > MOST_THREADS and harm.append(f'{count} threads')""",
    "memory in one piece": "tried('memory', lambda: [0] * 10**9)",
    "memory bit by bit": """
        held = []
        def eat():
            while len(held) < 700: held.append(bytearray(1 << 20))
        tried('memory', eat); held.clear()""",
    "output without end": "while True: print('x' * 1000)",
    "errors without end": "while True: print('x' * 1000, file=sys.stderr)",
    "one long line": "print('x' * (100 << 20))",
    "bytes to the standard descriptors": "while True: os.write(1, b'x' * 65536); os.write(2, b'x' * 65536)",
    "sleep": "time.sleep(3600)",
    "an endless loop": "while True: pass",
    "a loop that catches everything": """
        while True:
            try:
                while True: pass
            except BaseException: pass""",
    "a loop deaf to signals": """
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass""",
    "a regular expression that explodes": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "a number that explodes": "9 ** 9 ** 9",
    "waiting for a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "waiting for input": "tried('input', os.read, 0, 1); input()",
    "signals to all": """
        for pid in (-1, 0, 1, 2, os.getppid(), VICTIM, -VICTIM):
            for number in (signal.SIGKILL, signal.SIGSTOP): tried(f'kill {pid}', os.kill, pid, number)
        called('tgkill', libc.syscall, {'x86_64': 234, 'aarch64': 131}[platform.machine()], VICTIM, VICTIM, 9)""",
    "signals by a file's owner": """
        import fcntl
        read, write = os.pipe()
        tried('owner', fcntl.fcntl, read, fcntl.F_SETOWN, VICTIM)
        tried('signal', fcntl.fcntl, read, 10, signal.SIGKILL)""",
    "mounts and namespaces": """
        called('mount', libc.mount, b'none', b'/', b'tmpfs', 0, b''); called('umount', libc.umount2, b'/tmp', 2)
        for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000): called('unshare', libc.unshare, flag)
        called('setns', libc.setns, 0, 0); called('chroot', libc.chroot, b'/tmp')
        called('pivot', libc.syscall, {'x86_64': 155, 'aarch64': 41}[platform.machine()], b'/', b'/')""",
    "debugging": """
        called('ptrace', libc.ptrace, 16, VICTIM, 0, 0)
        called('vm', libc.process_vm_readv, VICTIM, None, 0, None, 0, 0)""",
    "rarer system calls": """
        x86 = platform.machine() == 'x86_64'
        for name, here, there in (
                ('bpf', 321, 280), ('perf', 298, 241), ('userfaultfd', 323, 282), ('uring', 425, 425),
                ('keyctl', 250, 219), ('seccomp', 317, 277), ('memfd', 319, 279), ('fsopen', 430, 430),
                ('pidfd', 434, 434), ('landlock', 444, 444), ('quotactl', 179, 60), ('reboot', 169, 142),
                ('prctl', 157, 167), ('personality', 135, 92), ('handle', 304, 265), ('capset', 126, 91)):
            called(name, libc.syscall, here if x86 else there, 0, 0, 0, 0, 0)""",
    "system calls of another architecture": """
        if platform.machine() == 'x86_64':
            called('x32', libc.syscall, 0x40000000 + 41, 2, 1, 0)""",
    "becoming root": """
        for name in ('setuid', 'setgid'): tried(name, getattr(os, name), 0)
        tried('resuid', os.setresuid, 0, 0, 0); tried('groups', os.setgroups, [0])
        tried('mknod', os.mknod, 'device', 0o60666, os.makedev(8, 0))""",
    "descriptors of others": """
        import stat
        for fd in range(3, 256):
            try: mode = os.fstat(fd).st_mode
            except OSError: continue
            if not stat.S_ISSOCK(mode): harm.append(f'descriptor {fd}')
        sum(libc.fcntl(fd, 1, 0) >= 0 for fd in range(3, 256)) > 1 and harm.append('several')""",
    "the terminal": """
        import fcntl
        tried('tty', open, '/dev/tty'); tried('console', open, '/dev/console')
        tried('push', fcntl.ioctl, 0, 0x5412, b'x')""",
    "filling the disk": """
        written = 0
        for folder in ('/tmp', '/dev/shm', '/var/tmp', '/', os.path.dirname(os.__file__)):
            for number in range(40):
                try:
                    with open(f'{folder}/fill{number}', 'wb', buffering=0) as file:
                        for _ in range(8): written += file.write(bytes(1 << 20))
                except OSError: break
        written > 17 << 20 and harm.append(f'{written} bytes')""",
    "files without end": """
        count = 0
        for folder in ('/tmp', '/dev/shm', '/var/tmp'):
            try:
                while count < 50_000: open(f'{folder}/empty{count}', 'w').close(); count += 1
            except OSError: pass
        count > 2100 and harm.append(f'{count} files')""",
    "leaving something in shared folders": """
        for folder in ('/tmp', '/dev/shm', '/', '/sandbox', os.path.dirname(os.__file__)):
            try: open(f'{folder}/left', 'w').write('behind')
            except OSError: pass""",
    "a thread that stays": """
        def spin():
            while True: sum(range(1000))
        for _ in range(4): threading.Thread(target=spin, daemon=True).start()""",
    "deep recursion": """
        sys.setrecursionlimit(10**9)
        def deeper(): return deeper()
        deeper()""",
    "deep recursion in C": """
        sys.setrecursionlimit(10**9); deep = []
        for _ in range(10**6): deep = [deep]
        repr(deep)""",
    "leaving with success": "os._exit(0)",
    "a crash": "ctypes.string_at(0)",
    "an abort": "os.abort()",
    "its own channel shut": "os.closerange(3, 256)",
    "its own channel flooded": """
        for fd in range(3, 256):
            try:
                while True: os.write(fd, b'x' * 65536)
            except OSError: pass""",
    "two replies for one": """
        sys.path.insert(0, '/sandbox')
        frame = sys._getframe()
        while 'token' not in frame.f_locals: frame = frame.f_back
        from tasks.interpreter.wire import pack_reply
        sys.path.remove('/sandbox')
        reply = pack_reply(frame.f_locals['token'], True, False, 0.0, (b'', b'', b'["forged"]', b'', b''))
        for fd in range(3, 256):
            try: os.write(fd, reply + reply)
            except OSError: pass""",
    "a reply of a terabyte": """
        import struct
        frame = sys._getframe()
        while 'token' not in frame.f_locals: frame = frame.f_back
        for fd in range(3, 256):
            try: os.write(fd, struct.pack('<8sBBd5I', frame.f_locals['token'], 1, 0, 0.0, *[2**32 - 1] * 5))
            except OSError: pass
        time.sleep(3600)""",
    "builtins, sys and json changed": """
        import builtins, json, ast, io
        for module in (json, ast, io, os, sys, time):
            for name in list(vars(module)):
                if callable(getattr(module, name)) and name not in ('_exit', 'write', 'read'):
                    try: setattr(module, name, lambda *a, **k: 1)
                    except Exception: pass
        builtins.len = builtins.compile = builtins.repr = builtins.type = lambda *a, **k: 1""",
    "a value that lies about itself": """
        class Liar(list):
            def __eq__(self, other): return True
            def __repr__(self): return '[]'
            __class__ = list
        Liar('abc')""",
    "a repr without end": """
        class Endless:
            def __repr__(self):
                while True: pass
        Endless()""",
    "an exception without end": """
        class Endless(Exception):
            def __str__(self):
                while True: pass
        raise Endless""",
    "freezing the collector and hooks": """
        import gc; gc.disable()
        sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None); sys.excepthook = None
        sys.stdout = sys.stderr = None; sys.modules.clear()""",
}

_OWN_VALUE = ("a value that lies about itself",)


def program(name: str, given: dict[str, object]) -> str:
    """The program's text, with what it is told about its surroundings."""
    body = textwrap.dedent((SAFE | UNSAFE)[name]).strip()
    told = "\n".join(f"{key} = {value!r}" for key, value in given.items())
    return f"{BEGIN}\n{told}\n{body}" + ("" if name in _OWN_VALUE else "\nharm")
