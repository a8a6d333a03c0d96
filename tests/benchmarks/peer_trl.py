"""One training of BlackJack by TRL's GRPOTrainer, in TRL's own environment (`make bench-peers` builds it).

    python tests/benchmarks/peer_trl.py POLICY FOLDER '{"seconds": 120, "learning_rate": 0.0005, …}'

It starts from the policy in POLICY and plays our BlackJack with our chat template, so that only the trainer differs.
Episodes have several turns: a `rollout_func` samples one reply of all open episodes at a time with `generate`, which is
what TRL's documentation shows for environments, and marks what the environment said in `env_mask`. FOLDER gets a
checkpoint every `snapshot_s` seconds of training, and `snapshots.json` with the time, episodes and replies of each.
Writing them is not counted as training.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tasks.environments.blackjack.environment import BlackJack
from tasks.environments.blackjack.spec import task
from tasks.policy.chat import open_chat
from tasks.seeds import training_index

MAX_TOKENS, MAX_TURNS, LOST = 4, 16, -1.0  # as in BlackJack's default settings


class Rollout:
    """Plays the episodes of a generation batch; counts them and their replies."""

    def __init__(self, policy: Path):
        self.chat = open_chat(policy, thinking=False)
        self.episodes = self.replies = 0

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        return asyncio.run(self.play(prompts, trainer))

    async def play(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """`prompts` are the seeds of decks, each as often as a group has members."""
        games = [BlackJack() for _ in prompts]
        messages = [
            list((await game.reset(task("train", int(seed)))).messages)
            for game, seed in zip(games, prompts, strict=True)
        ]
        first = [self.chat.initial_ids(said) for said in messages]
        completions: list[list[int]] = [[] for _ in games]
        masks: list[list[int]] = [[] for _ in games]
        rewards, open_games = [LOST] * len(games), list(range(len(games)))
        for _ in range(MAX_TURNS):
            if not open_games:
                break
            sampled = self.sample([first[i] + completions[i] for i in open_games], trainer)
            self.replies += len(open_games)
            still_open = []
            for i, reply in zip(open_games, sampled, strict=True):
                completions[i] += reply
                masks[i] += [1] * len(reply)
                if reply[-1] != self.chat.end_id:
                    continue  # cut short: lost
                said = {"role": "assistant", "content": self.chat.reply_text(reply)}
                step = await games[i].step(said)
                rewards[i] = step.reward
                if step.done:
                    continue
                piece = self.chat.next_ids(messages[i], said["content"], step.messages)
                assert piece is not None, "the template of `tiny` only appends"
                messages[i] += [said, *step.messages]
                completions[i] += piece
                masks[i] += [0] * len(piece)
                still_open.append(i)
            open_games = still_open
        self.episodes += len(games)
        return {
            "prompt_ids": first,
            "completion_ids": completions,
            "logprobs": None,  # type: ignore[dict-item]  # of the generator: it is the trainer's own model
            "env_mask": masks,
            "episode_reward": rewards,
        }

    def sample(self, prompts: list[list[int]], trainer: GRPOTrainer) -> list[list[int]]:
        """A reply for each prompt, with its end token if it came within MAX_TOKENS."""
        pad, width = self.chat.tokenizer.pad_token_id, max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        model = trainer.model
        model.eval()
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=seen, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=MAX_TOKENS, eos_token_id=self.chat.end_id, pad_token_id=pad,
            )  # fmt: skip
        model.train()
        replies = []
        for row in out[:, width:].tolist():
            end = row.index(self.chat.end_id) + 1 if self.chat.end_id in row else len(row)
            replies.append(row[:end])
        return replies


class Snapshots(TrainerCallback):
    """Writes checkpoints as time goes on, and ends the training."""

    def __init__(self, folder: Path, seconds: float, every: float, rollout: Rollout, chat: Any):
        self.folder, self.seconds, self.every, self.rollout, self.chat = folder, seconds, every, rollout, chat
        self.began: float | None = None
        self.found: list[dict[str, Any]] = []

    def elapsed(self) -> float:
        """Seconds of training."""
        return 0.0 if self.began is None else time.perf_counter() - self.began

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.began is None:
            self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        assert self.began is not None
        at = self.elapsed()
        if at >= self.every * (len(self.found) + 1) or at >= self.seconds:
            stopped = time.perf_counter()
            name = f"{len(self.found):03d}"
            model.save_pretrained(self.folder / name)
            self.chat.tokenizer.save_pretrained(self.folder / name)
            told = {"name": name, "seconds": at, "steps": state.global_step}
            self.found.append(told | {"episodes": self.rollout.episodes, "replies": self.rollout.replies})
            (self.folder / "snapshots.json").write_text(json.dumps(self.found))
            self.began += time.perf_counter() - stopped
        control.should_training_stop = at >= self.seconds


def reward(prompts: Any, completions: Any, episode_reward: list[float], **_: Any) -> list[float]:
    """What the environment paid."""
    return episode_reward


def main(policy: Path, folder: Path, given: dict[str, Any]) -> None:
    """Train for `given["seconds"]`."""
    seconds, seed = given.pop("seconds"), given.pop("seed")
    folder.mkdir(parents=True)
    rollout = Rollout(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    snapshots = Snapshots(folder, seconds, given.pop("snapshot_s"), rollout, rollout.chat)

    def decks() -> Iterator[dict[str, str]]:
        for number in range(10**9):
            yield {"prompt": str(training_index(seed, 0, number))}

    learning_rate = given.pop("learning_rate")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, foreach=True
    )

    def factor(_: int) -> float:
        """A tenth of the time to warm up, then linearly to a tenth of the rate, as our own runs do."""
        share = snapshots.elapsed() / seconds
        return max(0.1, min(1.0, (share + 0.01) / 0.1, 1 - 0.9 * share))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    config = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=10**6, seed=seed, use_cpu=True, bf16=False, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, max_grad_norm=1.0, temperature=1.0,
        max_completion_length=256, gradient_checkpointing=False, **given,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=IterableDataset.from_generator(decks),
        processing_class=rollout.chat.tokenizer,
        callbacks=[snapshots],
        optimizers=(optimizer, schedule),
        rollout_func=rollout,
    )
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
