"""The losses: what they read, the terms that they share, one function each, the table of their names.

Axes: K sampled tokens. Every tensor here is [K] unless its name says otherwise.

A loss is a pure function of the sampled tokens of some samples. It returns its value and its metrics: sums over K, and
maxima for keys that end in `_max`. A call has complete samples, so a sum over a sample misses nothing. The samples of
one trajectory (nearly always one, see `records.py`) may be in several calls, so of a trajectory a loss knows only its
advantage and its number of tokens.

To add a loss, write a function here, enter it in LOSSES, and name it in `tasks/config.py` with its clip.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tasks.config import AlgorithmConfig

Value = tuple[torch.Tensor, dict[str, torch.Tensor]]  # of a loss, and its metrics
# Nats. The exponential of a larger difference of log-probabilities says no more, and would overflow.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class StepTotals:
    """The size of a whole optimizer step, over all its microbatches and ranks, by which losses divide.

    Example: `StepTotals(tokens=262.0, trajectories=64.0)`.
    """

    tokens: float  # sampled tokens
    trajectories: float  # trajectories with a sampled token; each counts once, however many samples it has


@dataclass(frozen=True)
class SampledTokens:
    """The sampled tokens of some samples. Produced by `batch_loss`, consumed by the losses.

    Example, one trajectory in a sample of two tokens and a sample of one: logprobs_K = [-0.7, -0.1, -1.2],
    sample_K = [0, 0, 1], advantages_K = [0.5, 0.5, 0.5], trajectory_tokens_K = [3, 3, 3].
    """

    logprobs_K: torch.Tensor  # of the policy in training, at the sampling temperature; has a gradient
    entropy_K: torch.Tensor  # of its whole distribution there, in nats; has a gradient
    generator_logprobs_K: torch.Tensor  # of the policy that sampled, in the generator's own numerics
    old_logprobs_K: torch.Tensor  # the ratio's denominator: the generator's, unless `importance_sampling` is on
    importance_weights_K: torch.Tensor  # of `importance_weights`: 1, unless `importance_sampling` is on
    reference_logprobs_K: torch.Tensor | None  # of the frozen policy 0; None without a KL term
    advantages_K: torch.Tensor  # of the token's trajectory
    sample_K: torch.Tensor  # int64, the token's sample, numbered from 0
    trajectory_tokens_K: torch.Tensor  # sampled tokens of the trajectory, in all its samples

    @property
    def ratio_K(self) -> torch.Tensor:
        """exp(logprob - old logprob): how much more likely each token has become."""
        return exp_limited(self.logprobs_K - self.old_logprobs_K)


def exp_limited(log_ratio_K: torch.Tensor) -> torch.Tensor:
    """exp(log ratio), where the log ratio counts from -MAX_LOG_RATIO to MAX_LOG_RATIO, without gradient beyond."""
    return log_ratio_K.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_gain(
    ratio_K: torch.Tensor, advantages_K: torch.Tensor, config: AlgorithmConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The clipped objective, and where the clip and where the dual clip removed the gradient, bool [K].

        gain = min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), at least dual_clip A where A < 0

    PPO (arXiv:1707.06347, equation 7): a good token is not raised beyond 1 + clip_high, a bad one not lowered below
    1 - clip_low; the opposite direction keeps its gradient. There the ratio of a bad token has no bound, and one that
    has become a thousand times as likely would outweigh all others: the dual clip (arXiv:1912.09729, equation 5) is
    that bound. A dual_clip of 0 sets none.
    """
    plain_K = ratio_K * advantages_K
    gain_K = torch.minimum(plain_K, ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages_K)
    clipped_K, dual_K = gain_K < plain_K, torch.zeros_like(gain_K, dtype=torch.bool)
    if config.dual_clip:
        least_K = config.dual_clip * advantages_K
        dual_K = (advantages_K < 0) & (gain_K < least_K)
        gain_K = torch.where(dual_K, least_K, gain_K)
    return gain_K, clipped_K & ~dual_K, dual_K


def kl_estimate(tokens: SampledTokens, estimator: str, most: float = 0.0) -> torch.Tensor:
    """An estimate of the KL between policy and reference for each token.

    With d = reference's logprob - logprob, w = exp(logprob - generator's logprob), and sg stopping the gradient:

        k1 = w (-d)                   mean and gradient of KL(policy || reference)
        k2 = sg(w) d² / 2             gradient of KL(policy || reference), with less variance
        k3 = sg(w) (exp(d) - d - 1)   mean of KL(policy || reference), gradient of KL(reference || policy)

    Schulman, "Approximating KL divergence", 2020. An estimator's gradient as a loss is not the gradient of what it
    estimates (Tang and Munos, arXiv:2506.09477): that of a bare k1 has mean 0, which is why its w has a gradient here.
    The weight w is needed because the generator sampled the tokens and the expectation is over the current policy;
    without it, exp(d) of a token that became rare since then dominates. A weight counts up to `most`, where that is
    given, so that a token that became frequent does not dominate either.
    """
    assert tokens.reference_logprobs_K is not None
    d_K = tokens.reference_logprobs_K - tokens.logprobs_K
    w_K = exp_limited(tokens.logprobs_K - tokens.generator_logprobs_K)
    w_K = w_K.clamp(max=most) if most else w_K
    if estimator == "k1":
        return w_K * -d_K
    if estimator == "k2":
        return w_K.detach() * d_K.square() / 2
    return w_K.detach() * (exp_limited(d_K) - d_K - 1)


