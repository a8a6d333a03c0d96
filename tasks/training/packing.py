"""Samples of many lengths, and which of them share a row.

Axes: R samples (see `records.py`: nearly always a trajectory is one), N tokens of all samples one behind the other.

Several samples share a row, one behind the other or, where prefixes are shared, as the branches of a tree (see
`rows.py`): what a model computes for a sample is the same either way. Samples of one trajectory may be in different
rows. Nothing is cut: a sample that does not fit a row is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.records import trajectory_numbers


@dataclass(frozen=True)
class FlatSamples:
    """The token columns of R samples as flat arrays; sample r is `[offsets_R[r]:offsets_R[r + 1]]`."""

    offsets_R: np.ndarray  # int64 [R + 1]
    token_ids_N: np.ndarray  # int64 [N]
    loss_mask_N: np.ndarray  # bool [N], true where the policy sampled
    numbers_R: np.ndarray | None = None  # int64 [R], which trajectory each is of; None: each is one of its own

    def __len__(self) -> int:
        return len(self.offsets_R) - 1

    def tokens(self, r: int) -> np.ndarray:
        """The tokens of sample r."""
        return self.token_ids_N[self.offsets_R[r] : self.offsets_R[r + 1]]

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
        return np.diff(self._sampled_before[self.offsets_R])

    @property
    def openings_R(self) -> np.ndarray:
        """Tokens of each sample before the first that the policy sampled: its prompt."""
        firsts, ends = self.offsets_R[:-1], self.offsets_R[1:]
        before = self._sampled_before
        return np.minimum(np.searchsorted(before, before[firsts], side="right") - 1, ends) - firsts

    @property
    def _sampled_before(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.loss_mask_N)])  # [N + 1]

    @property
    def trajectory_sampled_R(self) -> np.ndarray:
        """Sampled tokens of the whole trajectory that each sample is of."""
        return np.bincount(self.trajectory_R, weights=self.sampled_R)[self.trajectory_R]


def flat(table: pa.Table, column: str) -> np.ndarray:
    """The values of a list column, one row behind the other."""
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


def by_prompt(data: FlatSamples, members: Sequence[int]) -> list[list[int]]:
    """The samples `members`, those with the same prompt together; prompts in the order in which they come first."""
    openings_R = data.openings_R
    found: dict[bytes, list[int]] = {}
    for r in members:
        first = data.offsets_R[r]
        found.setdefault(data.token_ids_N[first : first + openings_R[r]].tobytes(), []).append(r)
    return list(found.values())


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two samples have in common before the first that differs."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def plan_rows(
    data: FlatSamples, members: Sequence[int], seq_len: int, *, share_prefixes: bool = False
) -> list[list[int]]:
    """Spread samples over rows of at most `seq_len` tokens.

    Longest first, each into the first row with room. With `share_prefixes` in the order of their tokens, in which each
    has most in common with the one before it, a row after the other. Raises ValueError when one is longer than a row.
    """
    lengths_R = data.lengths_R
    longest = max((int(lengths_R[r]) for r in members), default=0)
    if longest > seq_len:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at least {longest}, the longest trajectory's tokens."
        )
    if share_prefixes:
        return _one_after_the_other(data, members, seq_len)
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


def _one_after_the_other(data: FlatSamples, members: Sequence[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room = 0
    for r in sorted(members, key=lambda r: (data.tokens(r).tolist(), r)):
        tokens = data.tokens(r)
        new = len(tokens) - common_prefix(data.tokens(rows[-1][-1]), tokens) if rows else seq_len + 1
        if new > room:
            rows.append([])
            room, new = seq_len, len(tokens)
        rows[-1].append(r)
        room -= new
    return rows
