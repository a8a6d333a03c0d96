"""The check of a GPU on a machine without one: each part is named with what is missing, and nothing has passed."""

import io

import pytest
import torch
from rich.console import Console

from benchmarks import gpu


def shown(monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """What it returns and prints."""
    monkeypatch.setattr(gpu, "use_scratch_folder", lambda: None)  # which changes this process for good
    out = io.StringIO()
    return gpu.main(Console(file=out, width=200)), out.getvalue().splitlines()


def test_without_a_gpu_all_is_skipped_and_nothing_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    failed, lines = shown(monkeypatch)
    assert failed == 1
    assert [line.startswith("skipped  ") and line.endswith("lacks a GPU with its driver") for line in lines[:7]] == [
        True
    ] * 7
    assert lines[7:] == ["0 passed, 0 FAILED, 7 skipped", "nothing was checked on this machine"]


def test_a_part_that_fails_is_counted_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> str:
        raise AssertionError("0.5")

    some = [("one", "", wrong), ("two", "", lambda: "equal"), ("three", "a second GPU", wrong)]
    monkeypatch.setattr(gpu, "parts", lambda folder: some)
    failed, lines = shown(monkeypatch)
    assert failed == 1
    assert lines == [
        "FAILED   one: AssertionError: 0.5",
        "passed   two: equal",
        "skipped  three: lacks a second GPU",
        "1 passed, 1 FAILED, 1 skipped",
    ]


def test_a_recorded_batch_is_the_same_everywhere() -> None:
    data, again = gpu.recorded(4, 8), gpu.recorded(4, 8)
    assert data.token_ids_N.tolist() == again.token_ids_N.tolist() and int(data.loss_mask_N.sum()) == 4 * 3
