"""Planned rows as the tensors that a model takes.

Axes: R samples, N tokens of all samples, B rows, T tokens of a row, K sampled tokens.

    tokens     p0 p1 p2  a3 a4  b3 b4 b5   q0 q1  c2     prompt p with the branches a and b, prompt q with c
    positions   0  1  2   3  4   3  4  5    0  1   2     as in the sample alone
    documents   0  0  0   0  0   0  0  0    1  1   1     a bundle sees nothing of another
    branches    0  0  0   1  1   2  2  2    0  0   1     a branch sees its prompt and itself
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.training.packing import Ragged


@dataclass(frozen=True)
class Rows:
    """Some packed rows, and where in them the policy sampled.

    The logits at one place predict the next token of its sample; those at the end of a prompt the first token of each
    of its branches. For each of the K sampled tokens: `row_K`, `place_K` say where its logits stand, `target_K` which
    token it was, `source_K` its index in the flat columns.
    """

    token_ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    documents_BT: torch.Tensor
    branches_BT: torch.Tensor
    row_K: torch.Tensor
    place_K: torch.Tensor
    target_K: torch.Tensor
    source_K: np.ndarray
    sample_K: np.ndarray  # which sample each sampled token belongs to; its tokens are all here


def build_rows(data: Ragged, plan: Sequence[Sequence[Sequence[int]]], length: int = 1) -> Rows:
    """Lay out the bundles of each planned row: as long as the longest row, `length` at least.

    The tail behind the last bundle of a row is a document of its own.
    """
    lengths_R, openings_R = data.lengths_R, data.openings_R

    def size(bundle: Sequence[int]) -> int:
        return int(openings_R[bundle[0]] + sum(lengths_R[r] - openings_R[r] for r in bundle))

    T = max([length, *(sum(map(size, row)) for row in plan)])
    token_ids, positions, documents, branches = (np.zeros((len(plan), T), dtype=np.int64) for _ in range(4))
    found: list[tuple[np.ndarray, ...]] = []  # row, place, target, source and sample of the sampled tokens, by sample
    for b, row in enumerate(plan):
        end = 0
        for document, bundle in enumerate(row):
            first, prompt = data.offsets_R[bundle[0]], int(openings_R[bundle[0]])
            start, end = end, end + prompt
            token_ids[b, start:end] = data.token_ids_N[first : first + prompt]
            positions[b, start:end] = np.arange(prompt)
            for branch, r in enumerate(bundle, start=1):
                at, end = end, end + int(lengths_R[r]) - prompt
                first, last = data.offsets_R[r], data.offsets_R[r + 1]
                token_ids[b, at:end] = data.token_ids_N[first + prompt : last]
                positions[b, at:end] = np.arange(prompt, prompt + end - at)
                branches[b, at:end] = branch
                sampled = np.flatnonzero(data.action_mask_N[first:last])
                places = np.where(sampled == prompt, start + prompt, at + sampled - prompt) - 1
                source = first + sampled
                found.append(
                    (np.full_like(sampled, b), places, data.token_ids_N[source], source, np.full_like(sampled, r))
                )
            documents[b, start:end] = document
        documents[b, end:] = len(row)
        positions[b, end:] = np.arange(T - end)

    columns = [np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)]
    row_K, place_K, target_K, source_K, sample_K = columns or [np.zeros(0, dtype=np.int64)] * 5
    return Rows(
        token_ids_BT=torch.from_numpy(token_ids),
        positions_BT=torch.from_numpy(positions),
        documents_BT=torch.from_numpy(documents),
        branches_BT=torch.from_numpy(branches),
        row_K=torch.from_numpy(row_K),
        place_K=torch.from_numpy(place_K),
        target_K=torch.from_numpy(target_K),
        source_K=source_K,
        sample_K=sample_K,
    )
