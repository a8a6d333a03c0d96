"""Answers in LaTeX, compared by math-verify in a process of its own.

math-verify holds the interpreter's lock while it works and stops by alarms, which only a process's first thread has:
so one helper process does it, for one answer at a time. Only LaTeX is read: for plain expressions it would evaluate the
text as Python.
"""

import asyncio
import contextlib
import multiprocessing
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

LONGEST = 200  # characters of an answer
LIMIT_S = 3  # for each of parsing and comparing
PATIENCE_S = 50.0  # with the start of the helper and the answers before this one
DIGITS = 12  # to which decimals agree

_helper: ProcessPoolExecutor | None = None


async def equal_in_latex(right: str, given: str) -> bool:
    """Whether `given`, one LaTeX expression, has the value `right`, a number such as "-7/2".

    Raises RuntimeError where the helper does not answer: that is no wrong answer.
    """
    text = given.removeprefix("\\(").removesuffix("\\)").strip().strip("$").strip()
    if len(text) > LONGEST or "\\" not in text or "$" in text or "\n" in text or _lists(text):
        return False
    waiting = asyncio.get_running_loop().run_in_executor(_started(), _equal, right, text)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await waiting
    except (TimeoutError, BrokenExecutor):
        _stop()
        raise RuntimeError("math-verify did not answer") from None


def _lists(text: str) -> bool:
    """Whether it names several values, of which one might be right."""
    return any(
        mark in text for mark in (",", ";", "\\text", "\\mathrm", "\\quad", "\\or", "\\lor", "\\cup", "\\pm", "\\{")
    )


def _started() -> ProcessPoolExecutor:
    global _helper
    if _helper is None:
        _helper = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    return _helper


def _stop() -> None:
    global _helper
    helper, _helper = _helper, None
    if helper:
        for process in list((helper._processes or {}).values()):
            with contextlib.suppress(OSError):
                process.kill()
        helper.shutdown(wait=False, cancel_futures=True)


def _equal(right: str, given: str) -> bool:
    """In the helper."""
    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig

    read = {"extraction_config": [LatexExtractionConfig()], "parsing_timeout": LIMIT_S}
    expected, found = parse(f"${right}$", **read), parse(f"${given}$", **read)
    return bool(found) and bool(verify(expected, found, float_rounding=DIGITS, timeout_seconds=LIMIT_S))
