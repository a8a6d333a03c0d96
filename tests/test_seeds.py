"""Seeds are the same everywhere, and an evaluation never plays a deck of the training."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from tasks.seeds import HELD_OUT, derived_seed, fresh_seed, held_out_seeds, training_seed


@given(run_seed=st.integers(0, 2**31 - 1), iteration=st.integers(0, 10**6), group=st.integers(0, 10**6))
def test_held_out_seeds_are_never_training_seeds(run_seed: int, iteration: int, group: int) -> None:
    assert 0 <= training_seed(run_seed, iteration, group) < HELD_OUT
    assert HELD_OUT <= min(held_out_seeds(run_seed, 3)) <= max(held_out_seeds(run_seed, 3)) < 2**63


@given(run=st.text(max_size=8), run_seed=st.integers(0, 2**31 - 1), evaluation=st.integers(0, 2**31 - 1))
def test_fresh_decks_are_nobody_elses(run: str, run_seed: int, evaluation: int) -> None:
    seed = fresh_seed(run, run_seed)
    assert 2**31 <= seed < 2**61  # above every seed that an evaluation may have
    assert seed != fresh_seed(run, run_seed + 1) and seed != fresh_seed(run + "x", run_seed)
    fresh = held_out_seeds(seed, 50)
    assert min(fresh) >= HELD_OUT and set(fresh).isdisjoint(held_out_seeds(evaluation, 50))


def test_every_group_of_a_run_has_a_deck_of_its_own() -> None:
    seeds = {training_seed(run, iteration, group) for run in (0, 1) for iteration in range(100) for group in range(100)}
    assert len(seeds) == 2 * 100 * 100
    assert len(set(held_out_seeds(0, 4096)) | set(held_out_seeds(1, 4096))) == 2 * 4096


def test_more_games_begin_with_the_same_ones() -> None:
    assert held_out_seeds(3, 100)[:10] == held_out_seeds(3, 10)


def test_parts_are_told_apart() -> None:
    assert derived_seed("a", 1, 12) != derived_seed("a", 11, 2)
    assert derived_seed("a", 1) != derived_seed("b", 1)
    assert derived_seed("a", 1) == derived_seed("a", "1")
    assert all(derived_seed("x", i, bits=8) < 256 for i in range(1000))
    assert max(derived_seed("x", i, bits=8) for i in range(1000)) > 240


def test_another_process_derives_the_same() -> None:
    code = "from tasks.seeds import training_seed; print(training_seed(1, 2, 3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == training_seed(1, 2, 3)
