"""BlackJack as the rest of the project sees it."""

from collections.abc import Mapping, Sequence
from typing import Any

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

HELD_OUT = 1 << 61  # seeds from here on are for evaluation only; training's stay below
LOST = -1.0

METRICS = (
    Metric("won", "wins", ".1%", headline=True),
    Metric("pushed", "pushes", ".1%"),
    Metric("lost", "losses", ".1%"),
    Metric("regret", "regret", ".3f", headline=True),
    Metric("agreement", "agreement with the optimum", ".1%", per="step"),
)

# What `tiny` learns the game by on a CPU in a few minutes, see docs/algorithms.md.
DEFAULTS: Mapping[str, Any] = {
    "rollout": {"max_tokens": 4, "max_turns": 16, "group_size": 2, "groups": 512, "max_groups": 4096},
    "algorithm": {"kl_coefficient": 0.15},
    "training": {"epochs": 2, "learning_rate": 5e-4, "warmup_iterations": 4, "seq_len": 256},
    "evaluation": {"tasks": 8192},
}


def task(split: Split, index: int) -> Task:
    """A shuffled deck: its seed is all there is to it."""
    seed = index if split == "train" else HELD_OUT + index
    return Task(id=str(seed), split=split, seed=seed)


def outcome(episode: Episode) -> str:
    """won, pushed or lost, by the rules; invalid, truncated or error where the game did not come to its end."""
    if episode.finish_reason != "finished":
        return episode.finish_reason
    return "won" if episode.reward > 0 else "pushed" if episode.reward == 0 else "lost"


def score(episode: Episode) -> dict[str, float]:
    """Who won, and what the optimum gets on the same deck beyond what the episode got. A push is not a win."""
    from tasks.environments.blackjack.baselines import optimum_reward

    return {
        "won": float(episode.reward > 0),
        "pushed": float(episode.reward == 0),
        "lost": float(episode.reward < 0),
        "regret": optimum_reward(episode.task.seed) - episode.reward,
    }


def summary(evaluation: Any) -> dict[str, Any]:
    """BlackJack's own keys of summary.json."""
    metrics = evaluation.metrics
    return {
        "expected_reward": evaluation.reward.mean,
        "expected_reward_ci95": evaluation.reward.ci95,
        "win_rate": metrics["won"].mean,
        "regret": metrics["regret"].mean,
        "regret_ci95": metrics["regret"].ci95,
        "invalid_rate": metrics["invalid"].mean,
        "agreement": metrics["agreement"].mean,
    }


def draw_choices(details: Any, title: str, theme: Any) -> Any:
    """The heat map of the policy's choices beside the optimum's."""
    from tasks.environments.blackjack.choices import heat_map_cells
    from tasks.environments.blackjack.heat_map import choice_heat_map

    return choice_heat_map(heat_map_cells(details), f"{title}, beside the optimum", theme)


FIGURES = (
    Figure(
        "choices",
        "What the policy does in each situation, beside the optimum; frames mark where they disagree.",
        draw_choices,
    ),
)


def blackjack(*, thinking: bool = False) -> EnvironmentSpec:
    """BlackJack; with `thinking` its prompt asks for a thought, and the last line of a reply is the answer."""

    def local() -> Environment:
        from tasks.environments.blackjack.environment import BlackJack

        return BlackJack(thinking)

    def partial_format(reply: str) -> bool:
        from tasks.environments.blackjack.language import is_partial

        return is_partial(reply, thinking)

    def demonstrations(seed: int, count: int) -> Sequence[Demonstration]:
        """Random play: which replies there are, not which are good."""
        from tasks.environments.scripted import play_baseline
        from tasks.seeds import derived_seed

        tasks = [task("train", derived_seed("cold start", seed, i)) for i in range(count)]
        return [Demonstration(e.messages, replies_only=False) for e in play_baseline(spec, "random", tasks, seed)]

    def details(episodes: Sequence[Episode]) -> Any:
        from tasks.environments.blackjack.choices import count_choices

        return count_choices(episodes, thinking)

    spec = EnvironmentSpec(
        name="blackjack",
        task=task,
        local=local,
        partial_format=partial_format,
        metrics=METRICS,
        outcome=outcome,
        reward_range=(-1, 1),
        truncated_reward=LOST,
        score=score,
        baselines={name: _baseline(name) for name in ("optimum", "random", "always_stand")},
        details=details,
        figures=FIGURES,
        summary=summary,
        demonstrations=demonstrations,
        defaults=DEFAULTS,
        comparison_tasks=16384,
    )
    return spec


def _baseline(name: str) -> Any:
    def act(environment: Any, rng: Any) -> str:
        from tasks.environments.blackjack.baselines import BASELINES

        return BASELINES[name](environment, rng)

    return act


SPEC = blackjack
