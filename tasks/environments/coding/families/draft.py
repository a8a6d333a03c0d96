"""What a family writes down for a problem, and the phrases that families share: each a text and the Python of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Draft:
    """One problem without its tests.

    Example: `Draft("Return the sum of the values.", "values: list[int]", "int", "return sum(values)", inputs)`.
    """

    text: str
    parameters: str  # with their types
    returns: str
    body: str  # the reference solution, without the line of its `def`
    inputs: Callable[[random.Random], Arguments]  # arguments of one call, also unusual ones
    edges: tuple[Arguments, ...] = ()  # arguments that are always tested


@dataclass(frozen=True)
class Family:
    """Problems of one idea. A variant is fixed by the random numbers that `write` draws."""

    write: Callable[[random.Random], Draft]
    level: int  # 1 easy, 2 medium, 3 hard

    @property
    def name(self) -> str:
        """Also the name of the function that is asked for."""
        return self.write.__name__

    @property
    def kind(self) -> str:
        """lists, strings, numbers, recursion or simulation: the name of its module."""
        return self.write.__module__.rpartition(".")[2]


def predicate(rng: random.Random, x: str = "v") -> tuple[str, str]:
    """A property of a whole number: "greater than 4", and `v > 4`."""
    k, m = rng.randint(-5, 9), rng.randint(3, 7)
    r = rng.randrange(1, m)
    return rng.choice(
        [
            ("even", f"{x} % 2 == 0"),
            ("odd", f"{x} % 2 == 1"),
            (f"greater than {k}", f"{x} > {k}"),
            (f"less than {k}", f"{x} < {k}"),
            (f"divisible by {m}", f"{x} % {m} == 0"),
            (f"not divisible by {m}", f"{x} % {m} != 0"),
            (f"{r} modulo {m}", f"{x} % {m} == {r}"),
        ]
    )


def change(rng: random.Random, x: str = "v") -> tuple[str, str]:
    """A change of a whole number: "multiplied by 3", and `v * 3`."""
    k, m = rng.randint(2, 9), rng.randint(3, 9)
    return rng.choice(
        [
            (f"multiplied by {k}", f"{x} * {k}"),
            (f"increased by {k}", f"{x} + {k}"),
            (f"decreased by {k}", f"{x} - {k}"),
            (f"squared and increased by {k}", f"{x} * {x} + {k}"),
            (f"subtracted from {k}", f"{k} - {x}"),
            (f"replaced by its remainder modulo {m}", f"{x} % {m}"),
        ]
    )


def ordinal(k: int) -> str:
    """2nd, 3rd, 4th …, up to 20th."""
    return f"{k}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(k, 'th') }"


def numbers(rng: random.Random, low: int = -12, high: int = 20, longest: int = 9) -> list[int]:
    """A short list of whole numbers in which some come twice."""
    return [rng.randint(low, high) for _ in range(rng.randint(0, longest))]


def word(rng: random.Random, letters: str = "abcdeixyz", longest: int = 9, shortest: int = 0) -> str:
    """A short word of few letters, so that some come twice."""
    return "".join(rng.choices(letters, k=rng.randint(shortest, longest)))


def sentence(rng: random.Random, longest: int = 6) -> str:
    """Words of small and capital letters and digits, one blank between them."""
    return " ".join(word(rng, "aabeeioudlnrstABEXZ059", 7, 1) for _ in range(rng.randint(0, longest)))
