"""Samples of many lengths, and which of them share a row.

Axes: R samples (see `records.py`: nearly always a trajectory is one), N tokens of all samples one behind the other.

Several samples share a row, and some of them may share a prompt: a *bundle* is the prompt once and behind it, as
branches, what follows it in each of its samples. What a model computes for a sample is the same in every bundle.
Samples of one trajectory may be in different rows. Nothing is cut: a sample that does not fit a row is refused.

    row   | prompt  sample 3  sample 7  sample 9 | prompt  sample 2 | …
            └──────────── a bundle ────────────┘   └─── another ──┘
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        return np.diff(self._sampled_before[self.offsets_R])

    @property
    def openings_R(self) -> np.ndarray:
        """Tokens of each sample before the first that the policy sampled: its prompt."""
        firsts, ends = self.offsets_R[:-1], self.offsets_R[1:]
        before = self._sampled_before
        return np.minimum(np.searchsorted(before, before[firsts], side="right") - 1, ends) - firsts

    @property
    def _sampled_before(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.action_mask_N)])  # [N + 1]

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


Bundle = list[int]  # samples with one prompt
Plan = list[list[Bundle]]  # a row at a time


def by_prompt(data: Ragged, members: Sequence[int]) -> list[list[int]]:
    """The samples `members`, those with the same prompt together; prompts in the order in which they come first."""
    openings_R = data.openings_R
    found: dict[bytes, list[int]] = {}
    for r in members:
        first = data.offsets_R[r]
        found.setdefault(data.token_ids_N[first : first + openings_R[r]].tobytes(), []).append(r)
    return list(found.values())


def plan_rows(data: Ragged, members: Sequence[int], seq_len: int, *, share_prompts: bool = False) -> Plan:
    """Spread samples over rows of at most `seq_len` tokens: longest bundle first, each into the first row with room.

    Without `share_prompts` each sample is a bundle of its own. Raises ValueError when a sample is longer than a row.
    """
    lengths_R, openings_R = data.lengths_R, data.openings_R
    longest = max((int(lengths_R[r]) for r in members), default=0)
    if longest > seq_len:
        raise ValueError(
            f"training.seq_len is {seq_len}; allowed: at least {longest}, the longest trajectory's tokens."
        )
    bundles: list[tuple[int, Bundle]] = []  # each with its tokens
    for same in by_prompt(data, members) if share_prompts else [[r] for r in members]:
        prompt = int(openings_R[same[0]])
        bundle, size = [], prompt
        for r in same:
            more = int(lengths_R[r]) - prompt
            if size + more > seq_len:  # the prompt once more, in another row
                bundles.append((size, bundle))
                bundle, size = [], prompt
            bundle.append(r)
            size += more
        bundles.append((size, bundle))
    rows: Plan = []
    room: list[int] = []
    for size, bundle in sorted(bundles, key=lambda b: (-b[0], b[1])):
        row = next((i for i, free in enumerate(room) if free >= size), None)
        if row is None:
            rows.append([])
            room.append(seq_len)
            row = len(rows) - 1
        rows[row].append(bundle)
        room[row] -= size
    return rows
