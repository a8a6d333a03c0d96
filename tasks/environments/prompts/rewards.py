"""A user's reward functions, `package.module:function`, of one of two kinds, plain or async:

    def exact(prompt, reply, row): return float(reply.strip() == row["answer"])

    def exact(completions, answer, **kwargs): return [float(c.strip() == a) for c, a in zip(completions, answer)]

The second kind is what trainers with reward functions take, such as TRL's GRPOTrainer: it is known by its parameter
`completions`. It is called with lists of one: `prompts`, `completions` (a text, or a list of one message where the
prompt has messages) and each of the data's columns. Either kind may return None where it does not apply.
"""

import asyncio
import copy
import functools
import importlib
import inspect
import math
import multiprocessing
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tasks.environments.prompts.data import Row
from tasks.settings import require

THREADS = 64  # as many calls of the environment are awaited at once, by default
OPTION = "option reward"
GIVEN = {"prompts", "completions", "trainer_state"}  # to a function of the second kind, beside the columns


@dataclass(frozen=True)
class Reward:
    """One of the functions. Example: `Reward("my.rewards:exact", "exact", 1.0)`."""

    reference: str
    name: str  # of its metric
    weight: float

    def check_columns(self, columns: set[str]) -> None:
        """Raise ValueError for a function that needs a column which is not in every row."""
        if takes_lists(function := load(self.reference)):
            needed = [p.name for p in _named(function) if p.default is p.empty and p.name not in GIVEN]
            for name in needed:
                allowed = f"functions of the columns that every row has: {', '.join(sorted(columns))}"
                require(name in columns, f"{OPTION}, by its parameter {name},", self.reference, allowed)

    async def __call__(self, prompt: Any, reply: str, row: Row, processes: int = 0) -> float | None:
        """What the function says of a reply; None where it does not apply.

        A plain function is called in a thread or, with `processes`, in one of so many processes. Raises ValueError for
        what is no finite number.
        """
        function = load(self.reference)
        if inspect.iscoroutinefunction(function):
            value = await _call(function, prompt, reply, row)
        else:
            loop, executor = asyncio.get_running_loop(), _executor(processes)
            value = await loop.run_in_executor(executor, _call_named, self.reference, prompt, reply, row)
        return _number(self.reference, value, takes_lists(function))


@functools.lru_cache(maxsize=1)
def _executor(processes: int) -> Executor:
    if processes:
        return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    return ThreadPoolExecutor(THREADS, "reward")


def _call_named(reference: str, prompt: Any, reply: str, row: Row) -> Any:
    return _call(load(reference), prompt, reply, row)


def _call(function: Callable[..., Any], prompt: Any, reply: str, row: Row) -> Any:
    prompt, row = copy.deepcopy((prompt, row))  # the function may change them
    if not takes_lists(function):
        return function(prompt, reply, row)
    said = reply if isinstance(prompt, str) else [{"role": "assistant", "content": reply}]
    known = {name: [value] for name, value in row.items()}
    known |= {"prompts": [prompt], "completions": [said], "trainer_state": None}
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
        return function(**known)
    return function(**{p.name: known[p.name] for p in _named(function) if p.name in known})


def _number(reference: str, value: Any, of_lists: bool) -> float | None:
    if of_lists:
        many = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1
        require(many, f"what {reference} returned", value, "a list with a number for each completion")
        value = value[0]
    if value is None:
        return None
    allowed = "a finite number, or None"
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    require(math.isfinite(number), f"what {reference} returned", value, allowed)
    return number


def takes_lists(function: Callable[..., Any]) -> bool:
    """Whether it is of the second kind."""
    return "completions" in inspect.signature(function).parameters


def _named(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def load(reference: str) -> Callable[..., Any]:
    """The function `package.module:function`. ValueError, in one sentence, where there is none."""
    allowed = "package.module:function, of a module on PYTHONPATH"
    require(re.fullmatch(r"[\w.]+:[\w.]+", reference) is not None, OPTION, reference, allowed)
    module, _, name = reference.partition(":")
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks a package of its own
        found = None
    except AttributeError:
        found = None
    require(callable(found), OPTION, reference, allowed)
    return found  # type: ignore[return-value]


def read_rewards(given: Any) -> tuple[Reward, ...]:
    """The functions that the option names: one, a list, or weights by name; ValueError for what is none of these."""
    listed = [given] if isinstance(given, str) else given
    weights = listed if isinstance(listed, Mapping) else dict.fromkeys(listed if isinstance(listed, list) else [], 1.0)
    named = bool(weights) and all(isinstance(reference, str) for reference in weights)
    require(named, OPTION, given, "package.module:function, a list of such, or their weights by name")
    for reference, weight in weights.items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool) and math.isfinite(weight)
        require(number and weight >= 0, f"the weight of {reference}", weight, "0 or more")
        function = load(reference)
        if not takes_lists(function):
            try:
                inspect.signature(function).bind("prompt", "reply", {})
            except TypeError:
                require(False, OPTION, reference, "a function of prompt, reply and row, or of completions")
    require(sum(weights.values()) > 0, f"the sum of the weights in {OPTION}", 0, "more than 0")
    names = [reference.rpartition(":")[2] for reference in weights]
    return tuple(
        Reward(reference, name if names.count(name) == 1 else reference.replace(":", "."), float(weight))
        for name, (reference, weight) in zip(names, weights.items(), strict=True)
    )
