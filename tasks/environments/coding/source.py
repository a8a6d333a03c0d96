"""Where problems come from: the generator, HumanEval, or a user's file."""

from collections.abc import Iterable, Sequence

from tasks.environments.coding.families import FAMILIES
from tasks.environments.coding.humaneval import humaneval
from tasks.environments.coding.own import read_problems
from tasks.environments.coding.problems import Problem, build, find_variant
from tasks.environments.interface import Split, Task
from tasks.seeds import derived_seed
from tasks.settings import require

SOURCES = ("generated", "humaneval", "file")
KINDS = tuple(dict.fromkeys(family.kind for family in FAMILIES.values()))
LEVELS = (1, 2, 3)


class ProblemSource:
    """Gives the tasks and their problems. Raises ValueError, in one sentence, for options that do not fit."""

    def __init__(self, problems: str, families: object, difficulty: object, path: str) -> None:
        require(problems in SOURCES, "problems", problems, ", ".join(SOURCES))
        require(problems == "file" or not path, "path", path, 'none, unless problems is "file"')
        only_generated = "none, unless problems is generated"
        require(problems == "generated" or families is None, "families", families, only_generated)
        require(problems == "generated" or difficulty is None, "difficulty", difficulty, only_generated)
        self.problems = problems
        self.families = _chosen_families(families, difficulty)
        self.references_checked = problems != "file"
        if problems == "file":
            self.own = read_problems(path)

    @property
    def test_tasks(self) -> int | None:
        """How many test tasks there are; None: no end of them."""
        return None if self.problems == "generated" else len(self._fixed("test"))

    def task(self, split: Split, index: int) -> Task:
        """Raises ValueError for a training task of HumanEval."""
        seed = derived_seed("coding", split, index)
        if self.problems == "generated":
            family = self.families[seed % len(self.families)]
            variant, name = find_variant(family, split, seed)
            return Task(id=name, split=split, seed=variant, data={"family": family, "level": FAMILIES[family].level})
        found = self._fixed(split)
        place = index if split == "test" else seed % len(found)
        problem = found[place]
        data = {"family": problem.family, "place": place}
        return Task(id=problem.id, split=split, seed=seed, data=data)

    def problem(self, task: Task) -> Problem:
        """The task's problem, with its hidden tests."""
        if self.problems == "generated":
            return build(task.data["family"], task.seed)
        return self._fixed(task.split)[task.data["place"]]

    def with_references(self) -> Iterable[Problem]:
        """The user's problems that have a reference solution."""
        return [p for split in ("train", "test") for p in self._fixed(split) if p.reference]

    def _fixed(self, split: Split) -> Sequence[Problem]:
        if self.problems == "file":
            return self.own[split]
        allowed = "generated, file in training: HumanEval is for evaluation only"
        require(split == "test", "problems", "humaneval", allowed)
        return humaneval()


def _chosen_families(families: object, difficulty: object) -> list[str]:
    """Names of families by names of families or kinds, and by levels."""
    words, levels = _listed(families, str), _listed(difficulty, int)
    for word in words:
        require(word in FAMILIES or word in KINDS, "families", word, ", ".join([*KINDS, *FAMILIES]))
    for level in levels:
        require(level in LEVELS and not isinstance(level, bool), "difficulty", level, "1, 2, 3, or a list of these")
    found = [
        name
        for name, family in FAMILIES.items()
        if (not words or name in words or family.kind in words) and (not levels or family.level in levels)
    ]
    require(bool(found), "difficulty", difficulty, "one that the chosen families have")
    return found


def _listed(given: object, kind: type) -> list[object]:
    return [] if given is None else [given] if isinstance(given, kind) else list(given)  # type: ignore[call-overload]
