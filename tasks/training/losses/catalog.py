"""The losses by the name that `algorithm.name` gives."""

from collections.abc import Callable

import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.cispo import cispo_loss
from tasks.training.losses.dapo import dapo_loss
from tasks.training.losses.dr_grpo import dr_grpo_loss
from tasks.training.losses.grpo import grpo_loss
from tasks.training.losses.gspo import gspo_loss
from tasks.training.losses.tokens import SampledTokens, Totals

PolicyLoss = Callable[[SampledTokens, Totals, AlgorithmConfig], tuple[torch.Tensor, dict[str, torch.Tensor]]]

LOSSES: dict[str, PolicyLoss] = {
    "grpo": grpo_loss,
    "dr_grpo": dr_grpo_loss,
    "dapo": dapo_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
}
