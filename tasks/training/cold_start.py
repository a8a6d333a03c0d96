"""The policy `tiny`: random weights, then imitation of the environment's demonstrations.

From demonstrations of random play it learns the format of replies, not good ones; what is good, rewards then teach.
Where an environment has drills, such as copying a number, they come first, until they are mastered.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config import LoraConfig, TinyPolicyConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Demonstration
from tasks.folders import RUNS, atomic_directory
from tasks.policy import refuse
from tasks.policy.chat import Chat
from tasks.policy.checkpoint import Manifest, read_manifest, write_manifest
from tasks.policy.tiny import make_tokenizer, make_weights
from tasks.seeds import derived_seed
from tasks.stages import CACHE_VERSION
from tasks.training.losses import supervised_loss
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

FRESH = 128  # drills by which it is decided whether they are mastered
CHECK_STEPS, PATIENCE = 40, 3  # further steps between two such looks, and how many times `drill_steps` at most


def tokenised(chat: Chat, demonstrations: Sequence[Demonstration]) -> FlatSamples:
    """Demonstrations as a rollout would record them; the mask has the replies with their ends, or all tokens but the
    first where a demonstration is not `replies_only`."""
    tokens: list[int] = []
    mask: list[bool] = []
    offsets = [0]
    for demonstration in demonstrations:
        messages, end = demonstration.messages, 0  # of the last reply
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if end:
                prompt = chat.next_ids(messages[: end - 1], messages[end - 1]["content"], messages[end:i])
            else:
                prompt = chat.initial_ids(messages[:i])
            assert prompt is not None, "the template of `tiny` only appends"
            reply = [*chat.tokenizer.encode(message["content"], add_special_tokens=False), chat.end_id]
            tokens += [*prompt, *reply]
            mask += [not demonstration.replies_only] * len(prompt) + [True] * len(reply)
            end = i + 1
        if end:
            mask[offsets[-1]] = False  # nothing predicts the first token
        offsets.append(len(tokens))
    return FlatSamples(np.array(offsets), np.array(tokens), np.array(mask, dtype=bool))


def make_tiny(
    target: Path,
    config: TinyPolicyConfig,
    training: TrainingConfig,
    environment: str,
    seed: int,
    *,
    thinking: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write the policy `tiny` for `environment` to `target`: tokenizer, weights, cold start.

    With `thinking` it learns to answer the prompts that ask for a thought, without one. Raises ValueError for an
    environment without demonstrations.
    """
    spec = get_environment(environment, options, thinking=thinking)
    if spec.demonstrations is None:
        refuse("tiny", f", which needs an environment with demonstrations, and {environment} has none", "a checkpoint")
    demonstrations = spec.demonstrations(seed, config.cold_start_demonstrations)
    drills = spec.drills(seed, config.cold_start_demonstrations) if spec.drills and config.drill_steps else []
    with atomic_directory(target) as folder:
        texts = [message["content"] for shown in (*demonstrations, *drills) for message in shown.messages]
        texts += ["system\n", "user\n", "assistant\n"]
        vocabulary = make_tokenizer(texts, folder, single_digits=spec.single_digits)
        chat = Chat(folder)
        make_weights(config, vocabulary, chat.end_id, chat.tokenizer.pad_token_id, seed, folder)
        training = training.replace(
            learning_rate=config.cold_start_learning_rate,
            warmup_iterations=0,
            min_lr_factor=0.1,
            lora=LoraConfig(),  # random weights are no base for adapters
        )
        steps = config.cold_start_steps + (config.drill_steps if drills else 0)
        trainer = Trainer(folder, training, temperature=1.0, schedule_steps=steps)
        random = np.random.default_rng(seed)
        if drills:
            fresh = tokenised(chat, spec.drills(derived_seed("fresh", seed), FRESH))  # type: ignore[misc]
            _master(trainer, config, tokenised(chat, drills), fresh, random)
        kept = drills[: len(demonstrations) // 3]  # else what was mastered is soon forgotten
        data = tokenised(chat, [*demonstrations, *kept])
        for _ in range(config.cold_start_steps):
            _imitate(trainer, config, data, random)
            trainer.schedule.step()
        trainer.export(folder, folder)
        return write_manifest(folder, version=0, parent="")


def _imitate(trainer: Trainer, config: TinyPolicyConfig, data: FlatSamples, random: np.random.Generator) -> None:
    samples = random.choice(len(data), size=min(config.cold_start_batch, len(data)), replace=False)
    trainer.step(data, samples.tolist(), supervised_loss)


def _master(
    trainer: Trainer, config: TinyPolicyConfig, drills: FlatSamples, fresh: FlatSamples, random: np.random.Generator
) -> None:
    """Learn the drills, for longer where the loss on fresh ones is still too high: up to PATIENCE times as long, at the
    learning rate of the last step. Raises RuntimeError where that does not do.

    What emerges suddenly, such as copying, emerges later with some seeds, and no reward can make up for it.
    """
    loss, steps = np.inf, 0
    while steps < config.drill_steps or loss > config.max_drill_loss:
        if steps >= PATIENCE * config.drill_steps:
            raise RuntimeError(
                f"policy tiny did not master its drills: a loss of {loss:.2f} nats a token after {steps} steps; "
                f"allowed: tiny.max_drill_loss = {config.max_drill_loss}. More tiny.drill_steps may do, or a lower "
                f"tiny.cold_start_learning_rate."
            )
        _imitate(trainer, config, drills, random)
        steps += 1
        if steps < config.drill_steps:
            trainer.schedule.step()
        elif (steps - config.drill_steps) % CHECK_STEPS == 0:
            loss = -float(trainer.score(fresh).sum() / fresh.loss_mask_N.sum())
    trainer.schedule.step()


def tiny_policy(
    config: TinyPolicyConfig, training: TrainingConfig, environment: str, seed: int, **prompts: Any
) -> Path:
    """The folder of what `make_tiny` makes of these arguments, made once and kept under `runs/.tiny/`."""
    training = training.on_one_rank()
    settings = (config.to_json(), training.to_json(), environment, seed, sorted(prompts.items()))
    folder = (RUNS / ".tiny" / f"{derived_seed('tiny', *settings, CACHE_VERSION):016x}").absolute()
    try:
        read_manifest(folder)  # also refuses weights that were changed
    except ValueError:
        make_tiny(folder, config, training, environment, seed, **prompts)
    return folder
