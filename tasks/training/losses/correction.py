"""Importance weights where generator and trainer disagree about the very same weights. Axis: K sampled tokens."""

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.tokens import sum_by


def importance_weights(
    old_logprobs_K: torch.Tensor,
    generator_logprobs_K: torch.Tensor,
    trajectory_K: torch.Tensor,
    config: AlgorithmConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [K] without gradient, and which of them the cap changed, bool [K].

        w        = exp(old logprob - generator's logprob), of the token or multiplied over its trajectory, all samples
        truncate = min(w, cap)
        mask     = w where 1 / cap <= w <= cap, else 0

    `old` is the trainer's log-probability before the stage's first step. The clipped ratio is then to it, and what
    lies between it and the generator, other kernels, other precision, an older version, is this weight: the decoupled
    objective of Hilton et al. (arXiv:2110.00641), truncated as in IMPALA (arXiv:1802.01561). It does not
    change with the policy in training, and is known for whole trajectories before the first step.
    """
    log_w_K = old_logprobs_K - generator_logprobs_K
    if config.importance_sampling_level == "sequence":
        log_w_K = sum_by(log_w_K, trajectory_K)
    w_K = log_w_K.exp()
    if config.importance_sampling == "truncate":
        return w_K.clamp(max=config.importance_sampling_cap), w_K > config.importance_sampling_cap
    beyond_K = (w_K > config.importance_sampling_cap) | (w_K < 1 / config.importance_sampling_cap)
    return w_K.masked_fill(beyond_K, 0.0), beyond_K
