"""CISPO: the importance weight is clipped, never the gradient. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import SampledTokens, Totals, ratio_metrics, regularisation


def cispo_loss(
    tokens: SampledTokens, totals: Totals, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums over them of what was measured (maxima for keys that end in `_max`).

        loss = sum over tokens of -weight sg(clip(ratio, 1 - clip_low, 1 + clip_high)) A logprob
                                  + kl_coefficient KL - entropy_coefficient entropy, divided by the step's tokens

    sg stops the gradient. From MiniMax-M1 (arXiv:2506.13585, equations 4 and 5): every token keeps a gradient, however
    far its ratio went, where the other losses let go of it beyond the clip. As there, nothing is clipped below by
    default (clip_low 1); the cap above, which the paper does not state, is DAPO's 1.28.
    """
    ratio_K = tokens.ratio_K.detach()
    capped_K = ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain_K = capped_K * tokens.advantages_K * tokens.logprobs_K
    penalty_K, metrics = regularisation(tokens, config)
    loss = (penalty_K - tokens.weights_K * gain_K).sum() / totals.tokens
    return loss, metrics | ratio_metrics(tokens, capped_K != ratio_K)