def shared_terms(
    tokens: SampledTokens, clipped_K: torch.Tensor, dual_K: torch.Tensor, config: AlgorithmConfig
) -> Value:
    """kl_coefficient KL - entropy_coefficient entropy, [K], and the metrics of every loss.

    The ratio in the metrics is the unclipped one to the generator, exp(logprob - generator's logprob).
    """
    penalty_K = -config.entropy_coefficient * tokens.entropy_K
    metrics = {"entropy": tokens.entropy_K.detach().sum()}
    if config.kl_coefficient:
        kl_K = kl_estimate(tokens, config.kl_estimator, most=config.dual_clip)
        penalty_K = penalty_K + config.kl_coefficient * kl_K
        metrics["kl"] = kl_K.detach().sum()
    log_ratio_K = tokens.logprobs_K.detach() - tokens.generator_logprobs_K
    ratio_K = exp_limited(log_ratio_K)
    return penalty_K, metrics | {
        "ratio_mean": ratio_K.sum(),
        "ratio_square": ratio_K.square().sum(),
        "ratio_max": ratio_K.max() if len(ratio_K) else ratio_K.new_zeros(()),
        "clip_share": clipped_K.float().sum(),
        "dual_clip_share": dual_K.float().sum(),
        "log_ratio_clamped_share": (log_ratio_K.abs() > MAX_LOG_RATIO).float().sum(),
    }


def clipped_loss(tokens: SampledTokens, divisor: float, config: AlgorithmConfig) -> Value:
    """sum over tokens of (-weight clipped gain + kl_coefficient KL - entropy_coefficient entropy) / divisor."""
    gain_K, clipped_K, dual_K = clipped_gain(tokens.ratio_K, tokens.advantages_K, config)
    penalty_K, metrics = shared_terms(tokens, clipped_K, dual_K, config)
    return (penalty_K - tokens.importance_weights_K * gain_K).sum() / divisor, metrics


def sum_by(values_K: torch.Tensor, owner_K: torch.Tensor) -> torch.Tensor:
    """For each token, the sum over all tokens with the same owner, a sample or a trajectory: [K]."""
    size = int(owner_K.max()) + 1 if len(owner_K) else 0
    return values_K.new_zeros(size).index_add(0, owner_K, values_K)[owner_K]


