"""The text under a run's name in MLflow: its result, what was trained, where the policy is, how to train it again.

**Expected reward +0.710 ±0.020** an episode of calculator; on the same 2,048 test tasks the baseline random gets …
"""

import json
import shlex
from collections.abc import Sequence

from tasks.config import Run
from tasks.environments.interface import EnvironmentSpec
from tasks.evaluation.origin import Origin
from tasks.evaluation.records import Evaluation
from tasks.evaluation.table import REWARD, cell, display_name, headline_text, headlines
from tasks.policy.checkpoint import Manifest

INPUTS = ("iterations", "seed", "lag", "environment", "environment_url")  # of the workflow, beside policy and config


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
    paragraphs = [
        f"**Expected reward {cell(REWARD, last)}** an episode of {run.environment}; on the same {last.tasks:,} "
        f"test tasks {compared}.{f' {metrics[0].upper()}{metrics[1:]}.' if metrics else ''}",
        f"{policy.version} policy versions, {episodes:,} episodes, {_algorithm(origin)}from `{run.policy}`. "
        f"The policy, for `--policy`: `{uri}`",
    ]
    if origin is not None:
        # Not as a code block, whose lines do not wrap: a long one pushes the rest of the page out of sight.
        paragraphs.append(f"The same again{_commit(origin)}: `{command(run, origin)}`")
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


def _algorithm(origin: Origin | None) -> str:
    if origin is None:
        return ""
    rank = origin.parameters.get("training.lora.rank", "0")
    adapters = "" if rank == "0" else f" with adapters of rank {rank}"
    return f"trained with {origin.parameters.get('algorithm.name', '')}{adapters} "


def _commit(origin: Origin) -> str:
    if "git.commit" not in origin.tags:
        return ""
    changes = ", which had changes" if origin.tags.get("git.dirty") == "true" else ""
    return f", at commit `{origin.tags['git.commit'][:12]}`{changes}"
