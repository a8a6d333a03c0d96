"""One episode: an environment and a policy talk in turn.

Its tokens are those that the policy saw and sampled, in that order:

    initial messages ──► [reply ──► step ──► next messages]* ──► reply ──► end
    loss mask 0          1                   0                   1

They are one segment, unless the chat template rewrites earlier turns: there a further one begins, with the conversation
so far as its prompt. A segment never has more tokens than `rollout.max_episode_tokens`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.config import RolloutConfig
from tasks.environments.interface import Environment, EnvironmentSpec, Episode, Message, Step, Task
from tasks.environments.scripted import add_step
from tasks.policy.chat import Chat
from tasks.policy.tool_formats import is_unicode
from tasks.rollout.engine import Completion

# (prompt, seed, max_tokens) to a reply.
Sample = Callable[[Sequence[int], int, int], Awaitable[Completion]]


@dataclass
class Segment:
    """A prompt, and all that was only ever put behind it, as the policy saw and sampled it."""

    messages: int  # of the episode's, up to the last reply in it
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Put tokens behind the segment: sampled ones have log-probabilities."""
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([logprobs is not None] * len(token_ids))
        self.logprobs.extend(logprobs if logprobs is not None else [0.0] * len(token_ids))


@dataclass
class SampledEpisode(Episode):
    """An episode with its tokens."""

    segments: list[Segment] = field(default_factory=list)  # more than one where the template rewrites turns
    server_lost: bool = False  # why it failed: nobody answered
    partial_format: bool = False  # whether the reply that ended it began as a readable one


class EnvironmentFailure(Exception):
    """A call of the environment raised, took too long, or answered something that is no step. One sentence."""


@dataclass(frozen=True)
class Player:
    """Plays episodes of one environment with one policy; many at once, in one event loop."""

    chat: Chat
    spec: EnvironmentSpec
    config: RolloutConfig
    sample: Sample
    calls: asyncio.Semaphore  # of the environment, that are awaited at once

    async def play(self, episode: SampledEpisode, environment: Environment, reply_seed: Callable[[int], int]) -> None:
        """Play `episode` from its reset to its end; `reply_seed(turn)` is the seed with which a reply is sampled.

        A reply that the environment cannot parse may end it as "invalid". What runs out of `max_tokens`, `max_turns` or
        `max_episode_tokens` ends as "truncated". Raises EnvironmentFailure; the episode then has what came before.
        """
        step = add_step(episode, await self._call(environment.reset, episode.task))
        prompt = self.chat.initial_ids(episode.messages)
        while not step.done:
            if not self._fits(episode, prompt):
                return self._truncate(episode)
            segment = episode.segments[-1]
            most = int(min(self.config.max_tokens, self._budget - len(segment.token_ids)))
            completion = await self.sample(segment.token_ids, reply_seed(episode.turns), most)
            reply = self._add_reply(episode, completion)
            if completion.truncated:
                return self._truncate(episode, reply)
            step = add_step(episode, await self._call(environment.step, reply))
            if not step.done:
                if episode.turns >= self.config.max_turns:
                    return self._truncate(episode)
                prompt = self._next_prompt(episode, reply, step)
        episode.finish_reason = "finished" if step.valid else "invalid"
        if not step.valid:
            episode.partial_format = self._is_partial(episode.messages[-1 - len(step.messages)])

    def _fits(self, episode: SampledEpisode, prompt: Sequence[int]) -> bool:
        """Put `prompt` behind the present segment, or into the first one; False where no token more would fit."""
        if not episode.segments:
            episode.segments.append(Segment(len(episode.messages)))
        segment = episode.segments[-1]
        if len(segment.token_ids) + len(prompt) >= self._budget:
            return False
        segment.append(prompt)
        return True

    @property
    def _budget(self) -> float:
        return self.config.max_episode_tokens or math.inf

    def _add_reply(self, episode: SampledEpisode, completion: Completion) -> Message:
        reply: Message = {"role": "assistant", "content": self.chat.reply_text(completion.token_ids)}
        episode.messages.append(reply)
        episode.segments[-1].append(completion.token_ids, completion.logprobs)
        episode.segments[-1].messages = len(episode.messages)
        episode.turns += 1
        return reply

    def _next_prompt(self, episode: SampledEpisode, reply: Message, step: Step) -> list[int]:
        """The tokens behind the reply; in a new segment where the template rewrites earlier turns."""
        before = len(episode.messages) - len(step.messages)
        last, piece = episode.segments[-1].token_ids[-1], None
        if last == self.chat.end_id or last not in self.chat.end_ids:  # the template would write no other end
            ended = last == self.chat.end_id  # else a stop string came first
            piece = self.chat.next_ids(episode.messages[: before - 1], reply["content"], step.messages, ended=ended)
        if piece is None:
            piece = self.chat.initial_ids(episode.messages)
            episode.segments.append(Segment(len(episode.messages)))
        return piece

    def _truncate(self, episode: SampledEpisode, reply: Message | None = None) -> None:
        episode.finish_reason = "truncated"
        episode.reward += self.spec.truncated_reward
        episode.partial_format = reply is not None and self._is_partial(reply)
        if episode.segments and not any(episode.segments[-1].loss_mask) and len(episode.segments) > 1:
            episode.segments.pop()  # a prompt that did not fit

    def _is_partial(self, reply: Message) -> bool:
        return self.spec.partial_format is not None and self.spec.partial_format(reply["content"])

    async def _call(self, method: Callable[..., Coroutine[Any, Any, Step]], given: Task | Message) -> Step:
        limit = self.config.environment_timeout_s
        async with self.calls:
            try:
                async with asyncio.timeout(limit):
                    return _checked(await method(given))
            except TimeoutError:
                raise EnvironmentFailure(
                    f"{self.spec.name} did not answer a {method.__name__} in {limit:g} s"
                ) from None
            except Exception as error:
                told = str(error).encode("utf-8", "backslashreplace").decode() or type(error).__name__
                raise EnvironmentFailure(f"{self.spec.name} failed in a {method.__name__}: {told}") from error


def _checked(step: Step) -> Step:
    """The step; ValueError for an answer that no training could use."""
    if not isinstance(step, Step):
        raise ValueError(f"the answer is {step!r}; allowed: a Step.")
    if not math.isfinite(step.reward):
        raise ValueError(f"the reward is {step.reward}; allowed: a finite number.")
    texts = [step.note, *(text for said in (*step.messages, *step.tool_calls) for text in map(str, said.values()))]
    if odd := next((text for text in texts if not is_unicode(text)), None):
        raise ValueError(f"the answer has {odd[:40]!a}, half a surrogate pair; allowed: Unicode text.")
    if not step.done and not step.messages:
        raise ValueError("the answer has no messages and the episode is not done; allowed: a message to reply to.")
    return step
