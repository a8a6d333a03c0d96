"""A TorchTitan model with its optimizer and schedule: scores tokens, takes optimizer steps, exports policies.

It is composed from TorchTitan's components, because TorchTitan's Trainer class needs an accelerator. Axes: B rows, T
columns, D hidden size, V vocabulary, K sampled tokens (see `packing.py`), k those of them that are this rank's, where
ranks share rows.

    FlatSamples ──microbatches──► Rows ──forward──► logprobs_K, entropy_K ──Loss──► value ──backward──► optimizer step
"""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tasks.config import TrainingConfig
from tasks.training.losses import StepTotals, Value
from tasks.training.model import build_model, export_weights, full_tensor
from tasks.training.packing import FlatSamples, Rows, build_rows, plan_rows
from tasks.training.titan import ON_CPU, attention_masks, dist_utils, row_multiple

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

# From log-probabilities and entropies [K] of some rows, and the totals of the whole step, to a loss and its metrics.
Loss = Callable[[torch.Tensor, torch.Tensor, Rows, StepTotals], Value]


def token_logprobs(
    logits_KV: torch.Tensor, target_K: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target, and entropy in nats, both [K] and at the sampling temperature."""
    all_logprobs_KV = torch.log_softmax(logits_KV.float() / temperature, dim=-1)
    entropy_K = -(all_logprobs_KV.exp() * all_logprobs_KV).sum(-1)
    return all_logprobs_KV.gather(-1, target_K[:, None])[:, 0], entropy_K


class Trainer:
    """One model on all ranks of the process group.

    The learning rate follows TorchTitan's schedule over `schedule_steps` steps, one for each iteration of the run: the
    number of optimizer steps depends on how many groups have a gradient.
    """

    def __init__(self, policy: Path, config: TrainingConfig, *, temperature: float, schedule_steps: int, seed: int = 0):
        self.config = config
        self.temperature = temperature
        self.group_size = config.tensor_parallel * config.context_parallel  # ranks that work on the same rows
        self.model, self.adapter, self.parallel_dims = build_model(policy, config, seed=seed)
        self.trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.model._skip_lm_head = True  # pyright: ignore[reportArgumentType]  # see _forward
        self.device = torch.device("cpu") if ON_CPU else torch.device("cuda", torch.cuda.current_device())
        options = dict(lr=config.learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=config.weight_decay)
        self.optimizers = OptimizersContainer.Config(
            param_groups=[ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=options)],
            implementation="foreach" if ON_CPU else "fused",
        ).build(model_parts=[self.model])
        self.schedule = LRSchedulersContainer.Config(
            warmup_steps=min(config.warmup_iterations, schedule_steps), min_lr_factor=config.min_lr_factor
        ).build(optimizers=self.optimizers, training_steps=schedule_steps)
        self.checkpoints = CheckpointManager.Config(
            enable=True, keep_latest_k=0, interval=1, initial_load_model_only=False
        ).build(
            dataloader=None,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedule,
            states={},
            sd_adapter=self.adapter,
            base_folder=str(policy),
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self.schedule.schedulers[0].get_last_lr()[0])

    @torch.no_grad()
    def score(self, data: FlatSamples) -> np.ndarray:
        """Log-probability of each sampled token under the present weights: float32 [N], 0 where the mask is false."""
        scores_N = torch.zeros(len(data.token_ids_N))
        for rows in self._microbatches(data, range(len(data)), self.config.score_rows):
            logprobs_K, _ = self._forward(rows)
            scores_N[rows.flat_index_K] = logprobs_K.cpu()
        if dist.get_world_size() > 1:
            scores_N *= dist.get_rank() % self.group_size == 0  # the ranks of a group have the same scores
            dist.all_reduce(scores_N)
        return scores_N.numpy()

    def step(self, data: FlatSamples, samples: Sequence[int], loss: Loss) -> dict[str, float]:
        """One optimizer step on these samples, which are all samples of some trajectories.

        `loss` is called once for each microbatch. Returns means over the sampled tokens of the whole step (maxima for
        keys that end in `_max`), the loss, and the gradient norm before clipping.

        Raises FloatingPointError when loss or gradient is not finite; weights and optimizer are then unchanged.
        """
        sampled = data.sampled_R[list(samples)]
        trajectories = np.unique(data.trajectory_R[list(samples)][sampled > 0])
        totals = StepTotals(tokens=float(sampled.sum()), trajectories=float(len(trajectories)))
        measured: dict[str, float] = {"loss": 0.0}
        for rows in self._microbatches(data, samples, self.config.rows):
            logprobs_K, entropy_K = self._forward(rows)
            value, metrics = loss(logprobs_K, entropy_K, rows, totals)
            value.backward()
            measured["loss"] += float(value.detach())
            for name, amount in metrics.items():
                if name.endswith("_max"):
                    measured[name] = max(measured.get(name, -math.inf), float(amount))
                else:
                    measured[name] = measured.get(name, 0.0) + float(amount) / totals.tokens
        if dist.get_world_size() > 1:
            parts: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, measured)
            parts = parts[:: self.group_size]
            measured = {name: (max if name.endswith("_max") else sum)(p[name] for p in parts) for name in measured}
        norm = float(dist_utils.clip_grad_norm_(self.trained, self.config.max_norm, foreach=True))
        if not (math.isfinite(measured["loss"]) and math.isfinite(norm)):
            self.optimizers.zero_grad()
            raise FloatingPointError(
                f"loss is {measured['loss']} and the gradient norm {norm}; allowed: finite numbers."
            )
        self.optimizers.step()
        self.optimizers.zero_grad()
        return {**measured, "grad_norm": norm}

    def plan(self, data: FlatSamples, samples: Sequence[int]) -> list[list[int]]:
        """Which samples share a row."""
        return plan_rows(data, samples, self.config.seq_len)

    def _microbatches(self, data: FlatSamples, samples: Sequence[int], size: int) -> list[Rows]:
        """This rank's share of the rows, `size` of them for each forward pass; as many passes on every rank. Ranks that
        share layers or rows have consecutive numbers and get the same rows."""
        plan = self.plan(data, samples)
        groups, group = dist.get_world_size() // self.group_size, dist.get_rank() // self.group_size
        own = (plan + [[]] * (-len(plan) % groups))[group::groups]
        parts = [own[i : i + size] for i in range(0, len(own), size)]
        return [build_rows(data, part, multiple_of=row_multiple(self.config)) for part in parts]

    def _forward(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability at the sampling temperature, and entropy, of each sampled token: both [K].

        With context parallelism each rank has a contiguous part of the columns, applies the output head to its own
        sampled tokens, and gets the results of all by an all-reduce.
        """
        token_ids_BT, positions_BT = rows.token_ids_BT.to(self.device), rows.positions_BT.to(self.device)
        column_K, own_k = rows.column_K, torch.arange(len(rows.column_K))
        mesh = self.parallel_dims.get_optional_mesh("cp")
        if mesh is not None:
            rank, width = mesh.get_local_rank(), token_ids_BT.shape[1] // mesh.size()
            token_ids_BT, positions_BT = (x.split(width, dim=1)[rank] for x in (token_ids_BT, positions_BT))
            own_k = torch.nonzero(column_K // width == rank)[:, 0]
            column_K = column_K - rank * width
        masks = attention_masks(rows.subtree_end_BT.to(self.device), mesh)
        hidden_BTD = full_tensor(self.model(token_ids_BT, positions=positions_BT, attention_masks=masks))
        # The output head only where the policy sampled: logits of a large vocabulary for all tokens would not fit.
        # A place that samples share is taken several times: `index_select` sums their gradients in a fixed order, plain
        # indexing in the order in which threads come.
        flat_k = rows.row_K[own_k] * hidden_BTD.shape[1] + column_K[own_k]
        hidden_kD = hidden_BTD.flatten(0, 1).index_select(0, flat_k.to(hidden_BTD.device))
        logits_kV = full_tensor(self.model.get_submodule("lm_head")(hidden_kD[None]))[0]
        own = token_logprobs(logits_kV, rows.target_K[own_k].to(self.device), self.temperature)
        if mesh is None:
            return own
        own_K2 = torch.zeros(len(column_K), 2, device=self.device)
        own_K2 = own_K2.index_copy(0, own_k.to(self.device), torch.stack(own, dim=-1))
        all_K2 = own_K2.detach().clone()
        dist.all_reduce(all_K2, group=mesh.get_group())
        logprobs_K, entropy_K = (own_K2 + (all_K2 - own_K2.detach())).unbind(-1)  # gradients only of its own
        return logprobs_K, entropy_K

    def export(self, template: Path, folder: Path) -> None:
        """Write the weights into `folder` as a Hugging Face checkpoint like `template`."""
        export_weights(self.model, self.adapter, template, folder, lora=self.config.lora)

    def save_state(self, folder: Path) -> None:
        """Write weights, optimizer and schedule under `folder` with TorchTitan's checkpoint manager."""
        self.checkpoints.folder = str(folder)
        self.checkpoints.save(1)  # the run's folders have the policy versions; a folder holds a single step

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        self.checkpoints.folder = str(folder)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the schedule's, about its own loading
            self.checkpoints.load(1)
