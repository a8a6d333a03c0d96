"""Plays many games with one policy: all open games advance together, a turn at a time.

A game's tokens are those that the policy saw and sampled, in that order:

    opening ──► [reply ──► action ──► follow-up]* ──► reply ──► end
    mask 0      mask 1               mask 0          mask 1

They are one transcript, unless the chat template writes earlier turns anew: there a further one begins, with the
conversation so far as its opening.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.environments.catalog import Agent, Games
from tasks.policy.chat import Chat, Message
from tasks.rollout.engine import Completion, Engine

FORFEIT = -1.0  # what people are shown for a game that a reply ended: it counts as lost, whatever training makes of it


@dataclass
class Transcript:
    """A conversation as the policy saw and sampled it: one prompt, and all that was only ever put behind it."""

    messages: list[Message]
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, token_ids: Sequence[int], sampled: bool, logprobs: Sequence[float] | None = None) -> None:
        """Put tokens behind the conversation."""
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([sampled] * len(token_ids))
        self.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(token_ids))


@dataclass
class Episode:
    """One game: its environment seed, the conversation so far, and how it ended."""

    seed: int
    transcripts: list[Transcript] = field(default_factory=list)  # more than one where the template rewrites turns
    turns: int = 0
    reward: float | None = None  # the environment's own; None where the policy's replies ended the game
    finish_reason: str = ""  # "finished", "invalid", "length" or "max_turns"
    partial_format: bool = False  # whether the reply that ended it began as a readable one
    decisions: list[tuple[Any, Any]] = field(default_factory=list)  # (observation, action), for the evaluation

    @property
    def earned(self) -> float:
        """What people are shown: the environment's own reward, FORFEIT where a reply ended the game."""
        return FORFEIT if self.reward is None else self.reward

    @property
    def present(self) -> Transcript:
        """The transcript that the next reply belongs to; its messages are the whole conversation so far."""
        return self.transcripts[-1]

    def begin(self, messages: Sequence[Message], opening: Sequence[int]) -> None:
        """Begin a transcript with these messages, whose tokens are `opening`."""
        self.transcripts.append(Transcript(list(messages)))
        self.present.append(opening, sampled=False)


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
    ended: Callable[[Sequence[Episode]], None] = lambda episodes: None,
) -> list[Episode]:
    """Play one game for each environment seed, to its end.

    `sampling_seed(game, turn)` gives the seed with which a reply is sampled; `ended` is told of the games that each
    turn ended. An unreadable reply ends its game as
    "invalid", one that `max_tokens` cut as "length", and a game that is not over after `max_turns` replies ends as
    "max_turns". Raises ValueError when the environment ends a game without a finite reward.
    """
    episodes = [Episode(seed) for seed in seeds]
    observations = dict(enumerate(games.reset(seeds)))
    for game, observation in observations.items():
        messages = agent.opening(observation)
        episodes[game].begin(messages, chat.opening(messages))
    open_games = list(observations)
    while open_games:
        completions = _replies(
            engine,
            [episodes[game].present.token_ids for game in open_games],
            [sampling_seed(game, episodes[game].turns) for game in open_games],
            temperature=temperature,
            max_tokens=max_tokens,
            end_id=chat.end_id,
        )
        actions = {}
        for game, completion in zip(open_games, completions, strict=True):
            episode = episodes[game]
            reply = chat.reply(completion.token_ids)
            episode.present.append(completion.token_ids, sampled=True, logprobs=completion.logprobs)
            episode.present.messages.append({"role": "assistant", "content": reply})
            episode.turns += 1
            action = None if completion.cut else agent.read(reply, observations[game])
            episode.decisions.append((observations[game], action))
            if action is None:
                episode.finish_reason = "length" if completion.cut else "invalid"
                episode.partial_format = agent.nearly(reply, observations[game])
            else:
                actions[game] = action
        observations = games.step(actions)
        played, open_games = open_games, []
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
                _go_on(episode, chat, agent.follow_up(observation))
                open_games.append(game)
        ended([episodes[game] for game in played if episodes[game].finish_reason])
    return episodes


def _go_on(episode: Episode, chat: Chat, messages: Sequence[Message]) -> None:
    """Put `messages` behind the last reply; in a new transcript where the template writes earlier turns anew."""
    *history, reply = episode.present.messages
    piece = chat.follow_up(history, reply["content"], messages)
    if piece is None:
        conversation = [*history, reply, *messages]
        episode.begin(conversation, chat.opening(conversation))
    else:
        episode.present.append(piece, sampled=False)
        episode.present.messages.extend(messages)


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
