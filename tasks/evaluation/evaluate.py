"""A policy against the exact optimum, on decks that training never sees.

The policy plays greedily; the optimum, random play and always-stand play the very same decks. All numbers are the
environment's own rewards; a game that an unreadable reply ended is forfeited and counts as lost.
Axis: E games.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from tasks.config import RolloutConfig
from tasks.environments.catalog import EnvironmentKind, get_environment
from tasks.json_records import Record
from tasks.policy.chat import open_chat
from tasks.policy.checkpoint import read_manifest
from tasks.progress import ProgressCallback, no_progress
from tasks.rollout.engine import open_engine
from tasks.rollout.episodes import Episode
from tasks.rollout.rollout import open_games, play_in_waves
from tasks.seeds import derived_seed, held_out_seeds

SAMPLED = 1024  # decks at most that are also played at the rollout's temperature
OUTCOMES = ("won", "pushed", "lost", "invalid")
Z95 = 1.959964  # the normal distribution's two-sided 95 % point


@dataclass(frozen=True)
class Example(Record):
    """One game of an evaluation, for people to read.

    Example: `Example(outcome="lost", reward=-1.0, sampled=False, messages=[{"role": "system", …}, {"role": "user",
    "content": "Cards 10 6, hard 16. Dealer 10."}, {"role": "assistant", "content": "STAND"}], as_optimum=[False])`.
    """

    outcome: str  # won, pushed, lost or invalid
    reward: float
    sampled: bool  # at the rollout's temperature rather than greedily
    messages: list[dict[str, str]]
    as_optimum: list[bool | None]  # for each reply, whether the optimum does the same; None for an unreadable one


@dataclass(frozen=True)
class Evaluation(Record):
    """What one evaluation found; shares are from 0 to 1, `_ci95` is half the width of a 95 % interval.

    Example: `Evaluation(policy_version=40, games=4096, expected_reward=-0.048, expected_reward_ci95=0.029, …,
    regret=0.012, regret_ci95=0.011, invalid_rate=0.0, agreement=0.89, players={"optimum": {…}}, choices=[…])`.
    """

    policy_version: int
    games: int
    expected_reward: float
    expected_reward_ci95: float
    win_rate: float
    win_rate_ci95: float
    push_rate: float
    push_rate_ci95: float
    loss_rate: float
    loss_rate_ci95: float
    regret: float  # the optimum's reward less the policy's on the same deck, on average
    regret_ci95: float
    invalid_rate: float  # games that an unreadable reply ended
    invalid_rate_ci95: float
    agreement: float  # decisions made as the optimum would
    agreement_ci95: float
    sampled_expected_reward: float  # the first decks, played at the rollout's temperature
    players: dict[str, dict[str, float]] = field(default_factory=dict)  # the scripted players on the same decks
    choices: list[tuple[str, str, int, int]] = field(default_factory=list)  # row, column, decisions, of these HIT
    examples: list[Example] = field(default_factory=list)  # one of each outcome that was met


def share(values_E: np.ndarray) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, by the normal approximation."""
    return float(values_E.mean()), float(Z95 * values_E.std(ddof=1) / np.sqrt(len(values_E)))


def outcome(rewards_E: np.ndarray) -> dict[str, float]:
    """Expected reward and rates of winning, pushing and losing, each with its interval. A push is not a win."""
    found: dict[str, float] = {}
    for name, values in (
        ("expected_reward", rewards_E),
        ("win_rate", rewards_E > 0),
        ("push_rate", rewards_E == 0),
        ("loss_rate", rewards_E < 0),
    ):
        found[name], found[f"{name}_ci95"] = share(np.asarray(values, dtype=np.float64))
    return found


@lru_cache(maxsize=16)
def scripted_rewards(environment: str, player: str, seed: int, games: int) -> np.ndarray:
    """Rewards [E] of a scripted player on the held-out decks, in the order of `held_out_seeds`."""
    kind = get_environment(environment)
    table, choose = kind.open_local(), kind.players[player]
    rewards = np.zeros(games)
    dice = random.Random(derived_seed("scripted evaluation", player, seed))
    observations = dict(enumerate(table.reset(held_out_seeds(seed, games))))
    while observations:
        observations = table.step({game: choose(o, dice) for game, o in observations.items()})
        for game, o in observations.items():
            if o.done:
                assert o.reward is not None
                rewards[game] = o.reward
        observations = {game: o for game, o in observations.items() if not o.done}
    table.close()
    return rewards


