"""Samples of many lengths as dense rows of tokens.

Axes: R samples (see `records.py`: nearly always a trajectory is one), N tokens of all samples one behind the other,
B rows, T tokens of a row.

Several samples share a row, one behind the other; positions start at 0 with each, which is also how the attention mask
tells them apart. Samples of one trajectory may be in different rows. Nothing is cut: a sample that does not fit a row
is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from tasks.records import trajectory_numbers


@dataclass(frozen=True)
class Ragged:
    """The token columns of R samples as flat arrays; sample r is `[offsets_R[r]:offsets_R[r + 1]]`."""

    offsets_R: np.ndarray  # int64 [R + 1]
    token_ids_N: np.ndarray  # int64 [N]
    action_mask_N: np.ndarray  # bool [N], true where the policy sampled
    numbers_R: np.ndarray | None = None  # int64 [R], which trajectory each is of; None: each is one of its own

    def __len__(self) -> int:
        return len(self.offsets_R) - 1

    @property
    def trajectory_R(self) -> np.ndarray:
        """Which trajectory each sample is of: 0, 1, …"""
        return np.arange(len(self)) if self.numbers_R is None else self.numbers_R

    @property
    def lengths_R(self) -> np.ndarray:
        """Tokens of each sample."""
        return np.diff(self.offsets_R)

    @property
    def sampled_R(self) -> np.ndarray:
        """Sampled tokens of each sample."""
        return np.diff(np.concatenate([[0], np.cumsum(self.action_mask_N)])[self.offsets_R])

    @property
    def trajectory_sampled_R(self) -> np.ndarray:
        """Sampled tokens of the whole trajectory that each sample is of."""
        return np.bincount(self.trajectory_R, weights=self.sampled_R)[self.trajectory_R]


def flat(table: pa.Table, column: str) -> np.ndarray:
    """The values of a list column, one row behind the other."""
    return table[column].combine_chunks().flatten().to_numpy(zero_copy_only=False)


def ragged(table: pa.Table) -> Ragged:
    """The token columns of a batch."""
    lengths = pc.list_value_length(table["token_ids"]).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
    return Ragged(
        offsets_R=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_ids_N=flat(table, "token_ids").astype(np.int64),
        action_mask_N=flat(table, "action_mask").astype(bool),
        numbers_R=trajectory_numbers(table)[0],
    )


def plan_rows(lengths_R: np.ndarray, members: Sequence[int], seq_len: int) -> list[list[int]]:
    """Spread samples over rows of at most `seq_len` tokens: longest first, each into the first row with room.

    Raises ValueError when one is longer than a row.
    """
    longest = max((int(lengths_R[r]) for r in members), default=0)
    if longest > seq_len:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at least {longest}, the longest trajectory's tokens."
        )
    rows: list[list[int]] = []
    room: list[int] = []
    for r in sorted(members, key=lambda r: (-lengths_R[r], r)):
        length = int(lengths_R[r])
        row = next((i for i, free in enumerate(room) if free >= length), None)
        if row is None:
            rows.append([])
            room.append(seq_len)
            row = len(rows) - 1
        rows[row].append(r)
        room[row] -= length
    return rows


@dataclass(frozen=True)
class Rows:
    """Some packed rows, and where in them the policy sampled.

    The logits at place p of a row predict the token at p + 1. For each of the K sampled tokens: `row_K`, `place_K` say
    where its logits stand, `target_K` which token it was, `source_K` its index in the flat columns.
    """

    token_ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    row_K: torch.Tensor
    place_K: torch.Tensor
    target_K: torch.Tensor
    source_K: np.ndarray
    sample_K: np.ndarray  # which sample each sampled token belongs to; its tokens are all here


def build_rows(data: Ragged, plan: Sequence[Sequence[int]], length: int = 1) -> Rows:
    """Lay out the samples of each planned row: as long as the longest row, `length` at least.

    The tail behind the last sample of a row is a document of its own.
    """
    T = max([length, *(sum(int(data.lengths_R[r]) for r in row) for row in plan)])
    token_ids = np.zeros((len(plan), T), dtype=np.int64)
    positions = np.zeros((len(plan), T), dtype=np.int64)
    rows, places, targets, sources, samples = [], [], [], [], []
    for b, members in enumerate(plan):
        start = 0
        for r in members:
            first, last = data.offsets_R[r], data.offsets_R[r + 1]
            end = start + int(last - first)
            token_ids[b, start:end] = data.token_ids_N[first:last]
            positions[b, start:end] = np.arange(end - start)
            sampled = np.flatnonzero(data.action_mask_N[first:last])
            rows.append(np.full(len(sampled), b))
            places.append(start + sampled - 1)
            targets.append(data.token_ids_N[first + sampled])
            sources.append(first + sampled)
            samples.append(np.full(len(sampled), r))
            start = end
        positions[b, start:] = np.arange(T - start)

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)

    return Rows(
        token_ids_BT=torch.from_numpy(token_ids),
        positions_BT=torch.from_numpy(positions),
        row_K=torch.from_numpy(joined(rows)),
        place_K=torch.from_numpy(joined(places)),
        target_K=torch.from_numpy(joined(targets)),
        source_K=joined(sources),
        sample_K=joined(samples),
    )
