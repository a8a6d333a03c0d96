"""The GRPO objective with a clipped ratio and a KL to the reference.

Axis: K sampled tokens.
"""

import torch

from tasks.config import AlgorithmConfig


def grpo_loss(
    logprobs_K: torch.Tensor,
    entropy_K: torch.Tensor,
    *,
    generator_logprobs_K: torch.Tensor,
    reference_logprobs_K: torch.Tensor,
    advantages_K: torch.Tensor,
    divisor: float,
    config: AlgorithmConfig,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of K sampled tokens, and sums of what it measured.

        ratio = exp(logprob - generator's logprob)
        loss  = sum over tokens of -min(ratio A, clip(ratio, 1 - clip, 1 + clip) A)
                                   + kl_coefficient sg(ratio) k3 - entropy_coefficient entropy, divided by `divisor`
        k3    = exp(d) - d - 1 with d = reference's logprob - logprob; sg stops the gradient

    From DeepSeekMath (arXiv:2402.03300, equations 3 and 4; k3 from Schulman, "Approximating KL divergence", 2020),
    with three departures. Tokens are averaged over the whole optimizer step instead of first within each reply (as
    DAPO, arXiv:2503.14476, equation 8), so that a batch split in two gives the same gradient. The ratio is against the
    policy that sampled, by its own log-probabilities, however old it is. And k3 is weighed by the ratio, held fixed: a
    token that became rare since it was sampled counts as rarely as it would be sampled now, where without the weight
    its exp(d) grows without bound and drowns all others. The gradient of the term is then, on average and whatever the
    age of the samples, that of KL(reference || policy), which keeps each reply of the reference alive. Differentiating
    the weight as well (DeepSeek-V3.2, arXiv:2512.02556) gives KL(policy || reference), which lets go of them.

    All tensors are [K]; `divisor` is the number of sampled tokens of the whole optimizer step, over all its parts and
    ranks. The sums in the metrics are over K, undivided; keys that end in `_max` are maxima.
    """
    log_ratio_K = logprobs_K - generator_logprobs_K
    ratio_K = log_ratio_K.exp()
    clipped_K = ratio_K.clamp(1 - config.clip, 1 + config.clip)
    gain_K = torch.minimum(ratio_K * advantages_K, clipped_K * advantages_K)
    d_K = reference_logprobs_K - logprobs_K
    kl_K = ratio_K.detach() * (d_K.exp() - d_K - 1)
    loss_K = -gain_K + config.kl_coefficient * kl_K - config.entropy_coefficient * entropy_K
    with torch.no_grad():
        metrics = {
            "ratio_mean": ratio_K.sum(),
            "ratio_max": ratio_K.max() if len(ratio_K) else ratio_K.new_zeros(()),
            "clip_share": (gain_K < ratio_K * advantages_K).float().sum(),
            "kl": kl_K.sum(),
            "entropy": entropy_K.sum(),
        }
    return loss_K.sum() / divisor, metrics
