"""The samples of a training batch as flat arrays, and packed into the rows that the model takes.

Axes: R samples (see `records.py`: nearly always a trajectory is one), N tokens of all samples, concatenated, B rows,
T columns of a row, K sampled tokens.

    training batch ──flat_samples──► FlatSamples ──plan_rows──► rows of sample numbers ──build_rows──► Rows

What the model computes for a sample does not depend on its row, and samples of one trajectory may be in different rows.

A row is a forest of token trees in preorder: all tokens that continue a token are in the columns after it, up to its
*subtree end*. Here the samples p q a, p q b c and p d, which share prefixes, and x y:

    token_ids     p  q  a  b  c  d  x  y
    positions     0  1  2  2  3  1  0  1     in the sample, for the rotary embedding
    subtree_end   6  5  3  5  5  6  8  8     b attends to p and q, whose subtrees contain it, and not to a
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from tasks.records import trajectory_numbers
from tasks.settings import require


@dataclass(frozen=True)
class FlatSamples:
    """The token columns of R samples, concatenated; sample r is `[offsets_R[r]:offsets_R[r + 1]]`.

    Example, [11, 12, 13] and [21, 22], of which 12, 13 and 22 were sampled: offsets_R = [0, 3, 5],
    token_ids_N = [11, 12, 13, 21, 22], loss_mask_N = [0, 1, 1, 0, 1].
    """

    offsets_R: np.ndarray  # int64 [R + 1]
    token_ids_N: np.ndarray  # int64 [N]
    loss_mask_N: np.ndarray  # bool [N], true where the policy sampled
    numbers_R: np.ndarray | None = None  # int64 [R], the trajectory of each; None: each is a trajectory of its own

    def __len__(self) -> int:
        return len(self.offsets_R) - 1

    def tokens(self, r: int) -> np.ndarray:
        """The tokens of sample r."""
        return self.token_ids_N[self.offsets_R[r] : self.offsets_R[r + 1]]

    @property
    def trajectory_R(self) -> np.ndarray:
        """The number of each sample's trajectory, from 0."""
        return np.arange(len(self)) if self.numbers_R is None else self.numbers_R

    @cached_property
    def lengths_R(self) -> np.ndarray:
        """Tokens of each sample."""
        return np.diff(self.offsets_R)

    @property
    def sampled_R(self) -> np.ndarray:
        """Sampled tokens of each sample."""
        return np.diff(np.concatenate([[0], np.cumsum(self.loss_mask_N)])[self.offsets_R])

    @property
    def trajectory_sampled_R(self) -> np.ndarray:
        """Sampled tokens of each sample's whole trajectory."""
        return np.bincount(self.trajectory_R, weights=self.sampled_R)[self.trajectory_R]


def flat(table: pa.Table, column: str) -> np.ndarray:
    """The values of a list column, concatenated: [N]."""
    return table[column].combine_chunks().flatten().to_numpy(zero_copy_only=False)


def flat_samples(table: pa.Table) -> FlatSamples:
    """The token columns of a batch."""
    lengths = pc.list_value_length(table["token_ids"]).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
    return FlatSamples(
        offsets_R=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_ids_N=flat(table, "token_ids").astype(np.int64),
        loss_mask_N=flat(table, "loss_mask").astype(bool),
        numbers_R=trajectory_numbers(table)[0],
    )


def group_by_prompt(data: FlatSamples, samples: Sequence[int]) -> list[list[int]]:
    """The given samples, each with a sampled token, in groups with the same prompt, in the order of the first ones."""
    groups: dict[bytes, list[int]] = {}
    for r in samples:
        prompt = int(data.loss_mask_N[data.offsets_R[r] : data.offsets_R[r + 1]].argmax())  # tokens before the first
        groups.setdefault(data.tokens(r)[:prompt].tobytes(), []).append(r)
    return list(groups.values())


def plan_rows(data: FlatSamples, samples: Sequence[int], seq_len: int) -> list[list[int]]:
    """Distribute samples over rows of at most `seq_len` tokens, so that the model computes few tokens.

    Of two plans the one with fewer padded tokens: samples in the order of their tokens, in which neighbours share the
    longest prefixes, one row after the other; or the longest first, each into the first row with room (first-fit
    decreasing). Raises ValueError when a sample is longer than a row.
    """
    lengths_R = data.lengths_R
    longest = max((int(lengths_R[r]) for r in samples), default=0)
    allowed = f"at least {longest}, the longest trajectory's tokens"
    require(longest <= seq_len, "training.seq_len", seq_len, allowed)
    plans = _plan_sharing(data, samples, seq_len), _plan_longest_first(data, samples, seq_len)
    return min(plans, key=lambda rows: padded_tokens(data, rows))


