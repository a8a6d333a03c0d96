"""The policy `tiny`, from nothing to a policy that answers: random weights, then imitation of random play.

It learns which replies there are, not which are good: each legal move is as likely as any other in what it imitates.
All that is good about its play later comes from the reward.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tasks.config import LoraConfig, TinyPolicyConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Message
from tasks.folders import RUNS, atomic_directory
from tasks.policy.chat import Chat
from tasks.policy.checkpoint import Manifest, read_manifest, write_manifest
from tasks.policy.tiny import make_tokenizer, make_weights
from tasks.seeds import derived_seed
from tasks.stages import CACHE_VERSION
from tasks.training.losses.supervised import supervised_loss
from tasks.training.losses.tokens import Totals
from tasks.training.packing import FlatSamples
from tasks.training.rows import Rows
from tasks.training.trainer import Trainer


def tokenised(chat: Chat, conversations: Sequence[Sequence[Message]]) -> FlatSamples:
    """Conversations as a rollout would have recorded them; the mask takes in all tokens but the first.

    Imitating the whole of a conversation, not only its replies, teaches a newborn policy to tell cards, totals and
    the dealer's card apart, which rewards alone teach it slowly.
    """
    token_ids: list[int] = []
    mask: list[bool] = []
    offsets = [0]
    for messages in conversations:
        start = 0
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = messages[start:i]
            if start:
                piece = chat.next_ids(messages[: start - 1], messages[start - 1]["content"], before)
            else:
                piece = chat.initial_ids(before)
            assert piece is not None, "the policy's own template only appends"
            reply = [*chat.tokenizer.encode(message["content"], add_special_tokens=False), chat.end_id]
            token_ids += [*piece, *reply]
            mask += [start > 0 or place > 0 for place in range(len(piece))] + [True] * len(reply)
            start = i + 1
        offsets.append(len(token_ids))
    return FlatSamples(np.array(offsets), np.array(token_ids), np.array(mask, dtype=bool))


def imitation(
    logprobs_K: torch.Tensor, entropy_K: torch.Tensor, _: Rows, size: Totals
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The supervised loss as a trainer asks for it."""
    return supervised_loss(logprobs_K, entropy_K, size.tokens)


def make_tiny(
    target: Path,
    config: TinyPolicyConfig,
    training: TrainingConfig,
    environment: str,
    seed: int,
    *,
    thinking: bool = False,
) -> Manifest:
    """Write the policy `tiny` for `environment` to `target`: tokenizer, weights, cold start. The seed fixes it all.

    With `thinking` it learns the prompts that ask for a thought. It answers them without one.
    """
    spec = get_environment(environment, thinking=thinking)
    conversations = [d.messages for d in spec.demonstrations(seed, config.cold_start_demonstrations)]
    with atomic_directory(target) as folder:
        words = (m["content"] for conversation in conversations for m in conversation)
        vocabulary = make_tokenizer([*words, "system\n", "user\n", "assistant\n"], folder)
        chat = Chat(folder)
        make_weights(config, vocabulary, chat.end_id, chat.tokenizer.pad_token_id, seed, folder)
        trainer = Trainer(
            folder,
            replace(
                training,
                learning_rate=config.cold_start_learning_rate,
                warmup_iterations=0,
                min_lr_factor=0.1,
                lora=LoraConfig(),  # random weights are no base for adapters
            ),
            temperature=1.0,
            schedule_steps=config.cold_start_steps,
        )
        data = tokenised(chat, conversations)
        order = np.random.default_rng(seed)
        for _ in range(config.cold_start_steps):
            members = order.choice(len(data), size=min(config.cold_start_batch, len(data)), replace=False)
            trainer.step(data, members.tolist(), imitation)
            trainer.schedule.step()
        trainer.export(folder, folder)
        return write_manifest(folder, version=0, parent="")


def tiny_policy(
    config: TinyPolicyConfig, training: TrainingConfig, environment: str, seed: int, *, thinking: bool = False
) -> Path:
    """The folder of the policy `tiny` for these settings, made once and then found again under `runs/.tiny/`."""
    training = training.on_one_rank()
    key = derived_seed("tiny", config.to_json(), training.to_json(), environment, seed, thinking, CACHE_VERSION)
    folder = (RUNS / ".tiny" / f"{key:016x}").absolute()
    try:
        read_manifest(folder)  # also refuses weights that are not those written
    except ValueError:
        make_tiny(folder, config, training, environment, seed, thinking=thinking)
    return folder
