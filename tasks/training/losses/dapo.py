"""DAPO: more room above than below. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import SampledTokens, Totals, clipped_loss


def dapo_loss(
    tokens: SampledTokens, totals: Totals, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums over them of what was measured (maxima for keys that end in `_max`).

        loss = sum over tokens of -weight min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
                                  + kl_coefficient KL - entropy_coefficient entropy, divided by the step's tokens

    From DAPO (arXiv:2503.14476, equation 8) with its clip_low 0.2 and clip_high 0.28: an unlikely token has more room
    to become likely, which keeps exploration up. `grpo` is a token mean here too, so that the clip is all that differs.
    The paper's other parts are settings of their own: dynamic sampling is `rollout.max_groups`, overlong filtering
    `rollout.cut` = "drop", no KL `algorithm.kl_coefficient` = 0, divided advantages `algorithm.advantage`.
    """
    return clipped_loss(tokens, totals.tokens, config)
