"""Problems and the tests that their reference solutions give.

family, seed ──► Draft ──► Problem: text, signature, reference solution ──► 10 hidden tests, 2 shown examples
"""

import copy
import hashlib
import random
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tasks.environments.coding.families import FAMILIES
from tasks.environments.coding.families.draft import Arguments, Draft, Family
from tasks.environments.interface import Split
from tasks.seeds import derived_seed

HIDDEN, SHOWN = 10, 2
TEST_SHARE = 8  # one variant in so many is a test problem


@dataclass(frozen=True)
class Case:
    """One call and what it has to return. Example: `Case(([3, 4],), 7)`."""

    arguments: Arguments
    expected: Any


@dataclass(frozen=True)
class Problem:
    """A function to be written. Example: id "digits-9f2c01ab54d3e6f7", name "digits", signature "(n: int) -> int"."""

    id: str
    family: str
    kind: str
    level: int
    name: str
    question: str  # as the policy sees it
    cases: tuple[Case, ...]
    reference: str = ""  # source; "": there is none
    setup: str = ""  # code that is run before the candidate's
    where: str = ""  # its line in a file
    check: str = ""  # HumanEval's: `def check(candidate)`, in place of cases


@lru_cache(maxsize=65536)
def find_variant(family: str, split: Split, seed: int) -> tuple[int, str]:
    """The seed of a variant of this split, and the problem's id. A variant's own code decides its split."""
    attempt = 0
    while True:
        at = derived_seed("variant", split, seed, attempt)
        name = problem_id(FAMILIES[family], FAMILIES[family].write(random.Random(at)))
        if (int(name[-16:], 16) % TEST_SHARE == 0) == (split == "test") and not _is_trivial(build(family, at)):
            return at, name
        attempt += 1


def problem_id(family: Family, draft: Draft) -> str:
    """Equal for two drafts that ask for the same, in whatever words."""
    code = f"{family.name}({draft.parameters})\n{draft.body}"
    return f"{family.name}-{hashlib.blake2b(code.encode(), digest_size=8).hexdigest()}"


@lru_cache(maxsize=4096)
def build(family: str, seed: int) -> Problem:
    """The problem of a variant; equal arguments give equal problems."""
    of = FAMILIES[family]
    draft = of.write(random.Random(seed))
    name = problem_id(of, draft)
    header = f"def {of.name}({draft.parameters}) -> {draft.returns}:"
    reference = f"{header}\n{textwrap.indent(draft.body, '    ')}\n"
    cases = _cases(draft, _function(reference, of.name), random.Random(name))
    shown = "\n".join(f"{of.name}({_arguments(c.arguments)}) == {c.expected!r}" for c in cases[:SHOWN])
    question = f"Write a Python function `{header[4:-1]}`.\n{draft.text}\nExamples:\n{shown}"
    return Problem(name, of.name, of.kind, of.level, of.name, question, tuple(cases[SHOWN:]), reference)


def _is_trivial(problem: Problem) -> bool:
    """Whether one constant passes more than half of the tests: a variant that keeps nothing, say."""
    return max(Counter(repr(case.expected) for case in problem.cases).values()) > HIDDEN // 2


def _arguments(arguments: Arguments) -> str:
    return ", ".join(map(repr, arguments))


def _function(source: str, name: str) -> Callable[..., Any]:
    """The function of a reference solution: our own code, the only one that runs in this process."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace[name]


def _cases(draft: Draft, function: Callable[..., Any], rng: random.Random) -> list[Case]:
    """Two examples and the hidden cases, all different, with results as varied as they come."""
    drawn = [draft.inputs(rng) for _ in range(4 * HIDDEN)]
    found: dict[str, Case] = {}
    for arguments in [*draft.edges, *drawn]:
        expected = function(*copy.deepcopy(arguments))
        found.setdefault(repr(arguments), Case(arguments, expected))
    edges = {repr(arguments) for arguments in draft.edges}
    varied = _rarest_first([case for key, case in found.items() if key not in edges])
    return [*varied[:SHOWN], *(found[key] for key in edges_in_order(draft)), *varied[SHOWN:]][: SHOWN + HIDDEN]


def edges_in_order(draft: Draft) -> list[str]:
    """The edge cases' keys, each once."""
    return list(dict.fromkeys(repr(arguments) for arguments in draft.edges))


def _rarest_first(cases: Sequence[Case]) -> list[Case]:
    """First a case of each result, then a second one of each, and so on: no constant passes many tests."""
    met: Counter[str] = Counter()
    ranks = []
    for case in cases:
        ranks.append(met[repr(case.expected)])
        met[repr(case.expected)] += 1
    return [cases[i] for i in sorted(range(len(cases)), key=lambda i: ranks[i])]