def evaluate_policy(
    policy: Path,
    rollout: RolloutConfig,
    *,
    environment: str,
    url: str = "",
    games: int,
    seed: int,
    progress: ProgressCallback = no_progress,
) -> Evaluation:
    """Play `games` held-out decks greedily, some once more at the rollout's temperature; compare with the optimum.

    `progress` is told of the games that have ended.
    """
    kind = get_environment(environment, thinking=rollout.thinking)
    again, done, reward = min(games, SAMPLED), 0, 0.0

    def ended(episodes: Sequence[Episode]) -> None:
        nonlocal done, reward
        done, reward = done + len(episodes), reward + sum(e.earned for e in episodes)
        progress(done, games + again, f"reward {reward / done:+.3f}" if 0 < done <= games else "")

    greedy = _episodes(policy, kind, rollout, url, games, seed, ended, temperature=0.0)
    sampled = _episodes(policy, kind, rollout, url, again, seed, ended, temperature=rollout.temperature)
    rewards_E = _rewards(greedy)
    regret, regret_ci95 = share(scripted_rewards(environment, "optimum", seed, games) - rewards_E)
    invalid_rate, invalid_rate_ci95 = share(np.array([e.reward is None for e in greedy], dtype=np.float64))
    as_optimum = [action is not None and kind.is_optimal(seen, action) for e in greedy for seen, action in e.decisions]
    agreement, agreement_ci95 = share(np.array(as_optimum, dtype=np.float64))
    return Evaluation(
        policy_version=read_manifest(policy).version,
        games=games,
        **outcome(rewards_E),
        regret=regret,
        regret_ci95=regret_ci95,
        invalid_rate=invalid_rate,
        invalid_rate_ci95=invalid_rate_ci95,
        agreement=agreement,
        agreement_ci95=agreement_ci95,
        sampled_expected_reward=float(_rewards(sampled).mean()),
        players={name: outcome(scripted_rewards(environment, name, seed, games)) for name in kind.players},
        choices=_choices(kind, greedy),
        examples=_examples(kind, greedy, sampled),
    )


def greedy_rewards(
    policy: Path, rollout: RolloutConfig, *, environment: str, url: str = "", games: int, seed: int
) -> np.ndarray:
    """Rewards [E] of the policy, played greedily on the held-out decks, in the order of `held_out_seeds`."""
    kind = get_environment(environment, thinking=rollout.thinking)
    return _rewards(_episodes(policy, kind, rollout, url, games, seed, lambda episodes: None, temperature=0.0))


def _rewards(episodes: Sequence[Episode]) -> np.ndarray:
    return np.array([e.earned for e in episodes])


def _episodes(
    policy: Path,
    kind: EnvironmentKind,
    rollout: RolloutConfig,
    url: str,
    games: int,
    seed: int,
    ended: Callable[[Sequence[Episode]], None],
    *,
    temperature: float,
) -> list[Episode]:
    engine, chat = open_engine(policy, rollout), open_chat(policy, rollout.thinking)
    with closing(open_games(kind, url)) as opened:
        return play_in_waves(
            engine,
            chat,
            kind,
            opened,
            held_out_seeds(seed, games),
            rollout,
            temperature=temperature,
            reply_seed=lambda game, turn: derived_seed("evaluation reply", seed, game, turn),
            ended=ended,
        )


def _choices(kind: EnvironmentKind, episodes: Sequence[Episode]) -> list[tuple[str, str, int, int]]:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for episode in episodes:
        for seen, action in episode.decisions:
            if action is not None:
                count = counts[kind.situation(seen)]
                count[0] += 1
                count[1] += kind.agent.say(action) == "HIT"
    return [(row, column, met, hits) for (row, column), (met, hits) in sorted(counts.items())]


def _examples(kind: EnvironmentKind, greedy: Sequence[Episode], sampled: Sequence[Episode]) -> list[Example]:
    """Of each outcome the first game, rather one with several replies, and rather a greedy one."""
    found: dict[str, Example] = {}
    for least in (2, 1):
        for episodes in (greedy, sampled):
            for episode in episodes:
                outcome = _outcome(episode)
                if outcome in found or (episode.turns < least and outcome != "invalid"):
                    continue
                found[outcome] = Example(
                    outcome=outcome,
                    reward=episode.earned,
                    sampled=episodes is sampled,
                    messages=episode.present.messages,
                    as_optimum=[None if a is None else kind.is_optimal(seen, a) for seen, a in episode.decisions],
                )
    return [found[outcome] for outcome in OUTCOMES if outcome in found]


def _outcome(episode: Episode) -> str:
    if episode.reward is None:
        return "invalid"
    return OUTCOMES[0 if episode.reward > 0 else 1 if episode.reward == 0 else 2]


def numbers(evaluation: Evaluation) -> dict[str, float]:
    """The evaluation's own numbers by name, without the scripted players, the choices and the examples."""
    skipped = ("policy_version", "players", "choices", "examples")
    return {name: float(value) for name, value in asdict(evaluation).items() if name not in skipped}


def flat_metrics(evaluation: Evaluation) -> dict[str, float]:
    """What of an evaluation has a chart, as `eval/…`: among them the expected reward with its 95 % interval, and the
    optimum's on the same decks."""
    half = evaluation.expected_reward_ci95
    found = {
        "expected_reward": evaluation.expected_reward,
        "expected_reward_low": evaluation.expected_reward - half,
        "expected_reward_high": evaluation.expected_reward + half,
        "optimum": evaluation.players["optimum"]["expected_reward"],
    }
    for name in ("regret", "win_rate", "invalid_rate", "agreement", "sampled_expected_reward"):
        found[name] = getattr(evaluation, name)
    return {f"eval/{name}": float(value) for name, value in found.items()}


def heat_map_cells(kind: EnvironmentKind, evaluation: Evaluation) -> Mapping[tuple[str, int, str], tuple[float, bool]]:
    """(hard or soft, total, dealer's card) → (share of HIT, whether the optimum hits), as the heat map takes it."""
    best = kind.best_moves()
    cells = {}
    for row, column, met, hits in evaluation.choices:
        kind_of_hand, total = row.split()
        cells[kind_of_hand, int(total), column] = (hits / met, best[row, column] == "HIT")
    return cells
