"""The tasks: random arithmetic, and what it is.

one call    17+384-5       the tool takes it as it is
two calls   (17+384)*5     the tool takes no parentheses: 17+384, and then its output *5
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tasks.environments.interface import Split, Task
from tasks.seeds import derived_seed
from tasks.settings import require

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
TEST_SHARE = 8  # one expression of so many is for tests only, by its text
LONGEST = 200  # characters of what the tool takes
_PLAIN = re.compile(r"\s*-?\d{1,18}(\s*[-+*]\s*-?\d{1,18})*\s*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Which expressions are drawn. Checked when it is made."""

    numbers: int = 4  # 2 to so many in an expression
    maximum: int = 999
    operators: str = "+-"
    calls: int = 1  # that an expression needs

    def __post_init__(self) -> None:
        least = self.calls + 1
        require(self.calls in (1, 2), "calls", self.calls, "1, 2")
        require(self.numbers in range(least, 5), "numbers", self.numbers, f"{least} to 4 with calls = {self.calls}")
        require(self.maximum in (9, 99, 999), "maximum", self.maximum, "9, 99, 999")
        known = isinstance(self.operators, str) and 0 < len(set(self.operators)) == len(self.operators)
        require(known and set(self.operators) <= set("+-*"), "operators", self.operators, "some of +-*, each once")
        two = self.calls == 1 or ("*" in self.operators and len(self.operators) > 1)
        require(two, "operators", self.operators, "* and another one with calls = 2, else one call would do")

    def draw(self, rng: random.Random) -> str:
        """An expression. Numbers of one, two and three digits are equally frequent."""
        while True:
            text = self._draw(rng)
            if self.calls == 1 or value(text) != value("".join(pieces(text))):  # else its parentheses change nothing
                return text

    def _draw(self, rng: random.Random) -> str:
        count = rng.randint(self.calls + 1, self.numbers)
        numbers = [self._number(rng) for _ in range(count)]
        inner = len(numbers) - (self.calls - 1)  # numbers before the closing parenthesis
        text = numbers[0]
        for place, number in enumerate(numbers[1:], start=1):
            text = (f"({text})" if place == inner else text) + rng.choice(self.operators) + number
        return text

    def _number(self, rng: random.Random) -> str:
        digits = rng.randint(1, len(str(self.maximum)))
        return str(rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits))

    def task(self, split: Split, index: int) -> Task:
        """An expression that belongs to this split by its text: the same problem is never in both."""
        seed = derived_seed("calculator", split, index)
        rng = random.Random(seed)
        while True:
            text = self.draw(rng)
            if (derived_seed("calculator", text) % TEST_SHARE == 0) == (split == "test"):
                return Task(id=text, split=split, seed=seed, data={"expression": text})


def value(expression: str) -> int:
    """What it is. Raises ValueError for what is no arithmetic of whole numbers."""
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f'expression is "{expression[:80]}"; allowed: whole numbers, +, -, * and parentheses.'
        ) from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise SyntaxError


def refuse(code: str) -> str:
    """Why the tool does not take this code; "" where it does: numbers and operators, which leave nothing behind."""
    if len(code) > LONGEST or not _PLAIN.fullmatch(code):
        return "the tool takes one expression of whole numbers, + - and *, without parentheses"
    return ""


def pieces(expression: str) -> list[str]:
    """What the tool is given for it, one string a call; each but the first comes behind the output of the one before.

    >>> pieces("(17+384)*5")
    ['17+384', '*5']
    """
    return expression.removeprefix("(").split(")")


def cut(expression: str, rng: random.Random) -> str:
    """The expression up to one of its operators: a call that loses numbers."""
    places = [
        place
        for place, letter in enumerate(expression)
        if place and letter in "+-*" and expression[place - 1].isdigit()
    ]
    return expression[: rng.choice(places)]
