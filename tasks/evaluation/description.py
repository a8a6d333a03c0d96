"""What stands under a run's name in MLflow: its result, what was trained, where the policy lies, how to train it again.

**Expected reward -0.048 ±0.021** a game of blackjack; on the same 8,192 held-out decks the optimum gets -0.036, …
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.config import GrpoConfig, Run
from tasks.evaluation.evaluate import Evaluation
from tasks.evaluation.page import Origin, table_columns
from tasks.policy.checkpoint import Manifest
from tasks.tracking import console

INPUTS = ("iterations", "seed", "lag", "environment", "environment_url")  # of the workflow, beside policy and config


def description(
    run: Run, evaluations: Sequence[Evaluation], games: int, policy: Manifest, place: str, origin: Origin | None
) -> str:
    """Markdown. `games` were played in the training, `place` is where its last policy lies; without an `origin`,
    where MLflow did not answer, it does not say what made the run."""
    first, last = table_columns(evaluations[0]), table_columns(evaluations[-1])
    algorithm = "" if origin is None else f"trained with {_algorithm(origin.parameters)} "
    paragraphs = [
        f"**Expected reward {console.value(last, 'expected_reward', 'expected_reward_ci95')}** a game of "
        f"{run.environment}; on the same {evaluations[-1].games:,} held-out decks the optimum gets "
        f"{last['optimum_expected_reward']:+.3f}, the policy before training {first['expected_reward']:+.3f}. "
        f"Regret {console.value(last, 'regret', 'regret_ci95')}.",
        f"{policy.version} policy versions, {games:,} games, {algorithm}from `{run.policy}`. "
        f"The policy, for `--policy`: `{place}`",
    ]
    if origin is not None:
        # Not as a block, whose lines do not wrap: a long one pushes the rest of the page out of sight.
        paragraphs.append(f"The same again{_commit(origin.tags)}: `{command(run, origin.parameters)}`")
    return "\n\n".join(paragraphs) + "\n"


def command(run: Run, parameters: Mapping[str, str]) -> str:
    """What trains a run with the same inputs and settings, under a new name; `parameters` as MLflow keeps them."""
    line = ["pyflyte", "run", "workflows/grpo.py", "grpo", "--policy", run.policy]
    for name in INPUTS:
        if parameters.get(name):
            line += [f"--{name}", parameters[name]]
    changed = _changed(GrpoConfig().to_dict(), parameters)
    if changed:
        line += ["--config", json.dumps(changed)]
    return shlex.join(line)


def _algorithm(parameters: Mapping[str, str]) -> str:
    rank = parameters.get("training.lora.rank", "0")
    return parameters.get("algorithm.name", "") + ("" if rank == "0" else f" with adapters of rank {rank}")


def _commit(tags: Mapping[str, str]) -> str:
    if "git.commit" not in tags:
        return ""
    changes = ", which had changes" if tags.get("git.dirty") == "true" else ""
    return f", at commit `{tags['git.commit'][:12]}`{changes}"


def _changed(defaults: Mapping[str, Any], parameters: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """The settings that are not the defaults, nested as `--config` takes them."""
    changed: dict[str, Any] = {}
    for name, default in defaults.items():
        given = parameters.get(f"{prefix}{name}", str(default))
        if isinstance(default, dict):
            if nested := _changed(default, parameters, f"{prefix}{name}."):
                changed[name] = nested
        elif given != str(default):
            changed[name] = given == "True" if isinstance(default, bool) else type(default)(given)
    return changed
