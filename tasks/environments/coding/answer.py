"""The code in a reply: its last fenced block, or the whole of it where it has no block and is Python."""

import ast
import re

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def answer(reply: str) -> str | None:
    """The code of a reply, what was thought before it left out; None where there is none."""
    said = reply.rpartition("</think>")[2]
    if blocks := _BLOCK.findall(said):
        return blocks[-1]
    return said if "```" not in said and _defines(said) else None


def is_partial(reply: str) -> bool:
    """Whether code was begun: a block that was not closed, say."""
    return "```" in reply or "def " in reply


def _defines(text: str) -> bool:
    """Whether a text is Python with a function in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(statement, ast.FunctionDef) for statement in tree.body)
