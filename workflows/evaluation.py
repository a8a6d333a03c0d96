"""Any policy beside the environment's baselines, or beside another policy, on test tasks.

pyflyte run workflows/evaluation.py evaluate --policy runs/monday/policies/00032 --tasks 10000 --seed 7
pyflyte run workflows/evaluation.py compare --policy models:/NAME@challenger --other models:/NAME@champion --seed 7
"""

from flytekit import workflow
from flytekit.types.directory import FlyteDirectory

from tasks.config import DEFAULT_ENVIRONMENT, RolloutConfig
from tasks.evaluation.task import compare_once, evaluate_once


@workflow
def evaluate(
    policy: str,
    tasks: int = 4096,
    seed: int = 0,
    environment: str = DEFAULT_ENVIRONMENT,
    environment_url: str = "",
    config: RolloutConfig = RolloutConfig(),
) -> FlyteDirectory:
    """Print what a policy gets on tasks that no training uses, beside the environment's baselines on the same tasks.

    Args:
        policy: Directory of a policy, one that a training wrote or any Hugging Face checkpoint; or its name in the
            registry, models:/NAME@champion or models:/NAME/3.
        tasks: Test tasks to play, 2 or more.
        seed: Which test tasks.
        environment: What the policy acts in: a folder under tasks/environments/, an installed environment, or
            package.module of a module with a SPEC.
        environment_url: URL of a running OpenEnv server. Default: the environment runs in this process.
        config: Settings of the rollout, as JSON or the path of a JSON or YAML file.

    Returns:
        The folder with evaluation.json and the environment's own pictures, under runs/evaluations/.
    """
    return evaluate_once(policy, tasks, seed, environment, environment_url, config)


@workflow
def compare(
    policy: str,
    other: str,
    tasks: int = 0,
    seed: int = 0,
    environment: str = DEFAULT_ENVIRONMENT,
    environment_url: str = "",
    config: RolloutConfig = RolloutConfig(),
    other_config: RolloutConfig = RolloutConfig(),
) -> FlyteDirectory:
    """Play the same tasks with two policies, and print what the first gets more, with a paired 95 % interval.

    Args:
        policy: Directory of a policy, or its name in the registry, as for `evaluate`.
        other: The one that it is compared with, likewise.
        tasks: Test tasks to play, 2 or more; 0 plays as many as the environment says.
        seed: Which test tasks; the `seed` in a promotion.json gives those of its comparison.
        environment: What the policies act in, as for `evaluate`.
        environment_url: URL of a running OpenEnv server. Default: the environment runs in this process.
        config: Settings of the rollout, as JSON or the path of a JSON or YAML file.
        other_config: What is different for `other`, such as '{"environment_options": {"tool": false}}'.

    Returns:
        The folder with comparison.json, under runs/comparisons/.
    """
    return compare_once(policy, other, tasks, seed, environment, environment_url, config, other_config)
