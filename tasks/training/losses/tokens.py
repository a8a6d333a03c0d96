"""What every policy loss reads, and the terms that all of them share.

Axes: K sampled tokens, S samples. A trajectory is nearly always one sample, more where the chat template rewrote
earlier turns (see `records.py`). The samples of one call are whole: a sum over a sample misses nothing. Those of one
trajectory may be in several calls: of a trajectory, a loss knows the advantage and the number of tokens.
"""

from dataclasses import dataclass

import torch

from tasks.config import AlgorithmConfig


@dataclass(frozen=True)
class Totals:
    """The size of a whole optimizer step, over all its parts and ranks: what sums are divided by, so that a step in
    parts has the gradient of the step at once. Example: `Totals(tokens=262.0, trajectories=64.0)`."""

    tokens: float  # sampled tokens
    trajectories: float  # trajectories with a sampled token, each once, however many samples it is in


@dataclass(frozen=True)
class SampledTokens:
    """The sampled tokens of some samples, all tensors [K]. Produced by `train.py`, consumed by the losses.

    Example, three tokens of one trajectory in samples of two tokens and one: logprobs_K = [-0.7, -0.1, -1.2],
    sample_K = [0, 0, 1], advantages_K = [0.5, 0.5, 0.5], trajectory_tokens_K = [3, 3, 3].
    """

    logprobs_K: torch.Tensor  # of the policy in training, at the sampling temperature; carries the gradient
    entropy_K: torch.Tensor  # of its whole distribution there, in nats; carries the gradient
    generator_logprobs_K: torch.Tensor  # of the policy that sampled, in its own numerics
    old_logprobs_K: torch.Tensor  # what the ratio divides by: the generator's, unless `importance_sampling` is on
    weights_K: torch.Tensor  # importance of each token beside the ratio: 1, unless `importance_sampling` is on
    reference_logprobs_K: torch.Tensor | None  # of the frozen policy 0; None where the KL is not wanted
    advantages_K: torch.Tensor  # of its trajectory
    sample_K: torch.Tensor  # int64, 0 … S - 1
    trajectory_tokens_K: torch.Tensor  # sampled tokens of its trajectory, over all samples, also those of other calls

    @property
    def ratio_K(self) -> torch.Tensor:
        """How much likelier each token has become."""
        return (self.logprobs_K - self.old_logprobs_K).exp()


def sum_by(values_K: torch.Tensor, owner_K: torch.Tensor) -> torch.Tensor:
    """Each token gets the sum over all that have its owner, a sample or a trajectory: [K]."""
    size = int(owner_K.max()) + 1 if len(owner_K) else 0
    return values_K.new_zeros(size).index_add(0, owner_K, values_K)[owner_K]


def clipped_gain(
    ratio_K: torch.Tensor, advantages_K: torch.Tensor, config: AlgorithmConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), and where the clip took the gradient away, bool [K].

    PPO (arXiv:1707.06347, equation 7): a good token is not raised beyond 1 + clip_high, a bad one not lowered beyond
    1 - clip_low; the way back stays open.
    """
    clipped_K = ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages_K
    gain_K = torch.minimum(ratio_K * advantages_K, clipped_K)
    return gain_K, gain_K < ratio_K * advantages_K


def kl_estimate(tokens: SampledTokens, estimator: str) -> torch.Tensor:
    """What each token says of the KL between policy and reference, [K]; its gradient is what the estimator promises.

    With d = reference's logprob - logprob and w = exp(logprob - generator's logprob), and sg stopping the gradient:

        k1 = w (-d)               mean and gradient of KL(policy || reference)
        k2 = sg(w) d² / 2         gradient of KL(policy || reference), with less variance
        k3 = sg(w) (exp(d) - d - 1)   mean of KL(policy || reference), gradient of KL(reference || policy)

    Schulman, "Approximating KL divergence", 2020. What they do as losses is another matter than what they estimate
    (Tang and Munos, arXiv:2506.09477): the slope of a bare k1 has mean 0, hence its w carries a gradient.
    All are weighed by w, for the tokens were sampled by the generator and the expectation is over the policy of now. A
    token that became rare since it was sampled counts as rarely as it would be sampled now; without the weight its
    exp(d) grows without bound and drowns all others. k3 keeps each reply of the reference alive, k1 and k2 let go of
    those that the policy gave up.
    """
    assert tokens.reference_logprobs_K is not None
    d_K = tokens.reference_logprobs_K - tokens.logprobs_K
    w_K = (tokens.logprobs_K - tokens.generator_logprobs_K).exp()
    if estimator == "k1":
        return w_K * -d_K
    if estimator == "k2":
        return w_K.detach() * d_K.square() / 2
    return w_K.detach() * (d_K.exp() - d_K - 1)


def regularisation(tokens: SampledTokens, config: AlgorithmConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """kl_coefficient KL - entropy_coefficient entropy, [K], and the sums of both."""
    penalty_K = -config.entropy_coefficient * tokens.entropy_K
    metrics = {"entropy": tokens.entropy_K.detach().sum()}
    if config.kl_coefficient:
        kl_K = kl_estimate(tokens, config.kl_estimator)
        penalty_K = penalty_K + config.kl_coefficient * kl_K
        metrics["kl"] = kl_K.detach().sum()
    return penalty_K, metrics


@torch.no_grad()
def ratio_metrics(tokens: SampledTokens, clipped_K: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums over K of what tells whether the steps are still sound; keys that end in `_max` are maxima.

    The ratios here are to the generator, in full: what an unclipped importance weight would be.
    """
    ratio_K = (tokens.logprobs_K - tokens.generator_logprobs_K).exp()
    return {
        "ratio_mean": ratio_K.sum(),
        "ratio_square": ratio_K.square().sum(),
        "ratio_max": ratio_K.max() if len(ratio_K) else ratio_K.new_zeros(()),
        "clip_share": clipped_K.float().sum(),
    }


def clipped_loss(
    tokens: SampledTokens, divisor: float, config: AlgorithmConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What the losses with a clipped ratio a token have in common; what they divide by, and where they clip, is theirs.

    (sum over tokens of -weight clipped gain + kl_coefficient KL - entropy_coefficient entropy) / divisor, and the sums
    of what was measured.
    """
    gain_K, clipped_K = clipped_gain(tokens.ratio_K, tokens.advantages_K, config)
    penalty_K, metrics = regularisation(tokens, config)
    loss = (penalty_K - tokens.weights_K * gain_K).sum() / divisor
    return loss, metrics | ratio_metrics(tokens, clipped_K)
