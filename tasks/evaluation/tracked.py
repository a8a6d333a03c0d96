"""What MLflow gets of evaluations: metrics, versions in the registry, and the text under the run's name.

**Expected reward +0.710 ±0.020** an episode of arithmetic; on the same 2,048 test tasks the baseline random gets …
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.config import GrpoConfig, Run
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation.records import Evaluation
from tasks.evaluation.table import FEW_PARTS, REWARD, cell, display_name, headline_text, headlines
from tasks.policy.checkpoint import Manifest, read_manifest
from tasks.rollout.batch import part_metric
from tasks.tracking import registry
from tasks.tracking.mlflow_store import client

INPUTS = ("iterations", "seed", "lag", "environment", "environment_url")  # of the workflow, beside policy and config


@dataclass(frozen=True)
class Origin:
    """What a run was made with: parameters and tags as MLflow keeps them, and when it was created (seconds since
    1970).

    Example: `Origin({"policy": "tiny", "training.epochs": "4"}, {"git.commit": "9c0f…", "version.torch": "2.13.0"},
    1796014266.0)`.
    """

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    started: float


def origin_of(run: Run) -> Origin | None:
    """None when MLflow does not answer: a report can do without."""
    try:
        known = client(run.tracking_uri).get_run(run.mlflow_run_id)
    except Exception:  # of whatever kind: there was no answer
        return None
    return Origin(known.data.params, known.data.tags, known.info.start_time / 1000)


def flat_metrics(evaluation: Evaluation) -> dict[str, float]:
    """The evaluation as MLflow's metrics `eval/…`."""
    reward = evaluation.reward
    found = {
        "reward_low": reward.mean - reward.ci95,
        "reward_high": reward.mean + reward.ci95,
        "sampled_reward": evaluation.sampled_reward.mean,
        **{f"pass_at_{k}": chance for k, chance in evaluation.pass_at.items()},
        **{name: results.reward.mean for name, results in evaluation.baselines.items()},
        **evaluation.means(),
    }
    parts = {
        part_metric("eval", part, name): value
        for part, of in evaluation.parts.items()
        for name, value in of.means().items()
        if name == "reward" or len(evaluation.parts) <= FEW_PARTS
    }
    return {f"eval/{name}": value for name, value in found.items()} | parts


def candidate(run: Run, config: GrpoConfig, folder: Path, uri: str, found: Evaluation) -> registry.Version:
    """The policy in `folder`, which stays at `uri`, as the registry takes it: what was measured is its tags."""
    manifest = read_manifest(folder)
    measured = {**found.means(), "reward_ci95": found.reward.ci95}
    measured |= {f"{part}.reward": of.reward.mean for part, of in found.parts.items()}
    tags = {
        **{name: f"{value:.6g}" for name, value in measured.items()},
        "tasks": str(found.tasks),
        "evaluation_seed": str(config.evaluation.seed),
        "environment": run.environment,
        "policy_version": str(manifest.version),
        "run": run.name,
    }
    model = registry.model_name(config.tracking.model, run.environment)
    return registry.Version(model, uri, manifest.digest, run_id=run.mlflow_run_id, tags=tags)


def description(
    run: Run,
    spec: EnvironmentSpec,
    evaluations: Sequence[Evaluation],
    episodes: int,
    policy: Manifest,
    uri: str,
    origin: Origin | None,
) -> str:
    """Markdown. `episodes` were played in the training, `uri` is where its last policy stays. Without an `origin`,
    where MLflow did not answer, the settings and the commit are left out."""
    first, last = evaluations[0], evaluations[-1]
    baseline = {f"the baseline {display_name(name)}": found for name, found in list(last.baselines.items())[:1]}
    others = {**baseline, "the policy before training": first}
    compared = ", ".join(f"{name} gets {cell(REWARD, found, interval=False)}" for name, found in others.items())
    metrics = headline_text(headlines(spec)[1:], last, ", ")
    trained = ""
    if origin is not None:
        rank = origin.parameters.get("training.lora.rank", "0")
        adapters = "" if rank == "0" else f" with adapters of rank {rank}"
        trained = f"trained with {origin.parameters.get('algorithm.name', '')}{adapters} "
    paragraphs = [
        f"**Expected reward {cell(REWARD, last)}** an episode of {run.environment}; on the same {last.tasks:,} "
        f"test tasks {compared}.{f' {metrics[0].upper()}{metrics[1:]}.' if metrics else ''}",
        f"{policy.version} policy versions, {episodes:,} episodes, {trained}from `{run.policy}`. "
        f"The policy, for `--policy`: `{uri}`",
    ]
    if origin is not None:
        commit, dirty = origin.tags.get("git.commit"), origin.tags.get("git.dirty") == "true"
        at = f", at commit `{commit[:12]}`{', which had changes' if dirty else ''}" if commit else ""
        # Not as a code block, whose lines do not wrap: a long one pushes the rest of the page out of sight.
        paragraphs.append(f"The same again{at}: `{command(run, origin)}`")
    return "\n\n".join(paragraphs) + "\n"


def command(run: Run, origin: Origin) -> str:
    """The command that trains with the same inputs and settings, under a new name."""
    line = ["pyflyte", "run", "workflows/grpo.py", "grpo", "--policy", run.policy]
    for name in INPUTS:
        if origin.parameters.get(name):
            line += [f"--{name}", origin.parameters[name]]
    if given := run.given.to_dict():
        line += ["--config", json.dumps(given)]
    return shlex.join(line)
