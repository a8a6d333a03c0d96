"""Objectives with every setting, as a stage gets them, and the steps that a trainer took towards them."""

from typing import Any

from tasks.config import CLIPS, AlgorithmConfig


def objective(name: str = "grpo", **changes: object) -> AlgorithmConfig:
    """An objective with its own clips, a KL of 0.15 and the limit of the mismatch in float32, but for `changes`."""
    low, high = CLIPS[name]
    given = {"name": name, "clip_low": low, "clip_high": high, "kl_coefficient": 0.15, "max_mismatch": 0.02}
    return AlgorithmConfig.from_dict({**given, **changes})


def optimizer_steps(trainer: Any) -> int:
    """How many steps AdamW has counted."""
    (optimizer,) = trainer.optimizers
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)
