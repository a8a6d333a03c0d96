"""The samples of a training batch as flat arrays, and which of them share a row.

Axes: R samples (see `records.py`: nearly always a trajectory is one), N tokens of all samples, concatenated.

    training batch ──flat_samples──► FlatSamples ──plan_rows──► rows of sample numbers ──rows.build_rows──► tensors

Several samples share a row, one after the other or, with shared prefixes, as the branches of a tree (see `rows.py`).
What the model computes for a sample is the same either way. Samples of one trajectory may be in different rows. Nothing
is cut: a sample that is longer than a row is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.records import trajectory_numbers


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

    @property
    def lengths_R(self) -> np.ndarray:
        """Tokens of each sample."""
        return np.diff(self.offsets_R)

    @property
    def sampled_R(self) -> np.ndarray:
        """Sampled tokens of each sample."""
        return np.diff(self._sampled_before[self.offsets_R])

    @property
    def trajectory_sampled_R(self) -> np.ndarray:
        """Sampled tokens of each sample's whole trajectory."""
        return np.bincount(self.trajectory_R, weights=self.sampled_R)[self.trajectory_R]

    @property
    def prompt_lengths_R(self) -> np.ndarray:
        """Tokens of each sample before the first sampled one."""
        starts, ends = self.offsets_R[:-1], self.offsets_R[1:]
        before = self._sampled_before
        return np.minimum(np.searchsorted(before, before[starts], side="right") - 1, ends) - starts

    @property
    def _sampled_before(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.loss_mask_N)])  # [N + 1]


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
    """The given samples in groups with the same prompt, in the order in which the prompts first occur."""
    lengths_R = data.prompt_lengths_R
    groups: dict[bytes, list[int]] = {}
    for r in samples:
        groups.setdefault(data.tokens(r)[: lengths_R[r]].tobytes(), []).append(r)
    return list(groups.values())


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """The number of leading tokens that are equal."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def plan_rows(
    data: FlatSamples, samples: Sequence[int], seq_len: int, *, share_prefixes: bool = False
) -> list[list[int]]:
    """Distribute samples over rows of at most `seq_len` tokens.

    The longest first, each into the first row with room (first-fit decreasing). With `share_prefixes` in the order of
    their tokens, in which neighbours share the longest prefixes, and one row after the other. Raises ValueError when a
    sample is longer than a row.
    """
    lengths_R = data.lengths_R
    longest = max((int(lengths_R[r]) for r in samples), default=0)
    if longest > seq_len:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at least {longest}, the longest trajectory's tokens."
        )
    if share_prefixes:
        return _plan_shared_rows(data, samples, seq_len)
    rows: list[list[int]] = []
    room: list[int] = []
    for r in sorted(samples, key=lambda r: (-lengths_R[r], r)):
        length = int(lengths_R[r])
        row = next((i for i, free in enumerate(room) if free >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(seq_len)
        rows[row].append(r)
        room[row] -= length
    return rows


def _plan_shared_rows(data: FlatSamples, samples: Sequence[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room = 0
    for r in sorted(samples, key=lambda r: (data.tokens(r).tolist(), r)):
        tokens = data.tokens(r)
        new = len(tokens) - common_prefix(data.tokens(rows[-1][-1]), tokens) if rows else seq_len + 1
        if new > room:
            rows.append([])
            room, new = seq_len, len(tokens)
        rows[-1].append(r)
        room -= new
    return rows
