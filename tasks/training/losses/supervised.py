"""Plain imitation of given replies, for the cold start. Axis: K reply tokens."""

import torch


def supervised_loss(
    logprobs_K: torch.Tensor,
    entropy_K: torch.Tensor,
    *,
    divisor: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean negative log-likelihood over `divisor` tokens: -sum(logprob) / divisor."""
    with torch.no_grad():
        metrics = {"entropy": entropy_K.sum()}
    return -logprobs_K.sum() / divisor, metrics
