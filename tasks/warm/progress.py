"""What a warm pod has done so far, kept beside policy 0: one that takes over after it goes on with the next iteration.

    …/policies/00000 ─► …/policies/00000.progress/00004.json   written when all that iteration 4 made is in place

Not Flyte's checkpoints: those of an attempt are found by the next one alone, so that a pod that is lost before its
first line of work would lose all.
"""

import json
from dataclasses import dataclass

from fsspec import AbstractFileSystem

from tasks.buffer.training_batch import TrainingBatch
from tasks.config import Run
from tasks.json_records import Record
from tasks.stages import CACHE_VERSION


@dataclass(frozen=True)
class Finished(Record):
    """An iteration that is done: URIs of what it made.

    Example: `Finished("6f9c…", "8", "s3://…/policies/00005", "s3://…/states/00005", "s3://…/trajectories/00004",
    TrainingBatch(…))`.
    """

    token: str  # of the run
    cache_version: str
    policy: str
    state: str
    batch: str
    training_batch: TrainingBatch


@dataclass(frozen=True)
class Progress:
    """The iterations of one run that are done, in the file system that holds its policy 0."""

    files: AbstractFileSystem
    first: str  # URI of policy 0
    run: Run

    def _path(self, iteration: int) -> str:
        return f"{self.first.rstrip('/')}.progress/{iteration:05d}.json"

    def find(self, iteration: int) -> Finished | None:
        """What the iteration made; None where it was not done, by another run or by code that gives other results."""
        path = self._path(iteration)
        if not self.files.exists(path):
            return None
        found = Finished.from_dict(json.loads(self.files.cat_file(path)))
        return found if (found.token, found.cache_version) == (self.run.token, CACHE_VERSION) else None

    def keep(self, iteration: int, policy: str, state: str, batch: str, training_batch: TrainingBatch) -> None:
        """Write it down, when all of it is in place."""
        done = Finished(self.run.token, CACHE_VERSION, policy, state, batch, training_batch)
        self.files.makedirs(self._path(iteration).rpartition("/")[0], exist_ok=True)
        self.files.pipe_file(self._path(iteration), json.dumps(done.to_dict()).encode())
