"""A TorchTitan model with its optimizer and schedule: scores tokens, takes optimizer steps, exports policies.

Composed from TorchTitan's components, for its Trainer class wants an accelerator. Axes: B rows, T tokens, V
vocabulary, K sampled tokens (see `rows.py`), k those of them that are this rank's, where ranks share rows.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tasks.config import LoraConfig, TrainingConfig
from tasks.policy import machine
from tasks.policy.checkpoint import read_manifest
from tasks.training.losses.tokens import Totals
from tasks.training.model import build_model
from tasks.training.packing import FlatSamples, plan_rows
from tasks.training.rows import Rows, build_rows
from tasks.training.titan import ON_CPU, attention_masks, dist_utils, row_multiple
from tasks.training.weights import export_weights

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

# From log-probabilities and entropies [K] of some rows, with the size of the whole step, to a loss and sums over K.
Loss = Callable[[torch.Tensor, torch.Tensor, Rows, Totals], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def token_logprobs(
    logits_KV: torch.Tensor, target_K: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy in nats, both [K] and at the sampling temperature."""
    all_logprobs_KV = torch.log_softmax(logits_KV.float() / temperature, dim=-1)
    entropy_K = -(all_logprobs_KV.exp() * all_logprobs_KV).sum(-1)
    return all_logprobs_KV.gather(-1, target_K[:, None])[:, 0], entropy_K


def whole(values: torch.Tensor) -> torch.Tensor:
    """The tensor itself, where ranks of a tensor group have parts of it: all of it on each of them."""
    return values.full_tensor() if isinstance(values, DTensor) else values


