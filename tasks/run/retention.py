"""What a run leaves behind of policy versions and trainer states that nothing in it will read again.

The folders stay, emptied, with a note: cached stages whose result they are still find them.
"""

from fsspec import AbstractFileSystem

from tasks.policy.checkpoint import REMOVED


def empty(files: AbstractFileSystem, folder: str) -> None:
    """Remove what `folder`, on a disk or in object storage, holds of a policy or of a trainer's state.

    `policy.json` goes first, so that a process killed here leaves nothing that looks like a policy and is none. What
    the training measured, in files that begin with an underscore, stays.
    """
    if not files.isdir(folder) or files.exists(f"{folder}/{REMOVED}"):
        return
    if files.exists(f"{folder}/policy.json"):
        files.rm_file(f"{folder}/policy.json")
    for path in files.ls(folder, detail=False):
        if not path.rstrip("/").rpartition("/")[2].startswith("_"):
            files.rm(path, recursive=True)
    files.pipe_file(f"{folder}/{REMOVED}", b"Removed by the run's own settings: retention.last and retention.every.\n")
