"""Planned rows as the tensors that the model takes.

Axes: R samples, N tokens of all samples, B rows, T columns of a row, K sampled tokens.

A row is a forest of token trees in preorder: all tokens that continue a token are in the columns after it, up to its
*subtree end*. Here the samples p q a, p q b c and p d with shared prefixes, and x y:

    token_ids     p  q  a  b  c  d  x  y
    positions     0  1  2  2  3  1  0  1     in the sample, for the rotary embedding
    subtree_end   6  5  3  5  5  6  8  8     b attends to p and q, whose subtrees contain it, and not to a

Without sharing, each sample is a tree of its own, a single branch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.training.packing import FlatSamples, common_prefix


@dataclass(frozen=True)
class Rows:
    """Some packed rows, and which of their tokens the policy sampled.

    The logits of one column predict the next token of every sample that passes through it, so two sampled tokens may
    share theirs.
    """

    token_ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    subtree_end_BT: torch.Tensor  # a token is visible to the columns from its own to before this one
    row_K: torch.Tensor  # row and column of the logits that predict the token
    column_K: torch.Tensor
    target_K: torch.Tensor  # the token's id
    flat_index_K: np.ndarray  # its index in the flat arrays of FlatSamples
    sample_K: np.ndarray  # its sample; all sampled tokens of a sample are here


def build_rows(
    data: FlatSamples,
    plan: Sequence[Sequence[int]],
    min_length: int = 1,
    *,
    share_prefixes: bool = False,
    multiple_of: int = 1,
) -> Rows:
    """Lay out the samples of each planned row. T is the longest row's length, at least `min_length`, rounded up.

    With `share_prefixes` a sample adds only the tokens after its common prefix with the sample before it in the row.
    The padding after the last sample is a tree of its own.
    """
    prefixes = [_common_prefixes(data, row) if share_prefixes else [0] * len(row) for row in plan]
    sizes = [sum(int(data.lengths_R[r]) for r in row) - sum(shared) for row, shared in zip(plan, prefixes, strict=True)]
    T = -(-max([min_length, *sizes]) // multiple_of) * multiple_of
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


def _common_prefixes(data: FlatSamples, row: Sequence[int]) -> list[int]:
    """Tokens that each sample of a row has in common with the one before it."""
    pairs = itertools.pairwise(row)
    return [0, *(common_prefix(data.tokens(one), data.tokens(other)) for one, other in pairs)][: len(row)]
