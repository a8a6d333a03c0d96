"""Any policy against the exact optimum, or against another one, on held-out decks.

pyflyte run workflows/evaluation.py evaluate --policy runs/monday/policies/00032 --games 10000 --seed 7
pyflyte run workflows/evaluation.py compare --policy models:/grpo-blackjack@challenger \\
    --other models:/grpo-blackjack@champion --games 10000 --seed 7
"""

from flytekit import workflow
from flytekit.types.directory import FlyteDirectory

from tasks.config import RolloutConfig
from tasks.evaluation.task import compare_once, evaluate_once


@workflow
def evaluate(
    policy: str,
    games: int = 4096,
    seed: int = 0,
    environment: str = "blackjack",
    environment_url: str = "",
    config: RolloutConfig = RolloutConfig(),
) -> FlyteDirectory:
    """Print what a policy earns on decks that no training uses, beside the optimum on the same decks.

    Args:
        policy: Directory of a policy, one that a training wrote or any Hugging Face checkpoint; or its name in the
            registry, models:/NAME@champion or models:/NAME/3.
        games: Held-out decks to play, 2 or more.
        seed: Which held-out decks.
        environment: What the policy acts in: blackjack.
        environment_url: URL of a running OpenEnv server. Default: the environment lives in this process.
        config: Settings of the rollout, as JSON or the path of a JSON or YAML file.

    Returns:
        The folder with evaluation.json and choices.png, under runs/evaluations/.
    """
    return evaluate_once(
        policy=policy,
        games=games,
        seed=seed,
        environment=environment,
        environment_url=environment_url,
        config=config,
    )


@workflow
def compare(
    policy: str,
    other: str,
    games: int = 10000,
    seed: int = 0,
    environment: str = "blackjack",
    environment_url: str = "",
    config: RolloutConfig = RolloutConfig(),
) -> FlyteDirectory:
    """Play the same decks with two policies, and print what the first earns more, with a paired 95 % interval.

    Args:
        policy: Directory of a policy, or its name in the registry, as for `evaluate`.
        other: The one that it is compared with, likewise.
        games: Held-out decks to play, 2 or more.
        seed: Which held-out decks; the `seed` in a promotion.json names those of its comparison.
        environment: What the policies act in: blackjack.
        environment_url: URL of a running OpenEnv server. Default: the environment lives in this process.
        config: Settings of the rollout, as JSON or the path of a JSON or YAML file.

    Returns:
        The folder with comparison.json, under runs/comparisons/.
    """
    return compare_once(
        policy=policy,
        other=other,
        games=games,
        seed=seed,
        environment=environment,
        environment_url=environment_url,
        config=config,
    )
