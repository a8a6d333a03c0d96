"""GRPO: rollout, reference scoring, advantages, buffer, training, in a loop; evaluations in between.

    pyflyte run workflows/grpo.py grpo
    pyflyte run workflows/grpo.py grpo --iterations 5 --config '{"rollout": {"groups": 64}}'

The graph is the schedule. With lag 0 rollout v waits for policy v, and on a cluster one pod does several iterations;
with lag n it samples from policy v-n, so that n rollouts run beside the training of policy v, in pods of their own.
"""

from typing import NamedTuple

from flytekit import dynamic, workflow
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.buffer.task import TrainingBatch
from tasks.config import DEFAULT_ENVIRONMENT, GrpoConfig, Run
from tasks.evaluation.task import evaluate, gather_evaluations, report
from tasks.here import is_here
from tasks.policy.task import initial_policy
from tasks.resources import pod, pod_of_ranks
from tasks.run.task import apply_retention, create_run, training_failed
from tasks.training.task import train
from tasks.warm.iteration import one_iteration
from tasks.warm.task import warm_iterations

# Iterations in one graph, and graphs in one that chains them. Flyte keeps the state of every node of a running graph in
# one Kubernetes object, of at most about 1 MB; a graph that has ended counts as a single node.
SEGMENT = 50


class Progress(NamedTuple):
    """What the next iteration, or the next graph of iterations, continues from."""

    policies: list[FlyteDirectory]  # the newest versions, the present one last
    states: list[FlyteDirectory]  # the trainer's, of the same versions; none for version 0
    batches: list[FlyteDirectory]  # those that the next training batch may draw from
    training_batch: TrainingBatch
    evaluations: list[FlyteDirectory]  # all so far, those of an earlier graph in one folder


