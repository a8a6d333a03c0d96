"""Seeds are the same everywhere, and name tasks that do not repeat."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from tasks.seeds import derived_seed, evaluation_indices, fresh_seed, training_index


@given(run_seed=st.integers(0, 2**31 - 1), iteration=st.integers(0, 10**6), group=st.integers(0, 10**6))
def test_indices_are_in_their_range(run_seed: int, iteration: int, group: int) -> None:
    assert 0 <= training_index(run_seed, iteration, group) < 2**61
    assert all(0 <= index < 2**61 for index in evaluation_indices(run_seed, 3))


@given(run=st.text(max_size=8), run_seed=st.integers(0, 2**31 - 1), evaluation=st.integers(0, 2**31 - 1))
def test_fresh_tasks_are_those_of_no_evaluation(run: str, run_seed: int, evaluation: int) -> None:
    seed = fresh_seed(run, run_seed)
    assert 2**31 <= seed < 2**61  # above every seed that an evaluation may have
    assert seed != fresh_seed(run, run_seed + 1) and seed != fresh_seed(run + "x", run_seed)
    assert set(evaluation_indices(seed, 50)).isdisjoint(evaluation_indices(evaluation, 50))


def test_every_group_of_a_run_has_a_task_of_its_own() -> None:
    seeds = {
        training_index(run, iteration, group) for run in (0, 1) for iteration in range(100) for group in range(100)
    }
    assert len(seeds) == 2 * 100 * 100
    assert len(set(evaluation_indices(0, 4096)) | set(evaluation_indices(1, 4096))) == 2 * 4096


def test_more_tasks_begin_with_the_same_ones() -> None:
    assert evaluation_indices(3, 100)[:10] == evaluation_indices(3, 10)


def test_where_tasks_are_few_none_comes_twice() -> None:
    assert sorted(evaluation_indices(3, 164, available=164)) == list(range(164))
    assert sorted(evaluation_indices(3, 1000, available=164)) == list(range(164))  # there are no more
    assert len(set(evaluation_indices(3, 50, available=164))) == 50
    assert evaluation_indices(3, 50, available=164) != evaluation_indices(4, 50, available=164)


def test_parts_are_told_apart() -> None:
    assert derived_seed("a", 1, 12) != derived_seed("a", 11, 2)
    assert derived_seed("a", 1) != derived_seed("b", 1)
    assert derived_seed("a", 1) == derived_seed("a", "1")
    assert all(derived_seed("x", i, bits=8) < 256 for i in range(1000))
    assert max(derived_seed("x", i, bits=8) for i in range(1000)) > 240


def test_another_process_derives_the_same() -> None:
    code = "from tasks.seeds import training_index; print(training_index(1, 2, 3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == training_index(1, 2, 3)
