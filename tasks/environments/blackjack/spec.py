"""BlackJack as the rest of the project sees it."""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tasks.environments.blackjack.language import count_choices, is_partial
from tasks.environments.interface import (
    Demonstration,
    Environment,
    EnvironmentSpec,
    Episode,
    Figure,
    Metric,
    Split,
    Task,
)
from tasks.environments.scripted import play_baseline
from tasks.seeds import derived_seed

HELD_OUT = 1 << 61  # seeds from here on are for evaluation only; training's stay below
LOST = -1.0  # also what an unreadable reply, or a game that a limit ended, counts

METRICS = (
    Metric("won", "wins", ".1%", headline=True),
    Metric("pushed", "pushes", ".1%"),
    Metric("lost", "losses", ".1%"),
    Metric("regret", "regret", ".3f", headline=True, total=True),
    Metric("agreement", "agreement with the optimum", ".1%", per="step"),
)

# With these `tiny` learns the game on a CPU in a few minutes, see docs/algorithms.md.
DEFAULTS: Mapping[str, Any] = {
    "rollout": {"max_tokens": 4, "max_turns": 16, "group_size": 2, "groups": 512, "max_groups": 4096},
    "algorithm": {"kl_coefficient": 0.15, "clip_low": 0.5, "clip_high": 1.0},
    "training": {"epochs": 2, "learning_rate": 1e-3, "warmup_iterations": 4, "seq_len": 256},
    "evaluation": {"tasks": 8192},
    "tiny": {"cold_start_steps": 120},
}


def task(split: Split, index: int) -> Task:
    """A shuffled deck, fixed by its seed alone."""
    seed = index if split == "train" else HELD_OUT + index
    return Task(id=str(seed), split=split, seed=seed)


def outcome(episode: Episode) -> str:
    """won, pushed or lost, by the rules; invalid, truncated or error where the game did not come to its end."""
    if episode.finish_reason != "finished":
        return episode.finish_reason
    return "won" if episode.reward > 0 else "pushed" if episode.reward == 0 else "lost"


def score(episode: Episode, *, thinking: bool) -> dict[str, float]:
    """Who won (a push is no win), and the regret."""
    return {
        "won": float(episode.reward > 0),
        "pushed": float(episode.reward == 0),
        "lost": float(episode.reward < 0),
        "regret": regret(episode, thinking),
    }


def regret(episode: Episode, thinking: bool) -> float:
    """The expected reward that an episode's moves gave away, 0 or more; a reply that was cut short gives away all.

    Each move's part is the value of the best one less its own. The mean over episodes estimates the optimum's expected
    reward less the policy's (the performance difference lemma, Kakade and Langford 2002), without the luck of cards.
    """
    from tasks.environments.blackjack.game import Game, shuffled_deck
    from tasks.environments.blackjack.language import parse_move
    from tasks.environments.blackjack.optimum import action_values

    given_away = sum(step.metrics.get("regret", 0.0) for step in episode.steps)
    if episode.finish_reason != "truncated":
        return given_away
    game = Game(shuffled_deck(episode.task.seed))
    replies = [message["content"] for message in episode.messages if message["role"] == "assistant"]
    for reply, _ in zip(replies, episode.steps[1:], strict=False):  # the last one may have been cut short
        if move := parse_move(reply, thinking):
            game.play(move)
    seen = game.observe()
    return given_away + max(action_values(seen.player_cards, seen.dealer_card).values()) - LOST


def summary(first: Any, last: Any, episodes: int) -> dict[str, Any]:
    """BlackJack's own keys of summary.json, of the first and the last Evaluation and the episodes of the training."""

    def mean(evaluation: Any, name: str) -> float:
        found = evaluation.metrics.get(name)
        return found.mean if found else 0.0  # where every reply was cut short no step was judged

    def results(evaluation: Any) -> dict[str, float]:
        return {
            "expected_reward": evaluation.reward.mean,
            "win_rate": mean(evaluation, "won"),
            "regret": mean(evaluation, "regret"),
        }

    return {
        **results(last),
        "expected_reward_ci95": last.reward.ci95,
        "regret_ci95": last.metrics["regret"].ci95,
        "invalid_rate": mean(last, "invalid") + mean(last, "truncated"),
        "agreement": mean(last, "agreement"),
        "games": episodes,
        "evaluation_games": last.tasks,
        "before": results(first),
    }


def draw_choices(details: Any, title: str, theme: Any) -> Any:
    """The heat map of the policy's choices beside the optimum's."""
    from tasks.environments.blackjack.heat_map import choice_heat_map

    return choice_heat_map(details, f"{title}, beside the optimum", theme)


def optimum(environment: Any, _rng: random.Random) -> str:
    """The move of higher expected reward."""
    from tasks.environments.blackjack.optimum import best_move

    return best_move(environment.observation.player_cards, environment.observation.dealer_card)


BASELINES = {
    "optimum": optimum,
    "random": lambda _environment, rng: rng.choice(("HIT", "STAND")),
    "always_stand": lambda _environment, _rng: "STAND",
}

FIGURES = (
    Figure(
        "choices",
        "What the policy does in each situation, beside the optimum; frames mark where they disagree.",
        draw_choices,
    ),
)


def blackjack(*, thinking: bool = False) -> EnvironmentSpec:
    """BlackJack. With `thinking` the prompt asks for a thought, and the last line of a reply is the answer."""

    def local() -> Environment:
        from tasks.environments.blackjack.environment import BlackJack

        return BlackJack(thinking)

    def demonstrations(seed: int, count: int) -> Sequence[Demonstration]:
        """Random play: it shows which replies there are, not which are good."""
        tasks = [task("train", derived_seed("cold start", seed, i)) for i in range(count)]
        return [Demonstration(e.messages, replies_only=False) for e in play_baseline(spec, "random", tasks, seed)]

    spec = EnvironmentSpec(
        name="blackjack",
        task=task,
        local=local,
        partial_format=partial(is_partial, thinking=thinking),
        metrics=METRICS,
        outcome=outcome,
        reward_range=(-1, 1),
        truncated_reward=LOST,
        score=partial(score, thinking=thinking),
        baselines=BASELINES,
        details=partial(count_choices, thinking=thinking),
        figures=FIGURES,
        summary=summary,
        demonstrations=demonstrations,
        cold_start="tiny had imitated random moves before: which replies there are, not which are good.",
        defaults=DEFAULTS,
        # Measured: the difference on a deck has a standard deviation of 0.44 between two policies close to the optimum,
        # and of 0.72 between a beginner and a good one. So many decks show a difference of 0.02 in 94 of 100
        # comparisons even with 0.72, and with 0.44 one of 0.01 in 80.
        comparison_tasks=16384,
    )
    return spec


SPEC = blackjack
