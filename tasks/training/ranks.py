"""What the ranks of one training do together beside training: one folder, and an orderly end.

A rank is a process that torchrun, or Flyte's Elastic, started. Where there is one only, nobody started it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from tasks.folders import atomic_directory
from tasks.training.titan import titan_utils

PIECE = 64 * 2**20  # bytes of a file that travel at once


def is_first() -> bool:
    """Whether this rank speaks for all: it writes, logs and prints."""
    return not dist.is_initialized() or dist.get_rank() == 0


def leave() -> None:
    """End the group of several ranks once all are here: one that is gone earlier looks like one that failed."""
    if dist.get_world_size() > 1:
        dist.barrier()
        dist.destroy_process_group()


@contextlib.contextmanager
def atomic_directory_of_ranks(target: Path) -> Iterator[Path]:
    """`atomic_directory`, into whose folder all ranks write. It is in its place when the block has ended on every rank.

    What ranks on other nodes wrote lies on their disks, and is brought to that of rank 0.
    """
    if dist.get_world_size() == 1:
        with atomic_directory(target) as folder:
            yield folder
        return
    with atomic_directory(target) if is_first() else contextlib.nullcontext() as made:
        told = [str(made)]
        dist.broadcast_object_list(told)
        folder = Path(told[0])
        folder.mkdir(parents=True, exist_ok=True)  # on another node it is not there
        yield folder
        dist.barrier()
        _bring_to_the_first(folder)
    dist.barrier()


def _bring_to_the_first(folder: Path) -> None:
    """Copy the files that rank 0 cannot see in `folder` to its disk, one after the other, in pieces."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    seen: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(seen, files)
    known = set(seen[0])
    for owner, names in enumerate(seen):
        for name in names:
            if name not in known:
                known.add(name)
                _send(folder / name, owner)


def _send(path: Path, owner: int) -> None:
    """One file from rank `owner` to rank 0; the others pass."""
    if (rank := dist.get_rank()) not in (0, owner):
        return
    device = torch.device(titan_utils.device_type)
    size = torch.tensor([path.stat().st_size if rank == owner else 0], device=device)
    if rank == owner:
        dist.send(size, 0)
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                dist.send(torch.frombuffer(bytearray(piece), dtype=torch.uint8).to(device), 0)
        return
    dist.recv(size, owner)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, left := int(size), PIECE):
            piece = torch.empty(min(PIECE, left - start), dtype=torch.uint8, device=device)
            dist.recv(piece, owner)
            file.write(piece.cpu().numpy().tobytes())
