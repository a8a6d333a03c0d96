"""Dr. GRPO: the policy gradient without the normalisations that bias it. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import SampledTokens, Totals, clipped_loss


def dr_grpo_loss(
    tokens: SampledTokens, totals: Totals, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums over them of what was measured (maxima for keys that end in `_max`).

        loss = sum over tokens of -weight min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
                                  + kl_coefficient KL - entropy_coefficient entropy, divided by the step's trajectories

    From "Understanding R1-Zero-like training" (arXiv:2503.20783, section 3.2): a sum over each trajectory, whatever its
    length, and the mean over trajectories; dividing by lengths would favour short right replies and long wrong ones.
    The paper further divides by a constant, the generation budget, which only scales the learning rate and is left out.
    The sum is over all samples of a trajectory, which counts once among the trajectories.
    The other half, advantages that are not divided by the group's deviation, is `algorithm.advantage`; its
    "mean_std" is refused with this loss.
    """
    return clipped_loss(tokens, totals.trajectories, config)
