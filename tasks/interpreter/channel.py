"""One end of a session's channel, on the host, in an event loop. What comes is bounded before it is read."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from tasks.interpreter.watch import Deadline


async def exchange(
    channel: socket.socket, message: bytes, length: Callable[[bytearray], int], limit: Deadline
) -> bytes:
    """Send `message` and return the one that comes, whose length `length` finds in its first bytes (0: not yet).

    Raises EOFError where the other side is gone, ValueError where `length` does or more comes, and TimeoutError.
    """
    loop, fd = asyncio.get_running_loop(), channel.fileno()  # of a socket asyncio makes a text each time
    done: asyncio.Future[bytes] = loop.create_future()
    data, rest = bytearray(), memoryview(message)

    def write() -> None:
        nonlocal rest
        try:
            rest = rest[channel.send(rest) :]
        except BlockingIOError:
            return
        except OSError:
            rest = rest[:0]  # the reader sees the end
        if not rest:
            loop.remove_writer(fd)

    def read() -> None:
        if done.done():
            return
        try:
            chunk = channel.recv(65536)
            if not chunk:
                raise EOFError
            data.extend(chunk)
            whole = length(data)
            if whole and len(data) > whole:
                raise ValueError("more than one message")
            if whole == len(data):
                done.set_result(bytes(data))
        except BlockingIOError:
            return
        except (OSError, EOFError, ValueError) as error:
            done.set_exception(error if isinstance(error, ValueError) else EOFError())

    writing = False
    loop.add_reader(fd, read)
    limit.begin(done)
    try:
        if rest:
            with contextlib.suppress(OSError):
                rest = rest[channel.send(rest) :]
            if writing := bool(rest):
                loop.add_writer(fd, write)
        return await done
    finally:
        limit.cancel()
        loop.remove_reader(fd)
        if writing:
            loop.remove_writer(fd)
