"""What the ranks of one training do together: write one folder, and end together.

A rank is a process that torchrun, or Flyte's Elastic, started; a single rank is an ordinary process.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from tasks.folders import atomic_directory

CHUNK = 64 * 2**20  # bytes of a file that are sent at once


def is_first() -> bool:
    """Whether this is rank 0, the only one that writes results, logs and prints."""
    return not dist.is_initialized() or dist.get_rank() == 0


def leave() -> None:
    """End the process group after all ranks arrived: a rank that ends earlier looks to the others like a failed one."""
    if dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


@contextlib.contextmanager
def atomic_directory_of_ranks(target: Path) -> Iterator[Path]:
    """`atomic_directory`, into whose folder all ranks write. It is complete when the block has ended on every rank.

    Files that ranks on other nodes wrote are on those nodes' disks, and are sent to that of rank 0.
    """
    if dist.get_world_size() == 1:
        with atomic_directory(target) as folder:
            yield folder
        return
    with atomic_directory(target) if is_first() else contextlib.nullcontext() as made:
        name = [str(made)]
        dist.broadcast_object_list(name)
        folder = Path(name[0])
        folder.mkdir(parents=True, exist_ok=True)  # on another node it does not exist
        yield folder
        dist.barrier()
        _send_missing_files(folder)
    dist.barrier()


def _send_missing_files(folder: Path) -> None:
    """Copy the files in `folder` that rank 0 does not see to its disk, one after the other."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    seen: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(seen, files)
    owners = {name: rank for rank in reversed(range(len(seen))) for name in seen[rank]}  # the first that sees it
    for name, owner in owners.items():
        if owner > 0:
            _send(folder / name, owner)


def _send(path: Path, owner: int) -> None:
    """Send one file from rank `owner` to rank 0, in chunks of which the last is empty; nothing to do on other ranks."""
    if dist.get_rank() == owner:
        with path.open("rb") as file:
            chunk = [b"more"]
            while chunk[0]:
                chunk = [file.read(CHUNK)]
                dist.send_object_list(chunk, dst=0)
    elif is_first():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            chunk = [b"more"]
            while chunk[0]:
                dist.recv_object_list(chunk, src=owner)
                file.write(chunk[0])
