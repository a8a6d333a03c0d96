"""How a long stage tells whoever watches how far it is. Nothing here draws; tasks/tracking/console.py has a bar."""

from collections.abc import Callable

# (done, of how many, a note for people). Called a few times a second at most by who cares for speed: it may draw.
ProgressCallback = Callable[[float, float, str], None]


def no_progress(done: float, total: float, note: str) -> None:
    """Where nobody watches."""
