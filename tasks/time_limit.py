"""A limit on the time of a call that has none of its own, as where a name server or a locked database is slow."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises. Raises TimeoutError after so many seconds; its thread is then left behind."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result.result(timeout=seconds)