@dynamic(**pod("graph"))
def iterate(
    run: Run,
    config: GrpoConfig,
    iterations: int,
    lag: int,
    first: FlyteDirectory,
    begin: int,
    end: int,
    policies: list[FlyteDirectory],
    states: list[FlyteDirectory],
    batches: list[FlyteDirectory],
    training_batch: TrainingBatch,
    evaluations: list[FlyteDirectory],
) -> Progress:
    """Iterations `begin` to `end` - 1, unrolled into a graph; more than SEGMENT of them as a chain of such graphs."""
    so_far = Progress(policies, states, batches, training_batch, evaluations)
    if end - begin > SEGMENT:
        size = SEGMENT
        while size * SEGMENT < end - begin:
            size *= SEGMENT
        for start in range(begin, end, size):
            stop = min(start + size, end)
            so_far = iterate(run, config, iterations, lag, first, start, stop, *so_far)
        return so_far
    # Stages are cached by their settings; the number of ranks and of pods changes no result.
    training, per_pod, config = config.training, config.cluster.iterations_per_pod or 0, config.on_one_rank()
    train.set_ranks(training)
    before, evaluations = evaluations, []
    if begin == 0:
        evaluations = [evaluate(run=run, config=config, policy=first, version=0)]
    if per_pod and not is_here():
        so_far = in_warm_pods(
            run,
            config,
            iterations,
            per_pod,
            first,
            begin,
            end,
            Progress(policies, states, batches, training_batch, evaluations),
        )
        policies, states, batches, training_batch, evaluations = so_far
        begin = end
    for v in range(begin, end):
        sampler = policies[-1 - min(lag, v)]
        made = one_iteration(
            run,
            config,
            training,
            v,
            first=first,
            sampler=sampler,
            policy=policies[-1],
            state=states[-1] if states else None,
            batches=batches,
            training_batch=training_batch,
        )
        trained, batches, training_batch = made
        if training.ranks > 1:
            trained.with_overrides(**pod_of_ranks("training", training.ranks // training.nodes))
        policies, states = [*policies, trained.policy], [*states, trained.state]
        if is_evaluated(v + 1, iterations, config):
            evaluations = [*evaluations, evaluate(run=run, config=config, policy=trained.policy, version=v + 1)]
        policies, states, unused = retained(policies, states, v + 1, iterations, config)
        if unused:
            apply_retention(run=run, folders=unused, after=trained.policy)
    if iterations > SEGMENT and len(evaluations) > 1:
        evaluations = [gather_evaluations(run=run, evaluations=evaluations, until=end)]
    return Progress(policies, states, batches, training_batch, [*before, *evaluations])


def in_warm_pods(
    run: Run,
    config: GrpoConfig,
    iterations: int,
    per_pod: int,
    first: FlyteDirectory,
    begin: int,
    end: int,
    so_far: Progress,
) -> Progress:
    """The same iterations, `per_pod` of them in one pod at a time; what they made is evaluated beside the next."""
    policies, states, batches, training_batch, evaluations = so_far
    for start in range(begin, end, per_pod):
        stop = min(start + per_pod, end)
        made = warm_iterations(
            run=run,
            config=config,
            first=first,
            begin=start,
            end=stop,
            policy=policies[-1],
            state=states[-1] if states else None,
            batches=batches,
            training_batch=training_batch,
        )
        unused = []
        for number, version in enumerate(range(start + 1, stop + 1)):
            policy = made.policies[number]
            policies, states = [*policies, policy], [*states, made.states[number]]
            if is_evaluated(version, iterations, config):
                evaluations = [*evaluations, evaluate(run=run, config=config, policy=policy, version=version)]
            policies, states, old = retained(policies, states, version, iterations, config)
            unused += old
        reach = config.buffer.max_age + 1
        batches = [*batches, *(made.batches[number] for number in range(stop - start))][-reach:]
        training_batch = made.training_batch
        if unused:
            apply_retention(run=run, folders=unused, after=policies[-1])
    return Progress(policies, states, batches, training_batch, evaluations)


def retained(
    policies: list[FlyteDirectory], states: list[FlyteDirectory], version: int, iterations: int, config: GrpoConfig
) -> tuple[list[FlyteDirectory], list[FlyteDirectory], list[FlyteDirectory]]:
    """The newest policies and states once `version` is there, and the folders that no stage reads any more."""
    last = config.retention.last
    old = version - last
    unused = []
    if old > 0:
        kept = old % config.retention.every == 0 or is_evaluated(old, iterations, config)
        unused = states[:-last] if kept else [*states[:-last], *policies[:-last]]
    return policies[-last:], states[-last:], unused


def is_evaluated(version: int, iterations: int, config: GrpoConfig) -> bool:
    """Whether a policy of the run is evaluated: every Nth, the first and the last."""
    return version % config.evaluation.every == 0 or version == iterations


def training(
    run_name: str,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    seed: int,
    lag: int,
    config: GrpoConfig,
) -> tuple[Run, GrpoConfig, FlyteDirectory, Progress, FlyteFile]:
    """A whole training, as nodes of the workflow that calls this: run, settings, policy 0, the end, summary.json."""
    run, config = create_run(run_name, policy, environment, environment_url, iterations, seed, lag, config)
    first = initial_policy(run=run, config=config)
    start = Progress(policies=[first], states=[], batches=[], training_batch=TrainingBatch(), evaluations=[])
    done = iterate(run, config, iterations, lag, first, 0, iterations, *start)
    summary = report(run=run, evaluations=done.evaluations, policies=done.policies, iterations=iterations)
    return run, config, first, done, summary


@workflow(on_failure=training_failed)
def grpo(
    run_name: str = "",
    policy: str = "tiny",
    environment: str = DEFAULT_ENVIRONMENT,
    environment_url: str = "",
    iterations: int = 24,
    seed: int = 0,
    lag: int = 0,
    config: GrpoConfig = GrpoConfig(),
) -> FlyteFile:
    """Train a chat policy with GRPO in an OpenEnv environment.

    Args:
        run_name: Folder under runs/ and name in MLflow; an interrupted run of this name goes on. Default: made from
            the date.
        policy: "tiny", made on the spot, or a Hugging Face checkpoint: its directory, its name on the hub,
            owner/name or owner/name@revision, or its name in the registry, models:/NAME@champion or models:/NAME/3.
        environment: What the policy acts in: a folder under tasks/environments/, an installed environment, or
            package.module of a module with a SPEC.
        environment_url: URL of a running OpenEnv server. Default: the environment runs in the rollout process.
        iterations: Policy versions to train.
        seed: Fixes tasks, samples, minibatches and weights.
        lag: 0 samples rollout v from policy v; n from v-n, so that on a cluster n rollouts run beside a training.
        config: Settings that differ from the defaults, as JSON or the path of a JSON or YAML file; see tasks/config.py.

    Returns:
        summary.json of the run.
    """
    *_, summary = training(run_name, policy, environment, environment_url, iterations, seed, lag, config)
    return summary
