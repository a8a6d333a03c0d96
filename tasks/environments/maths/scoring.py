"""Whether an answer is right. Nothing of an answer is ever evaluated as Python."""

import asyncio
import re
from fractions import Fraction

from tasks.environments.maths.datasets import NUMBERS, SIMULATED
from tasks.environments.maths.items import Item
from tasks.environments.maths.symbolic import equal_in_latex

LONGEST = 20_000  # characters of an answer; a longer one is wrong
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d*)?")
_FRACTION = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
_TAGS = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


def answer(reply: str) -> str | None:
    """What stands between the last <answer> and </answer> behind a thought; None where nothing does."""
    found = _TAGS.findall(reply.rpartition("</think>")[2])
    return found[-1].strip() if found else None


async def is_right(item: Item, given: str) -> bool:
    """Whether the answer is the item's, by the rule of its data set (see datasets.py)."""
    if not given or len(given) > LONGEST:
        return False
    if item.dataset in SIMULATED:
        # Some milliseconds for a long answer, which the event loop does not wait for.
        return await asyncio.to_thread(_full_score, item, given)
    if given.split() == item.answer.split():
        return True
    if item.dataset not in NUMBERS:
        return False
    right, value = number(item.answer), number(given)
    if right is None or value is not None:
        return right is not None and right == value
    return await equal_in_latex(str(right), given)


def _full_score(item: Item, given: str) -> bool:
    try:
        return item.source.score_answer(given, item.entry) >= 1
    except Exception:  # a scorer of the library that cannot read it
        return False


def number(text: str) -> Fraction | None:
    """The value of "1,234", "-0.5" or "3/4", exactly; None for anything else."""
    text = text.strip()
    if len(text) > 400:
        return None
    if match := _FRACTION.fullmatch(text):
        return Fraction(int(match[1]), int(match[2])) if int(match[2]) else None
    if _NUMBER.fullmatch(text) and any(c.isdigit() for c in text):
        return Fraction(text.replace(",", ""))
    return None