def importance_weights(
    old_logprobs_K: torch.Tensor,
    generator_logprobs_K: torch.Tensor,
    trajectory_K: torch.Tensor,
    config: AlgorithmConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights [K] without gradient, and which of them the cap changed, bool [K].

        w        = exp(old logprob - generator's logprob), of the token, or the product over its trajectory
        truncate = min(w, cap)
        mask     = w where 1 / cap <= w <= cap, else 0

    `old` is the trainer's log-probability before the stage's first step, the denominator of the clipped ratio. The
    weight, computed once then, corrects for the rest: the generator has other kernels, another precision, or an older
    version. This is the decoupled objective of Hilton et al. (arXiv:2110.00641), truncated as in IMPALA
    (arXiv:1802.01561).
    """
    log_w_K = old_logprobs_K - generator_logprobs_K
    if config.importance_sampling_level == "sequence":
        log_w_K = sum_by(log_w_K, trajectory_K)
    w_K = exp_limited(log_w_K)
    if config.importance_sampling == "truncate":
        return w_K.clamp(max=config.importance_sampling_cap), w_K > config.importance_sampling_cap
    beyond_K = (w_K > config.importance_sampling_cap) | (w_K < 1 / config.importance_sampling_cap)
    return w_K.masked_fill(beyond_K, 0.0), beyond_K


# The losses. In their equations, weight is the importance weight and A the advantage.


def grpo_loss(tokens: SampledTokens, totals: StepTotals, config: AlgorithmConfig) -> Value:
    """GRPO and DAPO: the clipped ratio of each token, averaged over all tokens of the optimizer step.

        ratio = exp(logprob - old logprob)
        loss  = sum over tokens of (-weight min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
                                    + kl_coefficient KL - entropy_coefficient entropy) / the step's tokens

    GRPO is from DeepSeekMath (arXiv:2402.03300, equation 3), with four differences. A bad token's term has the bound of
    `clipped_gain`. The mean is over the tokens of the
    whole step instead of first within each reply, so a token of a long reply counts like any other and a batch split in
    two gives the same gradient. The ratio is to the policy that sampled, by its own log-probabilities, however old it
    is. The KL is weighted by the ratio (`kl_estimate`).

    DAPO (arXiv:2503.14476, equation 8) has this token mean too, with a higher upper clip, by default 0.28 above and 0.2
    below: an unlikely token has more room to become likely, which keeps exploration up. The paper's other parts are
    separate settings: dynamic sampling is `rollout.max_groups`, overlong filtering `rollout.truncated` = "drop", no KL
    `algorithm.kl_coefficient` = 0, advantages divided by the standard deviation `algorithm.advantage`.
    """
    return clipped_loss(tokens, totals.tokens, config)


def dr_grpo_loss(tokens: SampledTokens, totals: StepTotals, config: AlgorithmConfig) -> Value:
    """Dr. GRPO: GRPO's sum over tokens, divided by the step's trajectories instead of its tokens.

    From "Understanding R1-Zero-like training" (arXiv:2503.20783, section 3.2): a sum over each trajectory with all its
    samples, and the mean over trajectories. Dividing by lengths would favour short right replies and long wrong ones.
    The paper also divides by a constant, the generation budget; that only scales the learning rate and is left out.
    Its other half, advantages that are not divided by the group's standard deviation, is `algorithm.advantage`, whose
    "mean_std" is refused with this loss.
    """
    return clipped_loss(tokens, totals.trajectories, config)


def gspo_loss(tokens: SampledTokens, totals: StepTotals, config: AlgorithmConfig) -> Value:
    """GSPO: one ratio for each sequence.

        s    = exp(mean over a sample's sampled tokens of logprob - old logprob)
        loss = sum over samples of -share min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) / the step's trajectories
               + sum over tokens of (kl_coefficient KL - entropy_coefficient entropy) / the step's tokens

    From "Group sequence policy optimization" (arXiv:2507.18071, equations 5 and 7): the unit that is rewarded has one
    ratio and is clipped as one. Here it is the whole trajectory over all its turns, one sample with a share of 1. Where
    a chat template split it, each sample has its own ratio, and its share is that of the trajectory's sampled tokens:
    each trajectory counts once, and at s = 1 each token has the gradient that it would have unsplit. The weight of a
    token applies to its part of the sample. The paper clips at 3e-4 and 4e-4, for replies of thousands of tokens. The
    default here is 0.1, for short replies, half of whose tokens are ends of turns that do not change.
    """
    length_K = sum_by(torch.ones_like(tokens.logprobs_K), tokens.sample_K)
    log_s_K = sum_by(tokens.logprobs_K - tokens.old_logprobs_K, tokens.sample_K) / length_K
    gain_K, clipped_K, dual_K = clipped_gain(exp_limited(log_s_K), tokens.advantages_K, config)
    penalty_K, metrics = shared_terms(tokens, clipped_K, dual_K, config)
    gain_K = tokens.importance_weights_K * gain_K / tokens.trajectory_tokens_K
    return penalty_K.sum() / totals.tokens - gain_K.sum() / totals.trajectories, metrics


def cispo_loss(tokens: SampledTokens, totals: StepTotals, config: AlgorithmConfig) -> Value:
    """CISPO: the ratio is clipped as a weight, and every token keeps its gradient.

        loss = sum over tokens of (-weight sg(clip(ratio, 1 - clip_low, 1 + clip_high)) A logprob
                                   + kl_coefficient KL - entropy_coefficient entropy) / the step's tokens

    sg stops the gradient. From MiniMax-M1 (arXiv:2506.13585, equations 4 and 5): the other losses lose the gradient of
    a token beyond the clip, this one does not. As there, nothing is clipped below by default (clip_low 1); the upper
    clip, which the paper does not state, is DAPO's 0.28.
    """
    ratio_K = tokens.ratio_K.detach()
    capped_K = ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain_K = capped_K * tokens.advantages_K * tokens.logprobs_K
    penalty_K, metrics = shared_terms(tokens, capped_K != ratio_K, torch.zeros_like(ratio_K, dtype=torch.bool), config)
    return (penalty_K - tokens.importance_weights_K * gain_K).sum() / totals.tokens, metrics


# By `algorithm.name`.
LOSSES: dict[str, Callable[[SampledTokens, StepTotals, AlgorithmConfig], Value]] = {
    "grpo": grpo_loss,
    "dr_grpo": dr_grpo_loss,
    "dapo": grpo_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
}


def supervised_loss(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, _rows: object, totals: StepTotals) -> Value:
    """A trainer's `Loss` for the cold start: mean negative log-likelihood, -sum(logprob) / the step's tokens."""
    return -logprobs_K.sum() / totals.tokens, {"entropy": entropy_K.detach().sum()}
