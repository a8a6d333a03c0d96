"""Samples into rows and back: nothing is lost, cut or shifted."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from tasks.training.packing import (
    FlatSamples,
    build_rows,
    flat,
    flat_samples,
    group_by_prompt,
    padded_tokens,
    plan_rows,
)
from tasks.training.titan import attention_masks, attention_rule

# A: 11 12 13, of which 12 and 13 were sampled. B: 21 22, of which 22 was.
TWO = FlatSamples(np.array([0, 3, 5]), np.array([11, 12, 13, 21, 22]), np.array([False, True, True, False, True]))


def test_two_trajectories_in_one_row_by_hand() -> None:
    assert plan_rows(TWO, [0, 1], seq_len=6) == [[0, 1]]
    rows = build_rows(TWO, [[0, 1]])
    assert rows.token_ids_BT.tolist() == [[11, 12, 13, 21, 22]]
    assert rows.positions_BT.tolist() == [[0, 1, 2, 0, 1]]
    assert rows.row_K.tolist() == [0, 0, 0]
    assert rows.column_K.tolist() == [0, 1, 3]  # the token before each sampled one
    assert rows.target_K.tolist() == [12, 13, 22]
    assert rows.flat_index_K.tolist() == [1, 2, 4]
    assert rows.sample_K.tolist() == [0, 0, 1]


def test_two_rows_by_hand() -> None:
    assert plan_rows(TWO, [1, 0], seq_len=4) == [[0], [1]]  # the longest first
    rows = build_rows(TWO, [[0], [1]])
    assert rows.token_ids_BT.tolist() == [[11, 12, 13], [21, 22, 0]]
    assert rows.positions_BT.tolist() == [[0, 1, 2], [0, 1, 0]]  # the padding is a tree of its own
    assert (rows.row_K.tolist(), rows.column_K.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert rows.target_K.tolist() == [12, 13, 22]


def test_a_row_padded_to_a_length_by_hand() -> None:
    rows, packed = build_rows(TWO, [[0, 1]], multiple_of=8), build_rows(TWO, [[0, 1]], multiple_of=5)
    assert rows.token_ids_BT.tolist() == [[11, 12, 13, 21, 22, 0, 0, 0]]
    assert rows.positions_BT.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert packed.token_ids_BT.tolist() == [[11, 12, 13, 21, 22]]  # and never cut
    for name in ("row_K", "column_K", "target_K", "flat_index_K", "sample_K"):
        assert getattr(rows, name).tolist() == getattr(packed, name).tolist()


def test_how_many_tokens_of_each_trajectory_were_sampled() -> None:
    assert TWO.sampled_R.tolist() == [2, 1]
    masks = [False, False, True, False], [0, 2, 2, 4]  # the first has no sampled token, the second no token at all
    assert FlatSamples(np.array(masks[1]), np.arange(4), np.array(masks[0])).sampled_R.tolist() == [0, 0, 1]


def test_samples_of_one_trajectory() -> None:
    data = FlatSamples(
        np.array([0, 2, 4, 7]), np.arange(7), np.array([0, 1, 0, 1, 0, 1, 1], dtype=bool), np.array([0, 1, 0])
    )
    assert data.sampled_R.tolist() == [1, 1, 2]
    assert data.trajectory_sampled_R.tolist() == [3, 1, 3]
    assert TWO.trajectory_R.tolist() == [0, 1] and TWO.trajectory_sampled_R.tolist() == [2, 1]  # where none is named


def test_an_empty_row_for_a_rank_without_work() -> None:
    rows = build_rows(TWO, [[]])
    assert rows.token_ids_BT.shape == (1, 1)
    assert len(rows.row_K) == len(rows.flat_index_K) == 0


def test_a_trajectory_that_does_not_fit_is_refused_and_never_cut() -> None:
    assert plan_rows(TWO, [0], seq_len=3) == [[0]]
    with pytest.raises(ValueError, match=r"^training.seq_len is 2; allowed: at least 3, the longest trajectory's "):
        plan_rows(TWO, [0, 1], seq_len=2)
    assert plan_rows(TWO, [1], seq_len=2) == [[1]]  # only members count


def test_columns_of_a_table_in_pieces() -> None:
    table = pa.table(
        {
            "trajectory_id": ["z", "b", "a"],
            "token_ids": pa.array([[1], [11, 12, 13], [21, 22]], pa.list_(pa.int32())),
            "loss_mask": [[False], [False, True, True], [False, True]],
            "logprobs": pa.array([[9.0], [0.0, -1.0, -2.0], [0.0, -3.0]], pa.list_(pa.float32())),
        }
    )
    pieces = pa.concat_tables([table.slice(1, 1), table.slice(2)])
    data = flat_samples(pieces)
    for field in ("offsets_R", "token_ids_N", "loss_mask_N"):
        assert getattr(data, field).tolist() == getattr(TWO, field).tolist()
    assert data.trajectory_R.tolist() == [0, 1]
    assert flat(pieces, "logprobs").tolist() == [0, -1, -2, 0, -3]
    assert len(flat_samples(table.slice(3))) == 0


@given(
    masks=st.lists(st.lists(st.booleans(), max_size=11).map(lambda tail: [False, *tail]), min_size=1, max_size=12),
    seq_len=st.integers(12, 30),
    data=st.data(),
)
def test_packing_is_lossless(masks: list[list[bool]], seq_len: int, data: st.DataObject) -> None:
    offsets = np.cumsum([0, *map(len, masks)])
    trajectories = FlatSamples(offsets, 1 + np.arange(offsets[-1]), np.concatenate([np.array(m) for m in masks]))
    members = data.draw(st.lists(st.integers(0, len(masks) - 1), unique=True, min_size=1))

    plan = plan_rows(trajectories, members, seq_len)
    assert sorted(r for row in plan for r in row) == sorted(members)
    assert all(sum(len(masks[r]) for r in row) <= seq_len for row in plan)

    rows = build_rows(trajectories, plan)
    tokens, positions = rows.token_ids_BT.numpy(), rows.positions_BT.numpy()
    assert tokens.shape[1] <= seq_len
    for b, row in enumerate(plan):
        whole = [token for r in row for token in 1 + np.arange(offsets[r], offsets[r + 1])]
        assert tokens[b].tolist() == whole + [0] * (tokens.shape[1] - len(whole))
        starts = np.flatnonzero(positions[b] == 0)[: len(row)]
        assert starts.tolist() == np.cumsum([0, *(len(masks[r]) for r in row)])[:-1].tolist()
    sampled = {(r, int(offsets[r]) + t) for r in members for t in np.flatnonzero(masks[r])}
    assert set(zip(rows.sample_K.tolist(), rows.flat_index_K.tolist(), strict=True)) == sampled
    assert len(rows.flat_index_K) == len(sampled)
    row, column = rows.row_K.numpy(), rows.column_K.numpy()
    assert (tokens[row, column + 1] == rows.target_K.numpy()).all()
    assert (rows.target_K.numpy() == trajectories.token_ids_N[rows.flat_index_K]).all()
    assert (positions[row, column + 1] == positions[row, column] + 1).all()  # of the same trajectory


# p q a and p q b c, of which a and b c were sampled; p d, where d was; x y, where nothing was.
P, Q, A, B, C, D, X, Y = range(1, 9)
TREE = FlatSamples(
    np.array([0, 3, 7, 9, 11]),
    np.array([P, Q, A, P, Q, B, C, P, D, X, Y]),
    np.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0], dtype=bool),
)


def test_a_prompt_is_all_before_the_first_sampled_token() -> None:
    assert group_by_prompt(TREE, [0, 1, 2, 3]) == [[0, 1], [2], [3]]
    assert group_by_prompt(TREE, [3, 1, 0]) == [[3], [1, 0]]


def test_shared_prefixes_by_hand() -> None:
    assert plan_rows(TREE, [3, 2, 1, 0], seq_len=8) == [[0, 1, 2, 3]]
    rows = build_rows(TREE, [[0, 1, 2, 3]], multiple_of=9)
    assert rows.token_ids_BT.tolist() == [[P, Q, A, B, C, D, X, Y, 0]]
    assert rows.positions_BT.tolist() == [[0, 1, 2, 2, 3, 1, 0, 1, 0]]
    assert rows.subtree_end_BT.tolist() == [[6, 5, 3, 5, 5, 6, 8, 8, 9]]
    assert rows.target_K.tolist() == [A, B, C, D]
    assert rows.column_K.tolist() == [1, 1, 3, 0]  # a and b both follow q
    assert rows.flat_index_K.tolist() == [2, 5, 6, 8]
    assert rows.sample_K.tolist() == [0, 1, 1, 2]


def test_a_prefix_is_once_in_each_row_that_needs_it() -> None:
    assert plan_rows(TREE, [0, 1], seq_len=5) == [[0, 1]]
    assert plan_rows(TREE, [0, 1, 2], seq_len=4) == [[0], [1], [2]]
    with pytest.raises(ValueError, match=r"training.seq_len is 3; allowed: at least 4"):
        plan_rows(TREE, [0, 1], seq_len=3)


def test_equal_samples_are_one_branch() -> None:
    twice = FlatSamples(np.array([0, 2, 4]), np.array([P, A, P, A]), np.array([0, 1, 0, 1], dtype=bool))
    rows = build_rows(twice, plan_rows(twice, [0, 1], 2))
    assert rows.token_ids_BT.tolist() == [[P, A]]
    assert (rows.column_K.tolist(), rows.target_K.tolist(), rows.sample_K.tolist()) == ([0, 0], [A, A], [0, 1])


def test_the_cheaper_of_two_plans() -> None:
    # 1 2 3 4, 1 2 5 and 6 in rows of 6: in the order of their tokens all fit in one.
    tree = FlatSamples(np.array([0, 4, 7, 8]), np.array([1, 2, 3, 4, 1, 2, 5, 6]), np.ones(8, dtype=bool))
    assert plan_rows(tree, [0, 1, 2], seq_len=6) == [[0, 1, 2]]
    assert padded_tokens(tree, [[0, 1, 2]]) == 6 and padded_tokens(tree, [[0, 1], [2]]) == 2 * 5
    # Nothing in common, 3, 4, 2 and 1 tokens: in the order of their tokens three rows, the longest first two.
    apart = FlatSamples(np.array([0, 3, 7, 9, 10]), np.array([1, 1, 1, 2, 2, 2, 2, 3, 3, 4]), np.ones(10, dtype=bool))
    assert plan_rows(apart, [0, 1, 2, 3], seq_len=5) == [[1, 3], [0, 2]]


@given(data=st.data(), seq_len=st.integers(8, 24))
def test_a_token_attends_exactly_to_the_tokens_before_it_in_its_sample(data: st.DataObject, seq_len: int) -> None:
    replies = st.lists(st.integers(1, 3), max_size=6)
    samples = data.draw(st.lists(st.tuples(st.sampled_from([(1,), (1, 2), (2,)]), replies), min_size=1, max_size=9))
    tokens = [[*prompt, *reply] for prompt, reply in samples]
    of_all = FlatSamples(
        np.cumsum([0, *map(len, tokens)]),
        np.concatenate([np.array(t) for t in tokens]),
        np.concatenate([np.arange(len(t)) >= len(prompt) for t, (prompt, _) in zip(tokens, samples, strict=True)]),
    )
    plan = plan_rows(of_all, range(len(samples)), seq_len)
    assert sorted(r for row in plan for r in row) == list(range(len(samples)))
    rows = build_rows(of_all, plan)
    assert rows.token_ids_BT.shape[1] <= seq_len
    assert sorted(rows.flat_index_K.tolist()) == np.flatnonzero(of_all.loss_mask_N).tolist()
    mask = attention_masks(rows.subtree_end_BT)[:, 0].numpy()
    sampled = zip(rows.row_K, rows.column_K, rows.target_K, rows.flat_index_K, rows.sample_K, strict=True)
    for b, column, target, index, r in sampled:
        before = index - of_all.offsets_R[r]
        seen = np.flatnonzero(mask[b, column])
        assert rows.token_ids_BT[b, seen].tolist() == tokens[r][:before]  # in order, and nothing else
        assert rows.positions_BT[b, seen].tolist() == list(range(before))
        assert target == tokens[r][before]


def test_flex_attention_is_given_the_same_mask() -> None:
    subtree_end_BT = build_rows(TREE, [[0, 1, 2], [3, 1]]).subtree_end_BT
    dense = attention_masks(subtree_end_BT)
    flex = create_mask(attention_rule(subtree_end_BT), 2, 1, *dense.shape[-2:], device="cpu")
    assert dense.tolist() == flex.tolist()
