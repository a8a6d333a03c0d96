"""Trainers kept warm in this process, so that a stage need not load again what the stage before had in memory."""

from pathlib import Path

from tasks.config import GrpoConfig, LoraConfig, Run, TrainingConfig
from tasks.policy import machine
from tasks.policy.checkpoint import read_manifest
from tasks.training.trainer import Trainer

_scorers: dict[str, Trainer] = {}
_warm: dict[str, Trainer] = {}  # at most one, by the run and the digest of the policy that it made


def for_scoring(config: TrainingConfig) -> TrainingConfig:
    """The settings of a model that only scores: without LoRA, as adapters are merged into a policy's weights."""
    return config.replace(lora=LoraConfig())


def open_scorer(policy: Path, config: TrainingConfig, *, temperature: float) -> Trainer:
    """A model that only scores, kept warm: all stages of a run have the same frozen reference."""
    config = for_scoring(config.on_one_rank())
    key = f"{read_manifest(policy).digest} {temperature} {config.to_json()}"
    if key not in _scorers:
        _scorers.clear()
        machine.check_trainer(policy, config, scores_only=True)
        _scorers[key] = Trainer(policy, config, temperature=temperature, schedule_steps=1)
    return _scorers[key]


def resume(policy: Path, state: Path | None, config: GrpoConfig, run: Run) -> Trainer:
    """The trainer that made `policy`, if this process keeps it warm; else a new one, with `state` if there is one.

    The state has the weights in float32 and separate from their adapters; the policy has them rounded and merged. The
    warm trainer is removed from the cache, so that it is not used again when its stage fails.
    """
    trainer = _warm.pop(f"{run.token} {read_manifest(policy).digest}", None)
    _warm.clear()
    if trainer is not None and state is not None:
        return trainer
    machine.check_trainer(policy, config.training)
    temperature = config.rollout.temperature
    trainer = Trainer(policy, config.training, temperature=temperature, schedule_steps=run.iterations, seed=run.seed)
    if state is not None:
        trainer.load_state(state)
    return trainer


def keep_warm(trainer: Trainer, run: Run, digest: str) -> None:
    """Keep `trainer` for the stage that trains the policy with this digest, which `trainer` just wrote."""
    _warm[f"{run.token} {digest}"] = trainer
