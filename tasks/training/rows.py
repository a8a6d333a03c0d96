"""Planned rows as the tensors that a model takes.

Axes: R samples, N tokens of all samples, B rows, T tokens of a row, K sampled tokens.

A row is a tree of tokens, laid out so that all that goes on from a token stands behind it, up to its *end*. Here the
samples p q a, p q b c and p d, sharing their prefixes, and x y on its own:

    tokens      p  q  a  b  c  d  x  y
    positions   0  1  2  2  3  1  0  1     as in the sample alone
    ends        6  5  3  5  5  6  8  8     b sees p and q, whose ends are behind it, and not a

Without sharing, each sample is a tree of its own.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.training.packing import FlatSamples, common_prefix


@dataclass(frozen=True)
class Rows:
    """Some packed rows, and where in them the policy sampled.

    The logits at one place predict what comes next in each sample that goes through it. For each of the K sampled
    tokens: `row_K`, `place_K` say where its logits stand, `target_K` which token it was, `source_K` its index in the
    flat columns.
    """

    token_ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    ends_BT: torch.Tensor  # a token is seen from its own place to before this one
    row_K: torch.Tensor
    place_K: torch.Tensor
    target_K: torch.Tensor
    source_K: np.ndarray
    sample_K: np.ndarray  # which sample each sampled token belongs to; its tokens are all here


def build_rows(
    data: FlatSamples,
    plan: Sequence[Sequence[int]],
    length: int = 1,
    *,
    share_prefixes: bool = False,
    multiple: int = 1,
) -> Rows:
    """Lay out the samples of each planned row: as long as the longest row, `length` at least, a `multiple` of tokens.

    With `share_prefixes` a sample adds the tokens that it has not in common with the one before it in the row. The tail
    behind the last sample is a tree of its own.
    """
    shared = [_shared_with_the_one_before(data, row) if share_prefixes else [0] * len(row) for row in plan]
    sizes = [sum(int(data.lengths_R[r]) - c for r, c in zip(*at, strict=True)) for at in zip(plan, shared, strict=True)]
    T = -(-max([length, *sizes]) // multiple) * multiple
    token_ids, positions, ends = (np.zeros((len(plan), T), dtype=np.int64) for _ in range(3))
    found: list[tuple[np.ndarray, ...]] = []  # row, place, target, source and sample of the sampled tokens, by sample
    for b, row in enumerate(plan):
        path, end = np.zeros(0, dtype=np.int64), 0  # the places of the sample at hand, the first place that is free
        for r, common in zip(row, shared[b], strict=True):
            first, last = data.offsets_R[r], data.offsets_R[r + 1]
            tokens, sampled = data.tokens(r), np.flatnonzero(data.loss_mask_N[first:last])
            ends[b, path[common:]] = end  # nothing goes on from these
            path = np.concatenate([path[:common], np.arange(end, end + len(tokens) - common)])
            end += len(tokens) - common
            token_ids[b, path], positions[b, path] = tokens, np.arange(len(tokens))
            found.append((sampled * 0 + b, path[sampled - 1], tokens[sampled], first + sampled, sampled * 0 + r))
        ends[b, path], ends[b, end:] = end, T
        positions[b, end:] = np.arange(T - end)

    columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)]
    row_K, place_K, target_K, source_K, sample_K = columns or [np.zeros(0, dtype=np.int64)] * 5
    return Rows(
        token_ids_BT=torch.from_numpy(token_ids),
        positions_BT=torch.from_numpy(positions),
        ends_BT=torch.from_numpy(ends),
        row_K=torch.from_numpy(row_K),
        place_K=torch.from_numpy(place_K),
        target_K=torch.from_numpy(target_K),
        source_K=source_K,
        sample_K=sample_K,
    )


def _shared_with_the_one_before(data: FlatSamples, row: Sequence[int]) -> list[int]:
    """Tokens that each sample of a row has in common with the one before it."""
    pairs = itertools.pairwise(row)
    return [0, *(common_prefix(data.tokens(one), data.tokens(other)) for one, other in pairs)][: len(row)]
