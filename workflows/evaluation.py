"""Any policy against the exact optimum, on held-out decks.

pyflyte run workflows/evaluation.py evaluate --policy runs/monday/policies/00032 --games 10000 --seed 7
"""

from flytekit import workflow
from flytekit.types.directory import FlyteDirectory

from tasks.config import RolloutConfig
from tasks.evaluation.task import evaluate_once


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
        policy: Directory of a policy: one that a training wrote, or any Hugging Face checkpoint.
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
