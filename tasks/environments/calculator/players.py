"""Scripted players: the exact one, the random one, and the conversations that `tiny` begins with.

The cold start teaches to copy, and shows calls that are cut and answers that ignore the output; only rewards teach
which of them pay.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.environments.calculator.expressions import Arithmetic, cut, pieces, value
from tasks.environments.interface import Demonstration, Message

ANSWER = "ANSWER"  # with which an answer begins, see `answer_prefix`
CALLS = {1: (0.35,), 2: (0.6, 0.5)}  # shares of the random player's replies that call: at first, after an output


@dataclass(frozen=True)
class Move:
    """A call of the tool with this text, or an answer."""

    text: str
    calls: bool = False


def answer_prefix(call_format: str) -> str:
    """What stands before the number in an answer: nothing where a call is an expression alone."""
    return "" if call_format == "bare" else f"{ANSWER} "


@dataclass(frozen=True)
class Players:
    """What they say; `write(code)` writes a call, and an answer is a number behind `answer`."""

    arithmetic: Arithmetic
    tool: bool
    write: Callable[[str], str]
    answer: str = f"{ANSWER} "

    def say(self, move: Move) -> str:
        """The reply."""
        return self.write(move.text) if move.calls else self.answer + move.text

    def exact(self, expression: str, outputs: Sequence[str]) -> Move:
        """The right move."""
        parts, turn = pieces(expression), len(outputs)
        if not self.tool:
            return Move(str(value(expression)))
        if turn < len(parts):
            return Move((outputs[-1] if outputs else "") + parts[turn], calls=True)
        return Move(outputs[-1])

    def guess(self, expression: str, outputs: Sequence[str], rng: random.Random) -> Move:
        """Some move of the right form: half of its calls lose a number, half of its answers are another task's."""
        shares = CALLS[self.arithmetic.calls] if self.tool else ()
        turn, kept = len(outputs), rng.random() < 0.5
        if turn < len(shares) and rng.random() < shares[turn]:
            if turn:
                return Move((outputs[-1] if kept else self._other(rng)) + pieces(expression)[turn], calls=True)
            first = pieces(expression)[0]
            return Move(first if kept else cut(first, rng), calls=True)
        return Move(outputs[-1] if outputs and kept else self._other(rng))

    def _other(self, rng: random.Random) -> str:
        return str(value(self.arithmetic.draw(rng)))

    def play(
        self, first: Sequence[Message], expression: str, choose: Callable[[str, Sequence[str]], Move]
    ) -> list[Message]:
        """The conversation of a player behind these first messages, with what the tool says."""
        messages, outputs = list(first), []
        while True:
            move = choose(expression, outputs)
            messages.append(_assistant(self.say(move)))
            if not move.calls:
                return messages
            outputs.append(str(value(move.text)))
            messages.append({"role": "tool", "content": outputs[-1]})

    def drill(self, first: Message, rng: random.Random) -> Demonstration:
        """An exercise in copying: an expression into calls, a number into an answer; no number is a result."""
        if not self.tool:
            number = self._any_number(rng)
            return Demonstration([first, {"role": "user", "content": number}, _assistant(self.say(Move(number)))])
        expression, before = self.arithmetic.draw(rng), ""
        messages = [first, {"role": "user", "content": f"{expression}=?"}]
        for part in pieces(expression):
            messages.append(_assistant(self.write(before + part)))
            before = self._any_number(rng)
            messages.append({"role": "tool", "content": before})
        return Demonstration([*messages, _assistant(self.say(Move(before)))])

    def _any_number(self, rng: random.Random) -> str:
        """As long as results are, of any digits: results repeat few of them."""
        digits = rng.randint(1, len(self._other(rng).lstrip("-")) + 1)
        return rng.choice(("", "", "-")) + str(rng.randrange(10 ** (digits - 1), 10**digits))


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
