"""The record of a training batch, without its rows; light to import, as it is an input of Flyte tasks."""

from dataclasses import dataclass, field

from tasks.json_records import Record


@dataclass(frozen=True)
class TrainingBatch(Record):
    """The groups that one training stage learns from, and how often each group has been learned from so far.

    Example: `TrainingBatch(["00007-00003"], {"00006-00011": 2, "00007-00003": 1}, {"buffer/groups": 1.0})`.
    """

    group_ids: list[str] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)  # training stages, this one included; of groups not too old
    metrics: dict[str, float] = field(default_factory=dict)  # of the selection; `train` logs them with its own
