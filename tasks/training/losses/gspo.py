"""GSPO: one ratio a sequence. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import (
    SampledTokens,
    Totals,
    clipped_gain,
    ratio_metrics,
    regularisation,
    sum_by,
)


def gspo_loss(
    tokens: SampledTokens, totals: Totals, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums over them of what was measured (maxima for keys that end in `_max`).

        s    = exp(mean over a sample's sampled tokens of logprob - old logprob)
        loss = sum over samples of -share min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), divided by the step's
               trajectories, + sum over tokens of kl_coefficient KL - entropy_coefficient entropy, divided by its tokens

    From "Group sequence policy optimization" (arXiv:2507.18071, equations 5 and 7): what earns the reward, the whole
    reply, is what gets a ratio and is clipped. Here it is the whole trajectory, over all its turns, whose sample has a
    share of 1. Where a chat template split it, each sample is a sequence with a ratio of its own, its likelihood given
    the prompt that the generator saw, and its share is that of the trajectory's sampled tokens: every trajectory
    counts once, and at s = 1 each token has the gradient that it would have unsplit. A token's weight counts for its
    share of the sample. The paper clips at 3e-4 and 4e-4, for thousands of tokens, whose mean hardly
    moves. By default it is 0.1 here, for short replies: half of their tokens are ends of turns, which do not move, so
    that a choice whose ratio is 1.2 takes s to 1.1.
    """
    length_K = sum_by(torch.ones_like(tokens.logprobs_K), tokens.sample_K)
    log_s_K = sum_by(tokens.logprobs_K - tokens.old_logprobs_K, tokens.sample_K) / length_K
    gain_K, clipped_K = clipped_gain(log_s_K.exp(), tokens.advantages_K, config)
    penalty_K, metrics = regularisation(tokens, config)
    gain_K = tokens.weights_K * gain_K / tokens.trajectory_tokens_K
    loss = penalty_K.sum() / totals.tokens - gain_K.sum() / totals.trajectories
    return loss, metrics | ratio_metrics(tokens, clipped_K)
