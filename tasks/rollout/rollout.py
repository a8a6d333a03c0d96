"""One batch of trajectories: groups of games that share a deck, played by one policy version."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import decided
from tasks.config import RolloutConfig
from tasks.environments.catalog import EnvironmentKind, Games, get_environment
from tasks.policy.chat import Chat, open_chat
from tasks.policy.checkpoint import read_info
from tasks.records import Sample, to_table
from tasks.rollout.engine import Engine, open_engine
from tasks.rollout.episodes import Episode, play
from tasks.seeds import derived_seed, training_seed
from tasks.watching import Watch, nobody


def open_games(kind: EnvironmentKind, url: str) -> Games:
    """The environment in this process, or on the server at `url`."""
    return kind.connect(url) if url else kind.open_local()


def play_in_waves(
    engine: Engine,
    chat: Chat,
    kind: EnvironmentKind,
    games: Games,
    seeds: Sequence[int],
    config: RolloutConfig,
    *,
    temperature: float,
    reply_seed: Callable[[int, int], int],
    ended: Callable[[Sequence[Episode]], None] = lambda episodes: None,
) -> list[Episode]:
    """Play one game for each environment seed, `config.concurrent_games` of them at once.

    `reply_seed(game, turn)` gives the seed with which a reply is sampled; games are numbered as in `seeds`. `ended` is
    told of games as they end.
    """
    episodes: list[Episode] = []
    for first in range(0, len(seeds), config.concurrent_games):
        episodes += play(
            engine,
            chat,
            kind.agent,
            games,
            seeds[first : first + config.concurrent_games],
            temperature=temperature,
            max_tokens=config.max_tokens,
            max_turns=config.max_turns,
            sampling_seed=lambda game, turn, first=first: reply_seed(first + game, turn),
            ended=ended,
        )
    return episodes


def groups_to_play(played: int, kept: int, config: RolloutConfig) -> int:
    """Groups to play next: as many as should bring `kept`, those so far whose rewards differ, to `config.groups`.

    At most what `config.concurrent_games` holds at once, and `config.max_groups` in all; 0 when there is enough. A
    group of equal rewards teaches nothing and is replaced by further ones: DAPO's dynamic sampling (arXiv:2503.14476).
    """
    if kept >= config.groups:
        return 0
    kept_share = max(1, kept) / played if played else 1.0
    at_once = max(1, config.concurrent_games // config.group_size)
    return min(math.ceil((config.groups - kept) / kept_share), at_once, config.max_groups - played)


def sample_batch(
    policy: Path,
    config: RolloutConfig,
    *,
    environment: str,
    url: str,
    run_seed: int,
    iteration: int,
    watch: Watch = nobody,
) -> tuple[pa.Table, dict[str, float]]:
    """Play groups of `config.group_size` games until the rewards of `config.groups` of them differ, or
    `config.max_groups` were played; returns the batch, which holds them all, and its metrics.

    The same arguments give the same batch. Groups are numbered within the iteration; each has a deck of its own.
    `watch` is told of the groups whose rewards differ.
    """
    started = time.perf_counter()
    kind = get_environment(environment, thinking=config.thinking)
    version = read_info(policy).version
    chat, engine = open_chat(policy, config.thinking), open_engine(policy, config)
    samples: list[Sample] = []
    played = kept = near_misses = done = 0
    earned = 0.0

    def ended(episodes: Sequence[Episode]) -> None:
        nonlocal done, earned
        done, earned = done + len(episodes), earned + sum(e.earned for e in episodes)
        speed = done / (time.perf_counter() - ready)
        watch(kept, config.groups, f"{speed:,.0f} games/s  reward {earned / max(1, done):+.3f}")

    with closing(open_games(kind, url)) as games:
        ready = time.perf_counter()
        while wave := groups_to_play(played, kept, config):
            members = range(played * config.group_size, (played + wave) * config.group_size)
            episodes = play_in_waves(
                engine,
                chat,
                kind,
                games,
                [training_seed(run_seed, iteration, i // config.group_size) for i in members],
                config,
                temperature=config.temperature,
                reply_seed=lambda game, turn, first=members[0]: derived_seed(
                    "reply", run_seed, iteration, first + game, turn
                ),
                ended=ended,
            )
            new = [
                sample
                for i, e in zip(members, episodes, strict=True)
                for sample in _samples(
                    e, f"{iteration:05d}-{i // config.group_size:05d}", i % config.group_size, version, config
                )
            ]
            samples += new
            near_misses += sum(e.near_miss for e in episodes)
            played += wave
            kept += _kept(new)
            ended([])
        seconds = time.perf_counter() - ready
    metrics = {"rollout/groups": float(played), "rollout/groups_kept": float(kept), **_metrics(samples, seconds)}
    metrics["rollout/near_miss_share"] = near_misses / metrics["rollout/games"]
    metrics["rollout/expected_reward"] = earned / metrics["rollout/games"]  # the environment's own, unshaped
    return to_table(samples), {**metrics, "time/rollout_setup_s": ready - started}


def _rewards(samples: Sequence[Sample]) -> np.ndarray:
    return np.array([s.reward for s in samples], dtype=np.float64)  # NaN where there is none


def _kept(samples: Sequence[Sample]) -> int:
    """Groups whose rewards differ."""
    groups = [s.group_id for s in samples]
    return len(set(np.array(groups)[decided(_rewards(samples), groups)]))


def _samples(episode: Episode, group_id: str, member: int, version: int, config: RolloutConfig) -> list[Sample]:
    """The rows of one game: what it earned and how it ended is the same in all."""
    dropped = config.cut == "drop" and episode.finish_reason in ("length", "max_turns")
    forfeit = config.invalid_reward + (config.near_miss_bonus if episode.near_miss else 0.0)
    reward = forfeit if episode.reward is None else episode.reward
    return [
        Sample(
            trajectory_id=f"{group_id}-{member}",
            sample=number,
            group_id=group_id,
            policy_version=version,
            seed=episode.seed,
            token_ids=transcript.token_ids,
            action_mask=[False] * len(transcript.action_mask) if dropped else transcript.action_mask,
            logprobs=[0.0] * len(transcript.logprobs) if dropped else transcript.logprobs,
            reward=None if dropped else reward,
            turns=episode.turns,
            invalid=episode.finish_reason != "finished",
            finish_reason=episode.finish_reason,
            messages=transcript.messages,
        )
        for number, transcript in enumerate(episode.transcripts)
    ]


def _metrics(samples: Sequence[Sample], seconds: float) -> dict[str, float]:
    """Each trajectory counts once, however many samples it is in."""
    trajectories = [s for s in samples if s.sample == 0]
    rewards = _rewards(trajectories)
    rewards = rewards[np.isfinite(rewards)]
    sampled = sum(sum(s.action_mask) for s in samples)
    return {
        "rollout/games": float(len(trajectories)),
        "rollout/reward_mean": float(rewards.mean()) if len(rewards) else math.nan,
        "rollout/invalid_share": float(np.mean([t.invalid for t in trajectories])),
        "rollout/cut_share": float(np.mean([t.finish_reason == "length" for t in trajectories])),
        "rollout/max_turns_share": float(np.mean([t.finish_reason == "max_turns" for t in trajectories])),
        "rollout/turns_mean": float(np.mean([t.turns for t in trajectories])),
        "rollout/samples_mean": len(samples) / len(trajectories),
        "rollout/tokens_mean": sum(len(s.token_ids) for s in samples) / len(trajectories),
        "rollout/games_per_s": len(trajectories) / seconds,
        "rollout/sampled_tokens_per_s": sampled / seconds,
        "time/rollout_s": seconds,
    }
