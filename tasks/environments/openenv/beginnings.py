"""What an episode on a server begins with: a seed, or an opening, and whether the same one gives the same beginning.

    seeds      reset(seed)                        a server whose resets depend on the seed alone
    openings   reset ──► reply ──► … ──► reply    a server with one beginning: replies that a group's episodes replay

From a reset that chance decides no replies lead back to another one's, so there openings do not help either.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tasks.environments.interface import Environment, Message, Split, Task
from tasks.seeds import derived_seed
from tasks.settings import require

SEED_BITS = 30  # servers may take 32 bits with a sign
SEEDS = 5  # that are looked at for a reset that differs
TEST_SHARE = 4  # one opening of so many is for tests
LOOKED_AT = 64  # openings at most, before any work


def by_seed(split: Split, index: int) -> Task:
    """A seed: even ones are for training, odd ones for tests."""
    seed = 2 * derived_seed("openenv", split, index, bits=SEED_BITS) + (split == "test")
    return Task(id=str(seed), split=split, seed=seed)


class Openings:
    """The openings that a user gave, each for training or for tests. Raises ValueError for what is none.

    Example: `Openings([["e4", "e5"], ["d4", "d5"], ["c4", "e5"]])` has one for tests.
    """

    def __init__(self, given: Any) -> None:
        lists = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 1
        texts = lists and all(isinstance(one, list | tuple) and all(isinstance(r, str) for r in one) for one in given)
        require(texts, "option openings", given, 'two or more lists of replies, such as [["e4", "e5"], ["d4", "d5"]]')
        named = {json.dumps(list(one), ensure_ascii=False): tuple(one) for one in given}
        require(len(named) == len(given), "option openings", given, "each opening once")
        names = sorted(named, key=lambda name: derived_seed("opening", name))
        cut = -(-len(names) // TEST_SHARE)
        self.named, self.of = named, {"test": names[:cut], "train": names[cut:]}

    def task(self, split: Split, index: int) -> Task:
        """The opening of a task: any of those for training, the test ones in their order."""
        names = self.of[split]
        place = index if split == "test" else derived_seed("openenv", index)
        return self._task(split, names[place % len(names)])

    def some(self) -> list[Task]:
        """The first ones, to be looked at."""
        return [self._task(split, name) for split in ("train", "test") for name in self.of[split]][:LOOKED_AT]

    def _task(self, split: Split, name: str) -> Task:
        seed = derived_seed("opening", name, bits=SEED_BITS)
        return Task(id=name, split=split, seed=seed, data={"opening": list(self.named[name])})


async def check_beginnings(url: str, local: Callable[[], Environment], openings: Openings | None) -> None:
    """Begin a few episodes, the first one twice. Raises ValueError, in one sentence, where the same beginning tells
    another thing, or no other beginning does."""
    tasks = openings.some() if openings else [by_seed("train", index) for index in range(SEEDS)]
    environment = local()
    try:
        found: list[list[Message]] = [list((await environment.reset(task)).messages) for task in (tasks[0], *tasks)]
    finally:
        await environment.close()
    how = f"the opening {tasks[0].id}" if openings else f"the seed {tasks[0].seed}"
    if found[0] != found[1]:
        told = f"and two resets with {how} tell different things"
        why = "chance decides there, and no replies lead back to what it decided"
        allowed = "a server whose resets depend on the seed alone, or option unseeded, without openings"
        raise ValueError(f'option url is "{url}", {told}: {why}; allowed: {allowed}.')
    if all(messages == found[0] for messages in found):
        told = f"whose resets with {len(tasks)} {'openings' if openings else 'seeds'} all tell the same"
        more = "" if openings else "option openings, replies that lead from this one beginning to others, "
        allowed = f"another beginning for another {'opening' if openings else 'seed'}, {more}or option unseeded"
        raise ValueError(f'option url is "{url}", {told}; allowed: {allowed}.')