class Trainer:
    """One model on all ranks of the process group.

    The learning rate follows TorchTitan's schedule, one step a `schedule_steps`-th of the run, not one an optimizer
    step: how many of those a window gives depends on how many groups carry a gradient.
    """

    def __init__(self, policy: Path, config: TrainingConfig, *, temperature: float, schedule_steps: int, seed: int = 0):
        self.config = config
        self.temperature = temperature
        self.steps = 0  # optimizer steps so far
        self.group_size = config.tensor_parallel * config.context_parallel  # ranks that work on the same rows
        self.model, self.adapter, self.parallel_dims = build_model(policy, config, seed=seed)
        self.trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.model._skip_lm_head = True  # pyright: ignore[reportArgumentType]  # see _forward
        self.device = torch.device("cpu") if ON_CPU else torch.device("cuda", torch.cuda.current_device())
        self.optimizers = OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(
                    pattern=".*",
                    optimizer_name="AdamW",
                    optimizer_kwargs={
                        "lr": config.learning_rate,
                        "betas": (0.9, 0.95),
                        "eps": 1e-8,
                        "weight_decay": config.weight_decay,
                    },
                )
            ],
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
            states={"train_state": self},
            sd_adapter=self.adapter,
            base_folder=str(policy),
        )

    def state_dict(self) -> dict[str, Any]:
        """What TorchTitan's checkpoint holds beside weights, optimizer and schedule."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.steps = state["steps"]

    def _forward(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability at the sampling temperature, and entropy, of each sampled token: both [K].

        Ranks that share rows have a stretch of places each, in order. Each passes its own tokens through the output
        head, and all of them get what the others found.
        """
        token_ids_BT, positions_BT = rows.token_ids_BT.to(self.device), rows.positions_BT.to(self.device)
        place_K, mine_k = rows.place_K, torch.arange(len(rows.place_K))
        mesh = self.parallel_dims.get_optional_mesh("cp")
        if mesh is not None:
            share, stretch = mesh.get_local_rank(), token_ids_BT.shape[1] // mesh.size()
            token_ids_BT, positions_BT = (x.split(stretch, dim=1)[share] for x in (token_ids_BT, positions_BT))
            mine_k = torch.nonzero(place_K // stretch == share)[:, 0]
            place_K = place_K - share * stretch
        hidden_BTD = whole(
            self.model(
                token_ids_BT,
                positions=positions_BT,
                attention_masks=attention_masks(rows.ends_BT.to(self.device), mesh),
            )
        )
        # The output head only where the policy sampled: a large vocabulary at every place would not fit in memory.
        logits_kV = whole(self.model.get_submodule("lm_head")(hidden_BTD[rows.row_K[mine_k], place_K[mine_k]][None]))[0]
        found = token_logprobs(logits_kV, rows.target_K[mine_k].to(self.device), self.temperature)
        if mesh is None:
            return found
        own_K2 = torch.zeros(len(place_K), 2, device=self.device)
        own_K2 = own_K2.index_copy(0, mine_k.to(self.device), torch.stack(found, dim=-1))
        all_K2 = own_K2.detach().clone()
        dist.all_reduce(all_K2, group=mesh.get_group())
        logprobs_K, entropy_K = (own_K2 + (all_K2 - own_K2.detach())).unbind(-1)  # a gradient only for its own
        return logprobs_K, entropy_K

    def plan(self, data: FlatSamples, members: Sequence[int]) -> list[list[int]]:
        """Which samples share a row."""
        return plan_rows(data, members, self.config.seq_len, share_prefixes=self.config.share_prefixes)

    def _parts(self, data: FlatSamples, members: Sequence[int], rows_a_part: int) -> list[Rows]:
        """This rank's share of the rows of `members`, a forward pass at a time; the same number on every rank.

        The ranks of one group, those that share layers or rows, follow each other, and get the same.
        """
        plan = self.plan(data, members)
        groups, group = dist.get_world_size() // self.group_size, dist.get_rank() // self.group_size
        plan += [[]] * (-len(plan) % groups)
        mine = plan[group::groups]
        parts = [mine[i : i + rows_a_part] for i in range(0, len(mine), rows_a_part)]
        shared, multiple = self.config.share_prefixes, row_multiple(self.config)
        return [build_rows(data, part, share_prefixes=shared, multiple=multiple) for part in parts]

    @torch.no_grad()
    def score(self, data: FlatSamples) -> np.ndarray:
        """Log-probability of each sampled token under the present weights: float32 [N], 0 where the mask is false."""
        scores_N = torch.zeros(len(data.token_ids_N))
        for rows in self._parts(data, range(len(data)), self.config.score_rows):
            logprobs_K, _ = self._forward(rows)
            scores_N[rows.source_K] = logprobs_K.cpu()
        if dist.get_world_size() > 1:
            scores_N *= dist.get_rank() % self.group_size == 0  # one of each group speaks for all of it
            dist.all_reduce(scores_N)
        return scores_N.numpy()

    def step(self, data: FlatSamples, members: Sequence[int], loss: Loss) -> dict[str, float]:
        """One optimizer step on the samples `members`, all those of some trajectories.

        `loss` is asked once a forward pass. Returns means over the sampled tokens of the whole step (maxima for keys
        that end in `_max`), the loss and the gradient norm before clipping.

        Raises FloatingPointError when loss or gradient is not finite; weights and optimizer are as before.
        """
        sampled = data.sampled_R[list(members)]
        trajectories = np.unique(data.trajectory_R[list(members)][sampled > 0])
        size = Totals(tokens=float(sampled.sum()), trajectories=float(len(trajectories)))
        totals: dict[str, float] = {"loss": 0.0}
        for rows in self._parts(data, members, self.config.rows):
            logprobs_K, entropy_K = self._forward(rows)
            value, metrics = loss(logprobs_K, entropy_K, rows, size)
            value.backward()
            totals["loss"] += float(value.detach())
            for name, amount in metrics.items():
                if name.endswith("_max"):
                    totals[name] = max(totals.get(name, -math.inf), float(amount))
                else:
                    totals[name] = totals.get(name, 0.0) + float(amount) / size.tokens
        totals = self._over_ranks(totals)
        norm = float(dist_utils.clip_grad_norm_(self.trained, self.config.max_norm, foreach=True))
        if not (math.isfinite(totals["loss"]) and math.isfinite(norm)):
            self.optimizers.zero_grad()
            raise FloatingPointError(f"loss is {totals['loss']} and the gradient norm {norm}; allowed: finite numbers.")
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.steps += 1
        return {**totals, "grad_norm": norm}

    def _over_ranks(self, totals: dict[str, float]) -> dict[str, float]:
        if dist.get_world_size() == 1:
            return totals
        parts: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, totals)
        parts = parts[:: self.group_size]
        return {name: (max if name.endswith("_max") else sum)(p[name] for p in parts) for name in totals}

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self.schedule.schedulers[0].get_last_lr()[0])

    def export(self, template: Path, folder: Path) -> None:
        """Write the weights into `folder` as a Hugging Face checkpoint like `template`."""
        export_weights(self.model, self.adapter, template, folder, lora=self.config.lora)

    def save_state(self, folder: Path) -> None:
        """Write weights, optimizer and schedule under `folder` by TorchTitan's checkpoint manager."""
        self.checkpoints.folder = str(folder)
        self.checkpoints.save(1)  # the run's own versions number the folders; within one there is a single step

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote."""
        self.checkpoints.folder = str(folder)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of the schedule, about its own way
            self.checkpoints.load(1)


def for_scoring(config: TrainingConfig) -> TrainingConfig:
    """The settings of a model that only scores: a policy holds its adapters already."""
    return replace(config, lora=LoraConfig())


_scorers: dict[str, Trainer] = {}


def open_scorer(policy: Path, config: TrainingConfig, *, temperature: float) -> Trainer:
    """A model that only scores, kept warm: the frozen reference is the same for all of a run."""
    config = for_scoring(config.on_one_rank())
    key = f"{read_manifest(policy).digest} {temperature} {config.to_json()}"
    if key not in _scorers:
        _scorers.clear()
        machine.check_trainer(policy, config, scores_only=True)
        _scorers[key] = Trainer(policy, config, temperature=temperature, schedule_steps=1)
    return _scorers[key]


_resting: dict[str, Trainer] = {}


def resume(
    policy: Path,
    state: Path | None,
    config: TrainingConfig,
    *,
    run_token: str,
    seed: int,
    temperature: float,
    iterations: int,
) -> Trainer:
    """The trainer that made `policy`, if it rests in this process; else a new one, with `state` when there is one.

    All weights then come from the state: it holds them in float32 and with LoRA apart from their adapters, `policy` in
    its own precision and merged. The trainer leaves the shelf: one whose stage fails half-way is never used again.
    """
    key = f"{run_token} {read_manifest(policy).digest}"
    warm = _resting.pop(key, None)
    _resting.clear()
    if warm is not None and state is not None:
        return warm
    machine.check_trainer(policy, config)
    trainer = Trainer(policy, config, temperature=temperature, schedule_steps=iterations, seed=seed)
    if state is not None:
        trainer.load_state(state)
    return trainer


def retire(trainer: Trainer, run_token: str, digest: str) -> None:
    """Keep `trainer` warm for the stage that goes on from the policy it just wrote."""
    _resting[f"{run_token} {digest}"] = trainer
