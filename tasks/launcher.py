"""Whether torchrun, or Flyte's Elastic, started this process as one of several ranks.

A job launcher may leave WORLD_SIZE and its kin in the environment of a process that it did not start as a rank: these
count only beside the variable that torchrun sets for its own.
"""

import os


def started_as_rank() -> bool:
    """Whether this process is a rank."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def world_size() -> int:
    """The ranks of the training that this process is one of; 1 for an ordinary process."""
    return int(os.environ["WORLD_SIZE"]) if started_as_rank() else 1
