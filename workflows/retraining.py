"""Training on from the champion, on a schedule: the next one is promoted where it is surely better.

    pyflyte run workflows/retraining.py retrain

    champion ─► grpo ─► trained policy ─┬─► compared on fresh tasks ─► promoted, or the champion stays
                └───────── policy 0 ────┘

`nightly` and `on_demand` are what a cluster registers; on this machine `retrain` is the same workflow.
"""

from datetime import datetime

from flytekit import CronSchedule, LaunchPlan, workflow
from flytekit.types.file import FlyteFile

from tasks.config import DEFAULT_ENVIRONMENT, GrpoConfig
from tasks.evaluation.task import compare_in_run
from tasks.promotion.task import NOW, begin_retraining, decide_promotion, retraining_failed
from workflows.grpo import training


@workflow(on_failure=retraining_failed)
def retrain(
    run_name: str = "",
    start_time: datetime = NOW,
    policy: str = "tiny",
    environment: str = DEFAULT_ENVIRONMENT,
    environment_url: str = "",
    iterations: int = 24,
    lag: int = 0,
    tasks: int = 0,
    config: GrpoConfig = GrpoConfig(),
    max_delay_hours: float = 0.0,
) -> FlyteFile:
    """Train on from the champion, compare on tasks that nobody has played, promote only what is surely better.

    Args:
        run_name: Folder under runs/ and name in MLflow; an interrupted run of this name goes on. Default: made from
            the start time.
        start_time: Fixes tasks, samples, minibatches and weights, so that each night has its own. Default: now.
        policy: What the first retraining starts from, while there is no champion: "tiny", a checkpoint, its name on
            the hub or in the registry.
        environment: What the policy acts in: a folder under tasks/environments/, an installed environment, or
            package.module of a module with a SPEC.
        environment_url: URL of a running OpenEnv server. Default: the environment runs in the rollout process.
        iterations: Policy versions to train.
        lag: 0 samples rollout v from policy v; n from v-n, so that on a cluster n rollouts run beside a training.
        tasks: Fresh test tasks of the comparison; 0 plays as many as the environment says.
        config: All settings of the stages, as JSON or the path of a JSON or YAML file; see tasks/config.py.
        max_delay_hours: A start time that is longer ago is skipped; 0 takes any.

    Returns:
        promotion.json of the run: whether its policy is champion now, and why.
    """
    begun = begin_retraining(run_name, start_time, policy, environment, tasks, config, max_delay_hours)
    run, resolved, first, done, _ = training(
        begun.run_name, begun.policy, environment, environment_url, iterations, begun.seed, lag, config
    )
    comparison = compare_in_run(run=run, config=resolved, policies=done.policies, other=first, tasks=tasks)
    return decide_promotion(run, resolved, done.policies, done.evaluations, comparison)


# Every input has a default in the workflow, so that both plans run as they are; a launch may give other values.
on_demand = LaunchPlan.get_or_create(retrain, name="workflows.retraining.on_demand")
# A retraining that is still running when the next one begins is compared with the champion that it began from. The
# first of the two to be promoted stays: the other one was compared with a policy that is no longer champion.
nightly = LaunchPlan.get_or_create(
    retrain,
    name="workflows.retraining.nightly",
    default_inputs={"max_delay_hours": 12.0},
    schedule=CronSchedule(schedule="0 2 * * *", kickoff_time_input_arg="start_time"),  # 02:00 UTC
)
