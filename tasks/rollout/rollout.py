"""One batch of trajectories: groups of games that share a deck, played by one policy version."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.config import RolloutConfig
from tasks.environments.catalog import EnvironmentKind, Games, get_environment
from tasks.policy.chat import Chat, open_chat
from tasks.policy.checkpoint import read_info
from tasks.records import Trajectory, to_table
from tasks.rollout.engine import Engine, open_engine
from tasks.rollout.episodes import Episode, play
from tasks.seeds import derived_seed, training_seed


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
) -> list[Episode]:
    """Play one game for each environment seed, `config.concurrent_games` of them at once; closes `games`.

    `reply_seed(game, turn)` gives the seed with which a reply is sampled; games are numbered as in `seeds`.
    """
    episodes: list[Episode] = []
    try:
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
            )
    finally:
        games.close()
    return episodes


def sample_batch(
    policy: Path, config: RolloutConfig, *, environment: str, url: str, run_seed: int, iteration: int
) -> tuple[pa.Table, dict[str, float]]:
    """Play `config.groups` groups of `config.group_size` games; returns the batch and its metrics.

    The same arguments give the same batch. Groups are numbered within the iteration; each has a deck of its own.
    """
    started = time.perf_counter()
    kind = get_environment(environment)
    version = read_info(policy).version
    chat, engine = open_chat(policy), open_engine(policy, config)
    games = open_games(kind, url)
    ready = time.perf_counter()
    members = range(config.groups * config.group_size)
    episodes = play_in_waves(
        engine,
        chat,
        kind,
        games,
        [training_seed(run_seed, iteration, i // config.group_size) for i in members],
        config,
        temperature=config.temperature,
        reply_seed=lambda game, turn: derived_seed("reply", run_seed, iteration, game, turn),
    )
    trajectories = [
        _trajectory(e, f"{iteration:05d}-{i // config.group_size:05d}", i % config.group_size, version, config)
        for i, e in zip(members, episodes, strict=True)
    ]
    seconds = time.perf_counter() - ready
    return to_table(trajectories), _metrics(trajectories, seconds, ready - started)


def _trajectory(episode: Episode, group_id: str, member: int, version: int, config: RolloutConfig) -> Trajectory:
    return Trajectory(
        trajectory_id=f"{group_id}-{member}",
        group_id=group_id,
        policy_version=version,
        seed=episode.seed,
        token_ids=episode.token_ids,
        action_mask=episode.action_mask,
        logprobs=episode.logprobs,
        reward=config.invalid_reward if episode.reward is None else episode.reward,
        turns=episode.turns,
        invalid=episode.finish_reason != "finished",
        finish_reason=episode.finish_reason,
        messages=episode.messages,
    )


def _metrics(trajectories: Sequence[Trajectory], seconds: float, setup_seconds: float) -> dict[str, float]:
    rewards = np.array([t.reward for t in trajectories])
    sampled = sum(sum(t.action_mask) for t in trajectories)
    return {
        "rollout/reward_mean": float(rewards.mean()),
        "rollout/invalid_share": float(np.mean([t.invalid for t in trajectories])),
        "rollout/cut_share": float(np.mean([t.finish_reason == "length" for t in trajectories])),
        "rollout/turns_mean": float(np.mean([t.turns for t in trajectories])),
        "rollout/tokens_mean": float(np.mean([len(t.token_ids) for t in trajectories])),
        "rollout/games_per_s": len(trajectories) / seconds,
        "rollout/sampled_tokens_per_s": sampled / seconds,
        "time/rollout_s": seconds,
        "time/rollout_setup_s": setup_seconds,
    }
