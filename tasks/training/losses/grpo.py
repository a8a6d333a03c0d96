"""GRPO: the clipped ratio of each token, averaged over all tokens of the optimizer step. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import SampledTokens, Totals, clipped_loss


def grpo_loss(
    tokens: SampledTokens, totals: Totals, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums over them of what was measured (maxima for keys that end in `_max`).

        ratio = exp(logprob - old logprob)
        loss  = sum over tokens of -weight min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
                                   + kl_coefficient KL - entropy_coefficient entropy, divided by the step's tokens

    From DeepSeekMath (arXiv:2402.03300, equation 3), with three departures. Tokens are averaged over the whole
    optimizer step instead of first within each reply, so that a long reply's tokens count like any other's and a batch
    split in two gives the same gradient. The ratio is to the policy that sampled, by its own log-probabilities,
    however old it is. The KL is weighed by the ratio (`tokens.kl_estimate`).
    """
    return clipped_loss(tokens, totals.tokens, config)
