"""GRPO: rollout, reference scoring, advantages, buffer, training, again and again; evaluations in between.

    pyflyte run workflows/grpo.py grpo
    pyflyte run workflows/grpo.py grpo --iterations 5 --config '{"rollout": {"groups": 64}}'

The graph is the schedule. With lag 0 rollout v waits for policy v; with lag 1 it samples from policy v-1, so that on
a cluster it runs beside the training of policy v.
"""

from flytekit import dynamic, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.advantage.task import compute_advantages
from tasks.buffer.task import Window, select_window
from tasks.config import GrpoConfig, Run
from tasks.evaluation.task import evaluate, report
from tasks.policy.task import first_policy
from tasks.reference.task import score_reference
from tasks.resources import passed_on, pod
from tasks.rollout.task import rollout
from tasks.run.task import prepare
from tasks.training.task import train


@dynamic(**pod("graph"), environment=passed_on())
def iterate(run: Run, first: FlyteDirectory, iterations: int, lag: int, config: GrpoConfig) -> FlyteFile:
    """The loop, unrolled into a graph."""
    policies, batches, state, window = [first], [], None, Window()
    evaluations = [evaluate(run=run, config=config, policy=first, version=0)]
    for v in range(iterations):
        sampler = policies[max(0, v - lag)]
        batch = rollout(run=run, config=config.rollout, policy=sampler, iteration=v)
        if config.algorithm.kl_coefficient:
            batch = score_reference(run=run, config=config, batch=batch, reference=first, iteration=v)
        batches.append(compute_advantages(run=run, config=config, batch=batch, iteration=v))
        recent = batches[-(config.buffer.max_age + 1) :]
        window = select_window(run=run, config=config, batches=recent, before=window, policy_version=v)
        trained = train(
            run=run,
            config=config,
            iterations=iterations,
            window=window,
            batches=recent,
            policy=policies[v],
            sampler=sampler,
            state=state,
            iteration=v,
        )
        policies.append(trained.policy)
        state = trained.state
        if (v + 1) % config.evaluation.every == 0 or v + 1 == iterations:
            evaluations.append(evaluate(run=run, config=config, policy=trained.policy, version=v + 1))
    return report(run=run, evaluations=evaluations, policy=policies[-1], iterations=iterations)


@workflow
def grpo(
    run_name: str = "",
    policy: str = "tiny",
    environment: str = "blackjack",
    environment_url: str = "",
    iterations: int = 32,
    seed: int = 0,
    lag: int = 0,
    config: GrpoConfig = GrpoConfig(),
) -> FlyteFile:
    """Train a chat policy with GRPO in an OpenEnv environment.

    Args:
        run_name: Folder under runs/ and name in MLflow; an interrupted run of this name goes on. Default: made from
            the date.
        policy: "tiny", made on the spot, or a Hugging Face checkpoint: its directory, or its name on the hub,
            owner/name or owner/name@revision.
        environment: What the policy acts in: blackjack.
        environment_url: URL of a running OpenEnv server. Default: the environment lives in the rollout process.
        iterations: Policy versions to train.
        seed: Fixes decks, samples, minibatches and weights.
        lag: 0 samples rollout v from policy v; 1 from policy v-1, so that both can run at once on a cluster.
        config: All settings of the stages, as JSON or the path of a JSON or YAML file; see tasks/config.py.

    Returns:
        summary.json of the run.
    """
    run = prepare(
        run_name=run_name,
        policy=policy,
        environment=environment,
        environment_url=environment_url,
        iterations=iterations,
        seed=seed,
        lag=lag,
        config=config,
    )
    first = first_policy(run=run, policy=policy, config=config)
    return iterate(run=run, first=first, iterations=iterations, lag=lag, config=config)
