"""Removes old policy versions and trainer states of a run, which no later stage reads.

The folders stay, with a note in each: they are the results of cached stages, which look for them.
"""

from fsspec import AbstractFileSystem

from tasks.policy.checkpoint import REMOVED


def empty(files: AbstractFileSystem, folder: str) -> None:
    """Remove what `folder`, on a disk or in object storage, holds of a policy or of a trainer's state.

    `policy.json` goes first, so that a process killed in between leaves nothing that looks like a whole policy.
    Metrics, in files that begin with an underscore, stay.
    """
    if not files.isdir(folder) or files.exists(f"{folder}/{REMOVED}"):
        return
    if files.exists(f"{folder}/policy.json"):
        files.rm_file(f"{folder}/policy.json")
    for path in files.ls(folder, detail=False):
        if not path.rstrip("/").rpartition("/")[2].startswith("_"):
            files.rm(path, recursive=True)
    files.pipe_file(f"{folder}/{REMOVED}", b"Removed by the run's own settings: retention.last and retention.every.\n")
