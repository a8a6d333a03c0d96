"""Whether a policy takes the champion's place, and why.

    comparison on fresh tasks ─► surely better? ─► still the champion that it was compared with? ─► alias champion

It does when the whole 95 % interval of the paired difference is above 0. The interval is two-sided, so a policy that is
exactly as good as the champion is promoted in 2.5 % of the comparisons, about nine nights a year, and a worse one less
often; such a mistake costs a difference too small to be measured. Each comparison has its own tasks, and a training has
one comparison, at its end: there is no second try, and no best of several.
"""

from dataclasses import dataclass

from tasks.config import Run
from tasks.evaluation.compare import Comparison
from tasks.json_records import Record
from tasks.tracking import registry


@dataclass(frozen=True)
class Decision(Record):
    """What became of a trained policy. Example: `Decision(promoted=True, why="version 7 of grpo-calculator is champion,
    in the place of version 3: +0.0311 ±0.0076 an episode on …", model="grpo-calculator", version=7, …)`."""

    promoted: bool
    why: str  # one sentence
    model: str
    version: int
    difference: float
    difference_ci95: float
    tasks: int
    seed: int


def decide(run: Run, version: registry.Version, comparison: Comparison) -> Decision:
    """Promote the version when it is surely better than the champion; note the decision with version and run."""
    uri, model = run.tracking_uri, version.model
    found = comparison.in_words
    if comparison.surely_better:
        promoted, why = registry.promote(uri, model, version.number, found, over=comparison.other)
    else:
        present = registry.champion(uri, model)
        stays = f"version {present.number} of {model} stays champion" if present else f"{model} has no champion yet"
        than = "it" if present else "what it was trained from"
        promoted, why = False, f"{stays}, version {version.number} is not surely better than {than}: {found}"
    numbers = {name: getattr(comparison, name) for name in ("difference", "difference_ci95", "tasks", "seed")}
    compared = {f"comparison.{name}": value for name, value in numbers.items()}
    registry.note(uri, model, version.number, why, run_id=run.mlflow_run_id, **compared)
    return Decision(promoted=promoted, why=why, model=model, version=version.number, **numbers)
