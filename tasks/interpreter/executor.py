"""Runs code inside the sandbox and answers, as a session's process; what it says is the word of the code it ran."""

import ast
import builtins
import io
import linecache
import os
import sys
import time
import traceback

from tasks.interpreter import limits
from tasks.interpreter.values import encode
from tasks.interpreter.wire import REQUEST, pack_reply

_NAME = "<code>"


class Capped(io.RawIOBase):
    """Keeps the first bytes that are written to it, and forgets the rest."""

    def __init__(self, limit: int) -> None:
        self.limit, self.kept, self.cut = limit, bytearray(), False

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        size = len(data)
        room = self.limit - len(self.kept)
        if size > room:
            self.cut = True
        if room > 0:
            self.kept += memoryview(data)[:room]
        return size


def _text(stream: Capped) -> io.TextIOWrapper:
    return io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True)  # type: ignore[arg-type]


def _cut(text: str | bytes | bytearray, limit: int) -> tuple[bytes, bool]:
    """Valid UTF-8 of at most so many bytes, and whether something is missing."""
    data = text[: limit + 1].encode("utf-8", "backslashreplace") if isinstance(text, str) else bytes(text)
    whole = len(data) <= limit
    return (data if whole else data[:limit]).decode("utf-8", "ignore").encode(), not whole


def serve(channel: int, read=os.read, write=os.write, end=os._exit) -> None:
    """Answer one request after the other until the host closes the channel."""
    run, namespace = execute, {"__name__": "__main__", "__builtins__": builtins}
    while True:
        head = _read(channel, REQUEST.size, read, end)
        token, length = REQUEST.unpack(head)
        code = _read(channel, length, read, end).decode("utf-8", "surrogatepass")
        reply = memoryview(run(token, code, namespace))
        while reply:
            reply = reply[write(channel, reply) :]


def _read(channel: int, size: int, read, end) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = read(channel, size - len(data))
        if not chunk:
            end(0)
        data += chunk
    return bytes(data)


def execute(token: bytes, code: str, namespace: dict, clock=time.process_time, pack=pack_reply) -> bytes:
    """Run it, with its output kept apart; the reply as bytes."""
    began = clock()
    out, err = Capped(limits.OUTPUT), Capped(limits.OUTPUT)
    sys.stdout, sys.stderr = _text(out), _text(err)
    value = shown = error = b""
    ok = cut = False
    try:
        result = _run(code, namespace)
        if result is not None:
            shown, cut = _cut(repr(result), limits.SHOWN)
            value = _encoded(result)
        ok = True
    except BaseException as raised:
        error = _explain(raised)
    (stdout, cut_out), (stderr, cut_err) = _cut(out.kept, limits.OUTPUT), _cut(err.kept, limits.OUTPUT)
    cut = cut or out.cut or err.cut or cut_out or cut_err
    return pack(token, ok, cut, clock() - began, (stdout, stderr, value, shown, error))


def _run(code: str, namespace: dict) -> object:
    """Execute it; the value of the last statement, where that is an expression."""
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    tree = ast.parse(code, _NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        exec(compile(tree, _NAME, "exec"), namespace)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), _NAME, "eval"), namespace)
    return None


def _encoded(result: object) -> bytes:
    try:
        text = encode(result).encode("ascii")
    except (ValueError, RecursionError):
        return b""
    return text if len(text) <= limits.VALUE else b""


def _explain(raised: BaseException) -> bytes:
    """The exception's last line; its traceback goes to stderr."""
    try:
        where = raised.__traceback__
        while where is not None and where.tb_frame.f_code.co_filename == __file__:
            where = where.tb_next
        traceback.print_exception(type(raised), raised, where, file=sys.stderr)
        line = traceback.format_exception_only(type(raised), raised)[-1].strip()
    except BaseException:
        line = "an exception that cannot be shown"
    return _cut(line, limits.ERROR)[0] or b"an exception"
