"""Episodes for people: a few groups an iteration as MLflow traces, one an episode, linked to the training's run.

    episode  task, seed, group  ───────────────────────►  reward, outcome
      ├─ turn 1   prompt  ──►  reply
      ├─ tool     arguments  ──►  result
      └─ turn 2   prompt  ──►  reply

All ids are made from the run's and the trajectory's: a stage that is repeated writes the same traces again.
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from mlflow.entities import Assessment, AssessmentSource, Span, TraceInfo, TraceLocation, TraceState
from mlflow.entities.assessment import FeedbackValue
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import TRACE_SCHEMA_VERSION, TRACE_SCHEMA_VERSION_KEY, TraceTagKey
from mlflow.tracing.constant import SpanAttributeKey as Key
from mlflow.tracing.constant import TraceMetadataKey as Metadata

from tasks.advantage.advantages import has_reward_variance
from tasks.config import GrpoConfig, Run
from tasks.records import trajectory_numbers
from tasks.seeds import derived_seed
from tasks.tracking import outbox
from tasks.tracking.mlflow_store import client

Row = Mapping[str, Any]
PREVIEW = 1000  # characters, MLflow's limit
TOKENS = ["token_ids", "loss_mask", "logprobs"]  # columns that traces do without


def log_episodes(
    run: Run, config: GrpoConfig, batch: pa.Table, *, iteration: int, started: float, seconds: float
) -> None:
    """Send the episodes of this iteration that become traces.

    `batch` has advantages; its episodes were played from `started`, seconds since 1970, for `seconds`.
    """
    rows = rows_to_trace(run, config, batch, iteration)
    if rows:
        known = {"iteration": iteration, "started": started, "seconds": seconds}
        outbox.send(run, traces=[{**row, **known} for row in rows])


def write(run: Run, rows: Sequence[Row]) -> None:
    """Write the traces of episodes that `log_episodes` sent."""
    tracing = TracingClient(run.tracking_uri)
    experiment = client(run.tracking_uri).get_run(run.mlflow_run_id).info.experiment_id
    for row in rows:
        tracing.start_trace(_trace(run, experiment, row))
    tracing.log_spans(experiment, [span for row in rows for span in _spans(run, row)])


def rows_to_trace(run: Run, config: GrpoConfig, batch: pa.Table, iteration: int) -> list[Row]:
    """One row an episode, the whole conversation in it: all episodes of the groups chosen, none in some iterations.

    Groups with reward variance come first, ties by the seed. Where `tracking.max_traces` is less than what all
    iterations would give, the iterations that have traces are spread over the run.
    """
    size = config.rollout.group_size
    groups = min(config.tracking.trace_groups, config.tracking.max_traces // size)
    if not groups or not is_traced(iteration, run.iterations, config.tracking.max_traces // (groups * size)):
        return []
    trajectory, firsts = trajectory_numbers(batch)
    overview = batch.select(["group_id", "reward"]).take(firsts)
    ids = overview["group_id"].to_pylist()
    varied = dict(zip(ids, has_reward_variance(overview["reward"].to_numpy(), ids).tolist(), strict=True))
    order = sorted(varied, key=lambda group: (not varied[group], derived_seed("trace", run.seed, group)))
    wanted = np.isin(ids, order[:groups])[trajectory]
    rows = batch.drop_columns(TOKENS).filter(pa.array(wanted)).to_pylist()
    # The last sample of a trajectory holds its whole conversation.
    return list({row["trajectory_id"]: row for row in sorted(rows, key=lambda row: row["sample"])}.values())


def is_traced(iteration: int, iterations: int, slots: int) -> bool:
    """Whether `iteration` is one of the `slots` that are spread over the run, the first and the last among them.

    >>> [v for v in range(9) if is_traced(v, 9, 3)]
    [0, 4, 8]
    """
    if slots >= iterations:
        return True
    return iteration in {round(i * (iterations - 1) / max(1, slots - 1)) for i in range(slots)}


def _id(run: Run, row: Row, *parts: object, size: int = 16) -> bytes:
    """Made from the run, the trajectory and a name; without a name the trace's."""
    text = "/".join(map(str, (run.mlflow_run_id, row["trajectory_id"], *parts)))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def _replies(row: Row) -> list[int]:
    """Where the policy's replies are in the conversation: the prompt may hold further ones, as examples."""
    said = [place for place, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    return said[len(said) - row["turns"] :]


def _trace(run: Run, experiment: str, row: Row) -> TraceInfo:
    messages, replies = row["messages"], _replies(row)
    asked = messages[: replies[0] if replies else None][-1:]
    said = ", ".join(messages[place]["content"] or "" for place in replies)
    return TraceInfo(
        trace_id=f"tr-{_id(run, row).hex()}",
        client_request_id=row["trajectory_id"],
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=int(row["started"] * 1000),
        execution_duration=int(row["seconds"] * 1000),
        state=TraceState.ERROR if row["finish_reason"] == "error" else TraceState.OK,
        request_preview=(asked[0]["content"] or "")[:PREVIEW] if asked else "",
        response_preview=f"{said[: PREVIEW - 100]}: {row['outcome'][:90]}",
        trace_metadata={Metadata.SOURCE_RUN: run.mlflow_run_id, TRACE_SCHEMA_VERSION_KEY: str(TRACE_SCHEMA_VERSION)},
        tags={
            TraceTagKey.TRACE_NAME: row["trajectory_id"],
            "iteration": str(row["iteration"]),
            "policy_version": str(row["policy_version"]),
            "outcome": row["outcome"],
            "run": run.name,
            "group": row["group_id"],
            "task": row["task_id"],
        },
        assessments=_assessments(run, row),
    )


def _assessments(run: Run, row: Row) -> list[Assessment]:
    """The environment's reward and metrics, the advantage, and the age: the versions between the policy that played and
    the one trained."""
    own = {"reward": row["raw_reward"], **dict(row["metrics"])}
    own.pop("partial_format", None)  # few episodes have it, and MLflow's list of traces shows five columns
    values = {**own, "advantage": row["advantage"], "age": row["iteration"] - row["policy_version"]}
    ended_ms = int((row["started"] + row["seconds"]) * 1000)
    return [
        Assessment(
            name=name,
            feedback=FeedbackValue(round(value, 6)),  # float32 has no more digits
            source=AssessmentSource("CODE", run.environment if name in own else "grpo"),
            trace_id=f"tr-{_id(run, row).hex()}",
            assessment_id=f"a-{_id(run, row, name).hex()}",
            create_time_ms=ended_ms,
            last_update_time_ms=ended_ms,
        )
        for name, value in values.items()
        if value is not None  # an error has no reward
    ]


def _spans(run: Run, row: Row) -> Iterator[Span]:
    """The episode, and a child for each reply and for each result of a tool.

    Many episodes are played at once, and when each turn was played is not recorded: they share the rollout's seconds
    evenly.
    """
    messages, replies = [_chat(message) for message in row["messages"]], _replies(row)
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls", ())}
    tools = [place for place, message in enumerate(messages) if message["role"] == "tool"]
    places = sorted({*replies, *(place for place in tools if replies and place > replies[0])})
    times = np.linspace(row["started"], row["started"] + row["seconds"], len(places) + 1)
    about = {"task": row["task_id"], "seed": str(row["seed"]), "group": row["group_id"]}
    ended = {name: row[name] for name in ("outcome", "finish_reason", "error") if row[name]}
    whole = {Key.SPAN_TYPE: "AGENT", Key.INPUTS: about, Key.OUTPUTS: {"reward": row["raw_reward"], **ended}}
    yield _span(run, row, 0, f"episode {row['trajectory_id']}", (times[0], times[-1]), whole, row["error"])
    for number, (place, between) in enumerate(zip(places, itertools.pairwise(times), strict=True), start=1):
        message = messages[place]
        if message["role"] == "tool":
            call = calls.get(message.get("tool_call_id"), {"name": "tool", "arguments": ""})
            name = call["name"]
            shown = {Key.SPAN_TYPE: "TOOL", Key.INPUTS: _values(call["arguments"]), Key.OUTPUTS: message["content"]}
        else:
            name, answer = f"turn {replies.index(place) + 1}", row["messages"][place]
            shown = {
                Key.SPAN_TYPE: "CHAT_MODEL",
                Key.INPUTS: {"messages": messages[:place]},
                Key.OUTPUTS: {"choices": [{"message": message}]},
                "observation": messages[place - 1]["content"],
                "reply": message["content"],
                "reward": answer["reward"],
                "note": answer["note"] or None,
            }
        yield _span(run, row, number, name, between, shown)


def _values(arguments: str) -> Any:
    """The arguments of a call by name, so that code is shown as lines; the text where it is no JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _chat(message: Row) -> dict[str, Any]:
    """A message as chat APIs write it."""
    chat = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        chat["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message["tool_calls"]
        ]
    if message["tool_call_id"]:
        chat["tool_call_id"] = message["tool_call_id"]
    return chat


def _span(
    run: Run, row: Row, number: int, name: str, between: tuple[float, float], shown: Row, error: str = ""
) -> Span:
    """Span `number` of an episode; 0 is the root, whose children are all the others."""
    parts = {"trace_id": _id(run, row), "span_id": _id(run, row, number, size=8)}
    if number:
        parts["parent_span_id"] = _id(run, row, 0, size=8)
    known = {Key.REQUEST_ID: f"tr-{_id(run, row).hex()}", **shown}
    attributes = {key: json.dumps(value, ensure_ascii=False) for key, value in known.items() if value is not None}
    return Span.from_dict(
        {
            "parent_span_id": None,
            **{key: base64.b64encode(part).decode() for key, part in parts.items()},
            "name": name,
            "start_time_unix_nano": int(between[0] * 1e9),
            "end_time_unix_nano": int(between[1] * 1e9),
            "status": {"code": "STATUS_CODE_ERROR", "message": error} if error else {"code": "STATUS_CODE_OK"},
            "attributes": attributes,
        }
    )
