"""How a long stage reports its progress. Nothing here draws; tasks/tracking/console.py has a bar."""

from collections.abc import Callable

# (done, total, a note for people). It may draw, so where speed matters it is called a few times a second at most.
ProgressCallback = Callable[[float, float, str], None]


def no_progress(done: float, total: float, note: str) -> None:
    """Shows nothing."""
