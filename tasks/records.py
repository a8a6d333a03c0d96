"""The row of a batch: what a rollout writes and every later stage reads.

Axes: R rows, T tokens of one row, ragged between rows.

    rollout ──► SAMPLE ──► score_reference adds reference_logprobs ──► compute_advantages adds advantage

A row is a sample of a trajectory: a prompt and its continuation, as the generator saw and sampled them. Nearly always
that is the whole trajectory. Where the chat template rewrites earlier turns, as Qwen3's drops earlier thoughts, the
tokens so far are not a prefix of the next prompt, and a further sample begins there:

    trajectory  sample  token_ids (sampled ones in brackets)
    …-2         0       system, question, [thought, reply, end]
    …-2         1       system, question, reply, end, next question, [thought, reply, end]

Each token is sampled in exactly one sample. Reward, outcome and advantage are the trajectory's, the same in all its
samples; counts and means are over trajectories, by their first sample.

A batch is a directory of Arrow IPC files, `policy_version=00007/part-00000.arrow`, written once and never changed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from tasks.folders import atomic_directory
from tasks.json_files import read_object
from tasks.policy.checkpoint import file_hash

Text = Annotated[str, pa.string()]
Flag = Annotated[bool, pa.bool_()]
Int32 = Annotated[int, pa.int32()]
Float32 = Annotated[float | None, pa.float32()]
TOOL_CALL = pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())])
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.list_(TOOL_CALL)),  # null where there are none
        ("tool_call_id", pa.string()),  # of a message of a tool
        ("reward", pa.float32()),  # of a reply: the environment's, for this step; null where it was not asked
        ("note", pa.string()),  # of a reply: what the environment says to people
    ]
)


@dataclass
class Sample:
    """One row, and by its annotations the Arrow types of the columns.

    Example, one decision, T = 6, of which the policy sampled the last two (a word and the end of its turn):
    `Sample(trajectory_id="00003-00017-2", sample=0, group_id="00003-00017", task_id="8123", seed=8123,
    policy_version=3, token_ids=[1, 40, 77, 2, 55, 9], loss_mask=[False]*4 + [True]*2, logprobs=[0, 0, 0, 0, -0.69,
    -0.01], reward=-1.0, raw_reward=-1.0, turns=1, invalid=False, finish_reason="finished", outcome="lost", error="",
    metrics=[("right_answers", 0.5)], messages=[{"role": "system", …}, …])`.
    """

    trajectory_id: Text  # the same for all samples of a trajectory
    sample: Int32  # 0, 1, … within its trajectory
    group_id: Text  # the trajectories that share one task
    task_id: Text
    seed: Annotated[int, pa.int64()]  # the task's
    policy_version: Int32  # the version that sampled it
    token_ids: Annotated[list[int], pa.list_(pa.int32())]
    loss_mask: Annotated[list[bool], pa.list_(pa.bool_())]  # true where the policy sampled; nowhere if dropped
    logprobs: Annotated[list[float], pa.list_(pa.float32())]  # the generator's, at its temperature; 0 where not sampled
    reward: Float32  # what training learns from; None where the trajectory was dropped: an error, or truncated
    raw_reward: Float32  # the environment's own, unshaped; None for an error
    turns: Int32  # replies of the whole trajectory
    invalid: Flag  # whether an unreadable reply ended it
    finish_reason: Text  # "finished", "invalid" (unreadable reply), "truncated" (by a limit) or "error"
    outcome: Text  # in the environment's own words
    error: Text  # why it ended as an error
    metrics: Annotated[list[tuple[str, float]], pa.map_(pa.string(), pa.float32())]  # of its steps, averaged
    messages: Annotated[list[dict[str, Any]], pa.list_(MESSAGE)]  # as they were said, with all thinking
    parts: Annotated[list[str], pa.list_(pa.string())] = field(default_factory=list)  # of the environment: families, …


SUMS = "_sha256.json"  # of the files of a batch; the underscore hides it from readers of Arrow datasets
SAMPLE = pa.schema([(name, hint.__metadata__[0]) for name, hint in get_type_hints(Sample, include_extras=True).items()])
REFERENCE = pa.field("reference_logprobs", pa.list_(pa.float32()))
ADVANTAGE = pa.field("advantage", pa.float32())


def to_table(samples: Sequence[Sample]) -> pa.Table:
    """A table with SAMPLE's schema."""
    return pa.Table.from_pylist([vars(s) for s in samples], schema=SAMPLE)


def trajectory_numbers(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Which trajectory each row belongs to, int64 [R], numbered as they come, and the first row of each trajectory."""
    ids = table["trajectory_id"].combine_chunks().dictionary_encode()
    trajectory_R = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return trajectory_R, np.unique(trajectory_R, return_index=True)[1]


def write_batch(table: pa.Table, folder: Path) -> Path:
    """Write `table`, sampled by one policy version, under `folder`, whole or not at all; returns `folder`."""
    (policy_version,) = table["policy_version"].unique().to_pylist()
    with atomic_directory(folder) as unfinished:
        part = unfinished / f"policy_version={policy_version:05d}" / "part-00000.arrow"
        part.parent.mkdir(parents=True)
        with pa.ipc.new_file(part, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        sums = {part.relative_to(unfinished).as_posix(): file_hash(part).hex()}
        (unfinished / SUMS).write_text(json.dumps(sums) + "\n")
    return folder


def read_batch(folder: Path | str, columns: list[str] | None = None) -> pa.Table:
    """The batch in `folder`, all columns or some, rows in the order written.

    Raises ValueError when there is none, and for a file that is not as it was written: Arrow has no checksums, and a
    flipped bit would be another number.
    """
    sums = Path(folder) / SUMS
    for name, digest in (read_object(sums) if sums.is_file() else {}).items():
        part = Path(folder) / name
        if not part.is_file() or file_hash(part).hex() != digest:
            raise ValueError(
                f'batch folder is "{folder}", whose {name} was changed; allowed: the file as it was written.'
            )
    dataset = ds.dataset(folder, format="ipc", exclude_invalid_files=False)
    if not dataset.files:
        raise ValueError(f'batch folder is "{folder}"; allowed: a folder with Arrow IPC files.')
    return dataset.to_table(columns=columns)


def read_schema(folder: Path | str) -> pa.Schema:
    """Names and types of the columns of the batch in `folder`."""
    return ds.dataset(folder, format="ipc", exclude_invalid_files=False).schema


def with_column(table: pa.Table, field: pa.Field, values: Sequence[object]) -> pa.Table:
    """`table` and one column more; the columns that were there are untouched."""
    return table.append_column(field, pa.array(values, type=field.type))
