"""One batch of trajectories: groups of games that share a deck, played by one policy version.

The games of a group hang on the run's seed, the iteration and the number of the group, on nothing else; which groups a
batch holds hangs on their rewards, in the order of their numbers. So a batch is the same whoever plays its groups, and
with how many others at once: see shards.py.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.config import RolloutConfig
from tasks.environments.catalog import EnvironmentKind, Games, get_environment
from tasks.policy.chat import Chat, open_chat
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.records import Sample, to_table, trajectory_numbers, with_column
from tasks.rollout.engine import Engine, open_engine
from tasks.rollout.episodes import FORFEIT, Episode, play
from tasks.seeds import derived_seed, training_seed

PARTIAL_FORMAT = pa.field("partial_format", pa.bool_())  # of a game; a column of what was played, not of the batch


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
    """Play one game for each environment seed, `config.concurrent_episodes` of them at once.

    `reply_seed(game, turn)` gives the seed with which a reply is sampled; games are numbered as in `seeds`. `ended` is
    told of games as they end.
    """
    episodes: list[Episode] = []
    for first in range(0, len(seeds), config.concurrent_episodes):
        episodes += play(
            engine,
            chat,
            kind.agent,
            games,
            seeds[first : first + config.concurrent_episodes],
            temperature=temperature,
            max_tokens=config.max_tokens,
            max_turns=config.max_turns,
            sampling_seed=lambda game, turn, first=first: reply_seed(first + game, turn),
            ended=ended,
        )
    return episodes


def groups_to_play(played: int, kept: int, config: RolloutConfig) -> int:
    """Groups to play next: as many as should bring `kept`, those so far whose rewards differ, to `config.groups`.

    At most what `config.concurrent_episodes` holds at once, and `config.max_groups` in all; 0 when there is enough. A
    group of equal rewards teaches nothing and is replaced by further ones: DAPO's dynamic sampling (arXiv:2503.14476).
    """
    if kept >= config.groups:
        return 0
    kept_share = max(1, kept) / played if played else 1.0
    at_once = max(1, config.concurrent_episodes // config.group_size)
    return min(math.ceil((config.groups - kept) / kept_share), at_once, config.max_groups - played)


@dataclass
class Player:
    """Plays groups of one iteration with one policy version. Engine and environment open with the first that it plays;
    `close` ends the environment."""

    policy: Path
    config: RolloutConfig
    environment: str
    url: str
    run_seed: int
    iteration: int
    progress: ProgressCallback = no_progress  # told of the groups so far whose rewards differ
    setup_s: float = 0.0  # seconds until engine and environment were open
    play_s: float = 0.0  # seconds that games took since
    _kept: int = 0
    _games: int = 0
    _earned: float = 0.0
    _opened: tuple[int, Chat, Engine, EnvironmentKind, Games] | None = None
    _closing: ExitStack = field(default_factory=ExitStack)

    def play(self, groups: Sequence[int]) -> pa.Table:
        """The games of these groups, in the order given: rows of SAMPLE, and PARTIAL_FORMAT."""
        version, chat, engine, kind, games = self._opened or self._open()
        started = time.perf_counter()
        size = self.config.group_size

        def ended(episodes: Sequence[Episode]) -> None:
            self._games += len(episodes)
            self._earned += sum(e.earned for e in episodes)
            speed = self._games / (self.play_s + time.perf_counter() - started)
            reward = self._earned / max(1, self._games)
            self.progress(self._kept, self.config.groups, f"{speed:,.0f} games/s  reward {reward:+.3f}")

        members = [(group, member) for group in groups for member in range(size)]
        episodes = play_in_waves(
            engine,
            chat,
            kind,
            games,
            [training_seed(self.run_seed, self.iteration, group) for group, _ in members],
            self.config,
            temperature=self.config.temperature,
            reply_seed=lambda game, turn: derived_seed(
                "reply", self.run_seed, self.iteration, members[game][0] * size + members[game][1], turn
            ),
            ended=ended,
        )
        samples, partial_formats = [], []
        for (group, member), episode in zip(members, episodes, strict=True):
            rows = _samples(episode, f"{self.iteration:05d}-{group:05d}", member, version, self.config)
            samples += rows
            partial_formats += [episode.partial_format] * len(rows)
        played = with_column(to_table(samples), PARTIAL_FORMAT, partial_formats)
        self._kept += groups_with_variance(played)
        ended([])
        self.play_s += time.perf_counter() - started
        return played

    def _open(self) -> tuple[int, Chat, Engine, EnvironmentKind, Games]:
        started = time.perf_counter()
        kind = get_environment(self.environment, thinking=self.config.thinking)
        version = read_manifest(self.policy).version
        chat, engine = open_chat(self.policy, self.config.thinking), open_engine(self.policy, self.config)
        games = self._closing.enter_context(closing(open_games(kind, self.url)))
        self._opened = version, chat, engine, kind, games
        self.setup_s = time.perf_counter() - started
        return self._opened

    def close(self) -> None:
        """End the environment, where it was opened."""
        self._closing.close()


def play_until_enough(
    numbers: Sequence[int], config: RolloutConfig, play: Callable[[Sequence[int]], pa.Table]
) -> tuple[pa.Table, int]:
    """Play the groups of these `numbers`, one after the other, until the rewards of `config.groups` of them differ or
    all `config.max_groups` were played; returns what was played, and how many were.

    `play` is given the next numbers, and returns the games of these groups, in that order.
    """
    waves = []
    played = kept = 0
    while wave := groups_to_play(played, kept, config):
        waves.append(play(numbers[played : played + wave]))
        played += wave
        kept += groups_with_variance(waves[-1])
    return pa.concat_tables(waves).combine_chunks(), played


def sample_batch(
    policy: Path,
    config: RolloutConfig,
    *,
    environment: str,
    url: str,
    run_seed: int,
    iteration: int,
    progress: ProgressCallback = no_progress,
) -> tuple[pa.Table, dict[str, float]]:
    """Play groups of `config.group_size` games until the rewards of `config.groups` of them differ, or
    `config.max_groups` were played; returns the batch, which holds them all, and its metrics.

    The same arguments give the same batch. Groups are numbered within the iteration; each has a deck of its own.
    `progress` is told of the groups whose rewards differ.
    """
    with closing(Player(policy, config, environment, url, run_seed, iteration, progress)) as player:
        games, _ = play_until_enough(range(config.max_groups), config, player.play)
    return games.drop([PARTIAL_FORMAT.name]), batch_metrics(games, player.play_s, player.setup_s)


def groups_with_variance(games: pa.Table) -> int:
    """Groups whose rewards differ."""
    groups = games["group_id"].to_numpy()
    return len(set(groups[has_reward_variance(games["reward"].to_numpy(), groups)]))


def _samples(episode: Episode, group_id: str, member: int, version: int, config: RolloutConfig) -> list[Sample]:
    """The rows of one game: what it earned and how it ended is the same in all."""
    dropped = config.cut == "drop" and episode.finish_reason in ("length", "max_turns")
    forfeit = config.invalid_reward + (config.partial_format_bonus if episode.partial_format else 0.0)
    reward = forfeit if episode.reward is None else episode.reward
    return [
        Sample(
            trajectory_id=f"{group_id}-{member}",
            sample=number,
            group_id=group_id,
            policy_version=version,
            seed=episode.seed,
            token_ids=transcript.token_ids,
            loss_mask=[False] * len(transcript.loss_mask) if dropped else transcript.loss_mask,
            logprobs=[0.0] * len(transcript.logprobs) if dropped else transcript.logprobs,
            reward=None if dropped else reward,
            turns=episode.turns,
            invalid=episode.finish_reason != "finished",
            finish_reason=episode.finish_reason,
            messages=transcript.messages,
        )
        for number, transcript in enumerate(episode.transcripts)
    ]


def batch_metrics(games: pa.Table, seconds: float, setup_seconds: float) -> dict[str, float]:
    """Metrics of the batch that these games make. Each game counts once, however many samples it is in."""
    once = games.take(trajectory_numbers(games)[1])
    tokens, sampled = (games[name].combine_chunks().flatten() for name in ("token_ids", "loss_mask"))
    count = once.num_rows
    rewards = once["reward"].to_numpy().astype(np.float64)  # NaN where there is none
    known = rewards[np.isfinite(rewards)]
    invalid = once["invalid"].to_numpy()

    def share(reason: str) -> float:
        return float(np.mean(once["finish_reason"].to_numpy() == reason))

    return {
        "rollout/groups": float(len(once["group_id"].unique())),
        "rollout/groups_with_variance": float(groups_with_variance(games)),
        "rollout/games": float(count),
        "rollout/reward_mean": float(known.mean()) if len(known) else math.nan,
        "rollout/invalid_share": float(np.mean(invalid)),
        "rollout/cut_share": share("length"),
        "rollout/max_turns_share": share("max_turns"),
        "rollout/turns_mean": float(np.mean(once["turns"].to_numpy())),
        "rollout/samples_mean": games.num_rows / count,
        "rollout/tokens_mean": len(tokens) / count,
        "rollout/games_per_s": count / seconds,
        "rollout/sampled_tokens_per_s": sampled.to_numpy(zero_copy_only=False).sum() / seconds,
        "time/rollout_s": seconds,
        "rollout/partial_format_share": float(np.mean(once[PARTIAL_FORMAT.name].to_numpy())),
        # The environment's own, unshaped.
        "rollout/expected_reward": float(np.mean(np.where(invalid, FORFEIT, rewards))),
        "time/rollout_setup_s": setup_seconds,
    }
