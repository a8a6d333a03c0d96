"""Plays many games with one policy: all open games advance together, a turn at a time.

A game's tokens are those that the policy saw and sampled, in that order; nothing is tokenised twice.

    opening ──► [reply ──► action ──► follow-up]* ──► reply ──► end
    mask 0      mask 1               mask 0          mask 1
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.environments.catalog import Agent, Games
from tasks.policy.chat import Chat, Message
from tasks.rollout.engine import Completion, Engine


@dataclass
class Episode:
    """One game: its environment seed, the conversation so far, and how it ended."""

    seed: int
    token_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    reward: float | None = None  # the environment's own; None where the policy's replies ended the game
    finish_reason: str = ""  # "finished", "invalid", "length" or "max_turns"
    decisions: list[tuple[Any, Any]] = field(default_factory=list)  # (observation, action), for the evaluation

    def append(self, token_ids: Sequence[int], sampled: bool, logprobs: Sequence[float] | None = None) -> None:
        """Put tokens behind the conversation."""
        self.token_ids.extend(token_ids)
        self.action_mask.extend([sampled] * len(token_ids))
        self.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(token_ids))


def play(
    engine: Engine,
    chat: Chat,
    agent: Agent,
    games: Games,
    seeds: Sequence[int],
    *,
    temperature: float,
    max_tokens: int,
    max_turns: int,
    sampling_seed: Callable[[int, int], int],
) -> list[Episode]:
    """Play one game for each environment seed, to its end.

    `sampling_seed(game, turn)` gives the seed with which a reply is sampled. An unreadable reply ends its game as
    "invalid", one that `max_tokens` cut as "length", and a game that is not over after `max_turns` replies ends as
    "max_turns". Raises ValueError when the environment ends a game without a finite reward.
    """
    episodes = [Episode(seed) for seed in seeds]
    observations = dict(enumerate(games.reset(seeds)))
    for game, observation in observations.items():
        episode = episodes[game]
        episode.messages = list(agent.opening(observation))
        episode.append(chat.opening(episode.messages), sampled=False)
    open_games = list(observations)
    while open_games:
        completions = _replies(
            engine,
            [episodes[game].token_ids for game in open_games],
            [sampling_seed(game, episodes[game].turns) for game in open_games],
            temperature=temperature,
            max_tokens=max_tokens,
            end_id=chat.end_id,
        )
        actions = {}
        for game, completion in zip(open_games, completions, strict=True):
            episode = episodes[game]
            reply = chat.reply(completion.token_ids)
            episode.append(completion.token_ids, sampled=True, logprobs=completion.logprobs)
            episode.messages.append({"role": "assistant", "content": reply})
            episode.turns += 1
            action = None if completion.cut else agent.read(reply, observations[game])
            episode.decisions.append((observations[game], action))
            if action is None:
                episode.finish_reason = "length" if completion.cut else "invalid"
            else:
                actions[game] = action
        observations = games.step(actions)
        open_games = []
        for game, observation in observations.items():
            episode = episodes[game]
            if observation.done:
                reward = math.nan if observation.reward is None else float(observation.reward)
                if not math.isfinite(reward):
                    raise ValueError(
                        f"environment gave the reward {reward} for the game of seed {episode.seed}; allowed: a finite "
                        f"number for each game that is done."
                    )
                episode.reward, episode.finish_reason = reward, "finished"
            elif episode.turns >= max_turns:
                episode.finish_reason = "max_turns"
            else:
                messages = agent.follow_up(observation)
                history, reply = episode.messages[:-1], episode.messages[-1]["content"]
                episode.append(chat.follow_up(history, reply, messages), sampled=False)
                episode.messages.extend(messages)
                open_games.append(game)
    return episodes


def _replies(
    engine: Engine, prompts: Sequence[list[int]], seeds: Sequence[int], *, temperature: float, **settings: int
) -> list[Completion]:
    """A reply to each prompt. Greedy ones are equal for equal prompts, and games repeat: each is asked once."""
    if temperature > 0:
        return engine.sample(prompts, seeds=seeds, temperature=temperature, **settings)
    unique = list(dict.fromkeys(map(tuple, prompts)))
    replies = engine.sample(unique, seeds=[0] * len(unique), temperature=temperature, **settings)
    reply_to = dict(zip(unique, replies, strict=True))
    return [reply_to[tuple(prompt)] for prompt in prompts]
