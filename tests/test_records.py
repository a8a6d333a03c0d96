"""Batches on disk: what was written is what is read, whole or not at all."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.records import (
    ADVANTAGE,
    REFERENCE,
    SAMPLE,
    Sample,
    read_batch,
    to_table,
    trajectory_numbers,
    with_column,
    write_batch,
)


def message(role: str, content: str, **more: object) -> dict[str, object]:
    nothing = dict.fromkeys(("tool_calls", "tool_call_id", "reward", "note"))
    return {"role": role, "content": content, **nothing, **more}


def row(number: int) -> Sample:
    return Sample(
        trajectory_id=f"00003-00017-{number}",
        sample=0,
        group_id="00003-00017",
        task_id="4711",
        policy_version=3,
        seed=2**61 - 1,
        token_ids=[1, 40, 77, 2, 55, 9][: max(2, 6 - number)],
        loss_mask=([False] * 4 + [True] * 2)[: max(2, 6 - number)],
        logprobs=[0.0, 0.0, 0.0, 0.0, -0.6875, -0.015625][: max(2, 6 - number)],
        reward=-1.0,
        raw_reward=-0.5,
        turns=1,
        invalid=False,
        finish_reason="finished",
        outcome="lost",
        error="",
        metrics=[("agreement", 0.5)],
        messages=[
            message("user", "Cards 10 6, hard 16. Dealer 10."),
            {**message("assistant", "é"), "reward": -0.5, "note": "weak"},
            message("tool", "4", tool_call_id="a"),
            message("assistant", "", tool_calls=[{"id": "a", "name": "run", "arguments": "{}"}]),
        ],
    )


def test_written_and_read_it_is_the_same_table(tmp_path: Path) -> None:
    table = to_table([row(i) for i in range(3)])
    assert table.schema == SAMPLE
    assert write_batch(table, tmp_path / "batch") == tmp_path / "batch"
    back = read_batch(tmp_path / "batch")
    assert back.equals(table) and back.schema == SAMPLE
    assert back.to_pylist() == [vars(row(i)) for i in range(3)]
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == [Path("batch/_sha256.json"), Path("batch/policy_version=00003/part-00000.arrow")]


def test_other_tools_find_the_version_in_the_path(tmp_path: Path) -> None:
    write_batch(
        to_table([row(0)]).drop(["policy_version"]).append_column("policy_version", pa.array([3], pa.int32())),
        tmp_path / "batch",
    )
    found = ds.dataset(tmp_path / "batch", format="ipc", partitioning="hive").to_table()
    assert found["policy_version"].to_pylist() == [3]


def test_later_stages_add_columns_and_touch_none(tmp_path: Path) -> None:
    table = to_table([row(0), row(1)])
    more = with_column(with_column(table, REFERENCE, [[0.0] * 6, None]), ADVANTAGE, [0.5, -0.5])
    write_batch(more, tmp_path / "batch")
    back = read_batch(tmp_path / "batch")
    assert back.column_names == [*SAMPLE.names, "reference_logprobs", "advantage"]
    assert back.select(SAMPLE.names).equals(table)
    assert back["reference_logprobs"].to_pylist() == [[0.0] * 6, None]


def test_the_samples_of_a_trajectory_share_its_number() -> None:
    rows = [row(2), row(10), replace(row(10), sample=1), row(0), replace(row(0), sample=1)]
    trajectory_R, firsts = trajectory_numbers(to_table(rows))
    assert trajectory_R.tolist() == [0, 1, 1, 2, 2]  # as they come
    assert firsts.tolist() == [0, 1, 3]
    assert [part.tolist() for part in trajectory_numbers(to_table([]))] == [[], []]


def test_a_dropped_trajectory_has_no_reward_and_nothing_to_train_on(tmp_path: Path) -> None:
    dropped = replace(row(0), reward=None, loss_mask=[False] * 6, logprobs=[0.0] * 6, finish_reason="length")
    back = read_batch(write_batch(to_table([dropped, row(1)]), tmp_path / "batch"))
    assert back["reward"].to_pylist() == [None, -1.0]
    assert back.to_pylist()[0] == vars(dropped)


def test_some_columns_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    table = to_table([row(i) for i in range(2)])
    assert read_batch(write_batch(table, tmp_path / "batch"), ["reward", "group_id"]).equals(
        table.select(["reward", "group_id"])
    )


def test_metrics_beside_a_batch_are_not_read_as_rows(tmp_path: Path) -> None:
    write_batch(to_table([row(0)]), tmp_path / "batch")
    (tmp_path / "batch" / "_metrics.json").write_text("{}")
    assert len(read_batch(tmp_path / "batch")) == 1


def test_a_batch_is_of_one_policy_version(tmp_path: Path) -> None:
    table = pa.concat_tables([to_table([row(0)])] * 2)
    versions = pa.array([3, 4], pa.int32())
    mixed = table.set_column(table.column_names.index("policy_version"), SAMPLE.field("policy_version"), versions)
    with pytest.raises(ValueError, match="too many values"):
        write_batch(mixed, tmp_path / "batch")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_no_batch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f'^batch folder is "{tmp_path}"; allowed: a folder with Arrow IPC files'):
        read_batch(tmp_path)


WRITTEN = to_table([row(i) for i in range(3)])


@given(data=st.data())
def test_a_batch_that_was_cut_or_has_a_flipped_bit_is_never_read_as_another(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = write_batch(WRITTEN, Path(home) / "batch")
        part = folder / "policy_version=00003" / "part-00000.arrow"
        content = bytearray(part.read_bytes())
        if data.draw(st.booleans(), "cut"):
            content = content[: data.draw(st.integers(0, len(content) - 1), "length")]
        else:
            place = data.draw(st.integers(0, 8 * len(content) - 1), "bit")
            content[place // 8] ^= 1 << place % 8
        part.unlink()  # another file: a change of the same size within a clock tick is only seen by the next process
        part.write_bytes(content)
        with pytest.raises(ValueError, match=r"part-00000.arrow was changed; allowed: the file as it was written"):
            read_batch(folder)
        part.unlink()
        with pytest.raises(ValueError, match="was changed"):
            read_batch(folder)


def test_a_full_disk_leaves_the_old_batch(tmp_path: Path) -> None:
    write_batch(WRITTEN, tmp_path / "batch")
    code = (
        "import resource, signal, sys; from pathlib import Path; from tasks.records import read_batch, write_batch\n"
        "batch = read_batch(Path('batch'))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"  # no file may be longer, as on a disk that is full
        "write_batch(batch.slice(0, 1), Path('batch'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode != 0 and "batch cannot be written: File too large" in last
    assert read_batch(tmp_path / "batch").equals(WRITTEN)
    assert [path.name for path in tmp_path.iterdir()] == ["batch"]
