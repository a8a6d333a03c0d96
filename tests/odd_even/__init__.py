"""Reward functions as a user has them for prompts of their own; numbers.jsonl is the data."""

from typing import Any


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """As TRL's GRPOTrainer takes them: texts and the data's columns as lists, a list of numbers back."""
    return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


async def brief(prompt: str, reply: str, row: dict[str, Any]) -> float:
    """The plainer form, here async, as for a judge on a server: one reply and its row."""
    return float(len(reply) <= 4)
