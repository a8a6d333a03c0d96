"""Plain imitation of given replies, for the cold start. Axis: K reply tokens."""

import torch


def supervised_loss(
    logprobs_K: torch.Tensor, entropy_K: torch.Tensor, tokens: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Mean negative log-likelihood over the `tokens` of a whole optimizer step: -sum(logprob) / tokens."""
    return -logprobs_K.sum() / tokens, {"entropy": entropy_K.detach().sum()}
