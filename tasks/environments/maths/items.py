"""Items of reasoning-gym's data sets, one at a time.

Each item is a data set of size 1 with a seed of its own: within the library (seed 10, index 1) is (seed 11, index 0),
by which neighbouring seeds would share items between training and test. An item's own text decides its split, so that a
test problem is never a training problem, however few a data set has.
"""

import contextlib
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tasks.environments.interface import Split
from tasks.seeds import derived_seed

SEED_BITS = 31  # what every data set takes
_ATTEMPTS = 200


@dataclass(frozen=True)
class Item:
    """One problem. Example: `Item("chain_sum", 17, "What is 4 + 3?", "7", entry, dataset)`."""

    dataset: str
    seed: int
    question: str
    answer: str
    entry: Mapping[str, Any]  # as the library's scorers take it
    source: Any  # the data set

    @property
    def id(self) -> str:
        """What problem it is."""
        text = f"{self.question}\n{self.answer}"
        return f"{self.dataset}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


class Items:
    """Makes items with the settings of each data set. Raises ValueError for settings that a data set does not take."""

    def __init__(self, difficulty: int | None, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self.difficulty, self.parameters = difficulty, parameters
        self.make = lru_cache(maxsize=4096)(self._make)
        self.find = lru_cache(maxsize=65536)(self._find)

    def _make(self, dataset: str, seed: int) -> Item:
        from reasoning_gym.factory import create_dataset

        source = create_dataset(dataset, seed=seed, size=1, **self.settings(dataset))
        with contextlib.redirect_stdout(io.StringIO()):  # some print dots
            entry = source[0]
        return Item(dataset, seed, entry["question"], str(entry["answer"]), entry, source)

    def settings(self, dataset: str) -> dict[str, Any]:
        """Of the data set: its curriculum's at the difficulty, then the user's own."""
        from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

        found: dict[str, Any] = {}
        if self.difficulty is not None:
            if not has_curriculum(dataset):
                raise ValueError(f'difficulty is {self.difficulty}, and "{dataset}" has no levels; allowed: none.')
            curriculum = create_curriculum(dataset)
            curriculum.set_global_level(self.difficulty)
            level = vars(curriculum.generate_configuration())
            found = {name: value for name, value in level.items() if name not in ("seed", "size")}
        given = dict(self.parameters.get(dataset, {}))
        known = [name for name in DATASETS[dataset][1].__dataclass_fields__ if name not in ("seed", "size")]
        for name in given:
            if name not in known:
                raise ValueError(f'parameters of "{dataset}" have "{name}"; allowed: {", ".join(known)}.')
        return found | given

    def _find(self, dataset: str, split: Split, seed: int) -> Item:
        """An item of the split; equal arguments give equal items."""
        for attempt in range(_ATTEMPTS):
            item = self.make(dataset, derived_seed("item", split, seed, attempt, bits=SEED_BITS))
            if split_of(item) == split and item.answer.strip():
                return item
        raise ValueError(f'"{dataset}" has too few items to train and to test on; allowed: one with more.')


def split_of(item: Item) -> Split:
    """Half of all problems are for each."""
    return "test" if int(item.id[-16:], 16) % 2 == 0 else "train"
