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
    loop = asyncio.get_running_loop()
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
            loop.remove_writer(channel)

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

    loop.add_reader(channel, read)
    limit.begin(done)
    try:
        if rest:
            with contextlib.suppress(OSError):
                rest = rest[channel.send(rest) :]
            if rest:
                loop.add_writer(channel, write)
        return await done
    finally:
        limit.cancel()
        loop.remove_reader(channel)
        loop.remove_writer(channel)