def padded_tokens(data: FlatSamples, plan: Sequence[Sequence[int]]) -> int:
    """Tokens that the model computes: rows as long as the longest, in which a prefix of neighbours is there once."""
    return len(plan) * max((_row_tokens(data, row, _shared(data, row)) for row in plan), default=0)


def _row_tokens(data: FlatSamples, row: Sequence[int], shared: Sequence[int]) -> int:
    return int(data.lengths_R[list(row)].sum()) - sum(shared)


def _plan_sharing(data: FlatSamples, samples: Sequence[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room = 0  # left in the last row
    for r in sorted(samples, key=lambda r: (data.tokens(r).tolist(), r)):
        length = int(data.lengths_R[r])
        new = length - _common_prefix(data, rows[-1][-1], r) if rows else length
        if not rows or new > room:
            rows.append([])
            room, new = seq_len, length
        rows[-1].append(r)
        room -= new
    return rows


def _plan_longest_first(data: FlatSamples, samples: Sequence[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []  # left in each row
    for r in sorted(samples, key=lambda r: (-data.lengths_R[r], r)):
        row = next((i for i, left in enumerate(room) if left >= data.lengths_R[r]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(seq_len)
        rows[row].append(r)
        room[row] -= data.lengths_R[r]
    return rows


def _shared(data: FlatSamples, row: Sequence[int]) -> list[int]:
    """For each sample of a row, the tokens that it has in common with the one before it."""
    return [_common_prefix(data, row[i - 1], r) if i else 0 for i, r in enumerate(row)]


def _common_prefix(data: FlatSamples, one: int, other: int) -> int:
    """The number of leading tokens that two samples have in common."""
    shorter = min(len(data.tokens(one)), len(data.tokens(other)))
    differ = np.flatnonzero(data.tokens(one)[:shorter] != data.tokens(other)[:shorter])
    return int(differ[0]) if len(differ) else shorter


@dataclass(frozen=True)
class Rows:
    """Some packed rows, and which of their tokens the policy sampled; with shared prefixes, two may share a column."""

    token_ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    subtree_end_BT: torch.Tensor  # a token is visible to the columns from its own to before this one
    row_K: torch.Tensor  # row and column of the logits that predict the token
    column_K: torch.Tensor
    target_K: torch.Tensor  # the token's id
    flat_index_K: np.ndarray  # its index in the flat arrays of FlatSamples
    sample_K: np.ndarray  # its sample; all sampled tokens of a sample are here


def build_rows(data: FlatSamples, plan: Sequence[Sequence[int]], *, multiple_of: int = 1) -> Rows:
    """Lay out the samples of each planned row: each adds the tokens after its common prefix with the one before it.

    T is the longest row's length, rounded up; the padding is a tree of its own.
    """
    prefixes = [_shared(data, row) for row in plan]
    sizes = [_row_tokens(data, row, shared) for row, shared in zip(plan, prefixes, strict=True)]
    T = -(-max([1, *sizes]) // multiple_of) * multiple_of
    token_ids, positions, subtree_end = (np.zeros((len(plan), T), dtype=np.int64) for _ in range(3))
    sampled: list[tuple[np.ndarray, ...]] = []  # of each sample: row, column, target, flat index and sample
    for b, row in enumerate(plan):
        columns, free = np.zeros(0, dtype=np.int64), 0  # of the present sample's tokens; the first free column
        for r, shared in zip(row, prefixes[b], strict=True):
            start, tokens = data.offsets_R[r], data.tokens(r)
            subtree_end[b, columns[shared:]] = free  # nothing continues these any more
            columns = np.concatenate([columns[:shared], np.arange(free, free + len(tokens) - shared)])
            free += len(tokens) - shared
            token_ids[b, columns], positions[b, columns] = tokens, np.arange(len(tokens))
            t = np.flatnonzero(data.loss_mask_N[start : start + len(tokens)])
            sampled.append((np.full_like(t, b), columns[t - 1], tokens[t], start + t, np.full_like(t, r)))
        subtree_end[b, columns], subtree_end[b, free:] = free, T
        positions[b, free:] = np.arange(T - free)

    parts = [np.concatenate(part).astype(np.int64) for part in zip(*sampled, strict=True)]
    row, column, target, flat_index, sample = parts or [np.zeros(0, dtype=np.int64)] * 5
    tensors = map(torch.from_numpy, (token_ids, positions, subtree_end, row, column, target))
    return Rows(*tensors, flat_index_K=flat_index, sample_K=sample)
