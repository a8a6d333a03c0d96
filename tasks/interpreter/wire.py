"""The bytes between the host and a session: one request, one reply, both with lengths that are checked before reading.

    host    ──►  token (8 bytes), length of the code, code
    session ──►  token, flags, CPU seconds, five lengths, stdout, stderr, value, shown, error

Code in a session can write whatever it likes there, so the host takes nothing from a reply but text within the limits,
and gives up the session for anything else. The token only keeps a reply from answering a later request by accident.
"""

import struct
from typing import NamedTuple

from tasks.interpreter import limits

REQUEST = struct.Struct("<8sI")
REPLY = struct.Struct("<8sBBd5I")
READY = struct.Struct("<8sQ")  # "ready" and the process id in /proc of the host; or "failed" and the length of a text
MOST = (limits.OUTPUT, limits.OUTPUT, limits.VALUE, limits.SHOWN, limits.ERROR)


class Reply(NamedTuple):
    """What a session says of one execution."""

    ok: bool
    truncated: bool
    cpu_seconds: float
    stdout: str
    stderr: str
    value: str
    shown: str
    error: str


def ready_length(data: bytes | bytearray) -> int:
    """Bytes of what a session says first; 0 while its head is incomplete."""
    if len(data) < READY.size:
        return 0
    word, number = READY.unpack_from(data)
    return READY.size + (0 if word.startswith(b"ready") else min(number, 1000))


def pack_reply(
    token: bytes,
    ok: bool,
    truncated: bool,
    cpu_seconds: float,
    texts: tuple[bytes, ...],
    pack=REPLY.pack,
    join=b"".join,
) -> bytes:
    """A reply as bytes; `texts` are stdout, stderr, value, shown and error in UTF-8, within MOST."""
    return join((pack(token, ok, truncated, cpu_seconds, *map(len, texts)), *texts))


def reply_length(data: bytes | bytearray, token: bytes) -> int:
    """Bytes of the whole reply that begins with `data`; 0 while even its head is incomplete.

    Raises ValueError for what no session of ours would write.
    """
    if len(data) < REPLY.size:
        return 0
    found, ok, truncated, _, *lengths = REPLY.unpack_from(data)
    if found != token or ok > 1 or truncated > 1 or any(n > most for n, most in zip(lengths, MOST, strict=True)):
        raise ValueError("not a reply")
    return REPLY.size + sum(lengths)


def parse_reply(data: bytes | bytearray) -> Reply:
    """The reply that `data` is, whose length is as `reply_length` says. Raises ValueError for what is no UTF-8."""
    _, ok, truncated, cpu_seconds, *lengths = REPLY.unpack_from(data)
    texts, at = [], REPLY.size
    for length in lengths:
        texts.append(str(data[at : at + length], "utf-8"))
        at += length
    if not 0 <= cpu_seconds < 1e9:
        raise ValueError("not a reply")
    return Reply(bool(ok), bool(truncated), cpu_seconds, *texts)
