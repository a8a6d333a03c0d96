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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.config import GrpoConfig, Run
from tasks.records import trajectory_numbers
from tasks.seeds import derived_seed
from tasks.tracking.mlflow_store import client, try_to_send

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

Row = Mapping[str, Any]
PREVIEW = 1000  # characters, MLflow's limit


def log_episodes(
    run: Run, config: GrpoConfig, batch: pa.Table, *, iteration: int, started: float, seconds: float
) -> int:
    """Write the episodes of this iteration that become traces; returns how many came to MLflow.

    `batch` has advantages; its episodes were played from `started`, seconds since 1970, for `seconds`. A tracking
    server that does not answer costs a few seconds and these traces, never the stage.
    """
    rows = rows_to_trace(run, config, batch, iteration)
    if not rows:
        return 0

    def send() -> None:
        from mlflow.tracing.client import TracingClient

        tracing = TracingClient(run.tracking_uri)
        experiment = client(run.tracking_uri).get_run(run.mlflow_run_id).info.experiment_id
        for row in rows:
            tracing.start_trace(_trace(run, experiment, row, iteration, started, seconds))
        tracing.log_spans(experiment, [span for row in rows for span in _spans(run, row, started, seconds)])

    sent = try_to_send(f"{len(rows)} traces of iteration {iteration}", run.tracking_uri, send)
    return len(rows) if sent else 0


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
    rows = batch.filter(pa.array(wanted)).to_pylist()
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


def _id(run: Run, row: Row, *parts: object, size: int = 16) -> str:
    """A number of `size` bytes made from the run, the trajectory and a name, in hexadecimal digits; without a name the
    trace's."""
    text = "/".join(map(str, (run.mlflow_run_id, row["trajectory_id"], *parts)))
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _replies(row: Row) -> list[int]:
    """Where the policy's replies are in the conversation: the prompt may hold further ones, as examples."""
    said = [place for place, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    return said[len(said) - row["turns"] :]


def _trace(run: Run, experiment: str, row: Row, iteration: int, started: float, seconds: float) -> "TraceInfo":
    from mlflow.entities import TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.constant import TRACE_SCHEMA_VERSION, TRACE_SCHEMA_VERSION_KEY, TraceMetadataKey, TraceTagKey

    messages, replies = row["messages"], _replies(row)
    asked = messages[: replies[0] if replies else None][-1:]
    said = ", ".join(messages[place]["content"] or "" for place in replies)
    return TraceInfo(
        trace_id=f"tr-{_id(run, row)}",
        client_request_id=row["trajectory_id"],
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=int(started * 1000),
        execution_duration=int(seconds * 1000),
        state=TraceState.ERROR if row["finish_reason"] == "error" else TraceState.OK,
        request_preview=(asked[0]["content"] or "")[:PREVIEW] if asked else "",
        response_preview=f"{said[: PREVIEW - 100]}: {row['outcome'][:90]}",
        trace_metadata={
            TraceMetadataKey.SOURCE_RUN: run.mlflow_run_id,
            TRACE_SCHEMA_VERSION_KEY: str(TRACE_SCHEMA_VERSION),
        },
        tags={
            TraceTagKey.TRACE_NAME: row["trajectory_id"],
            "iteration": str(iteration),
            "policy_version": str(row["policy_version"]),
            "outcome": row["outcome"],
            "run": run.name,
            "group": row["group_id"],
            "task": row["task_id"],
        },
        assessments=_assessments(run, row, iteration, started + seconds),
    )


def _assessments(run: Run, row: Row, iteration: int, now: float) -> "list[Assessment]":
    """The environment's reward and metrics, the advantage, and the age: the versions between the policy that played and
    the one trained."""
    from mlflow.entities import AssessmentSource, Feedback

    own = {"reward": row["raw_reward"], **dict(row["metrics"])}
    values = {**own, "advantage": row["advantage"], "age": iteration - row["policy_version"]}
    assessments = []
    for name, value in values.items():
        if value is not None:  # an error has no reward
            feedback = Feedback(
                name=name,
                value=round(value, 6),  # float32 has no more digits
                source=AssessmentSource("CODE", run.environment if name in own else "grpo"),
                trace_id=f"tr-{_id(run, row)}",
                create_time_ms=int(now * 1000),
                last_update_time_ms=int(now * 1000),
            )
            feedback.assessment_id = f"a-{_id(run, row, name)}"
            assessments.append(feedback)
    return assessments


def _spans(run: Run, row: Row, started: float, seconds: float) -> "Iterator[Span]":
    """The episode, and a child for each reply and for each result of a tool.

    Many episodes are played at once, and when each turn was played is not recorded: they share the rollout's seconds
    evenly.
    """
    messages, replies = [_chat(message) for message in row["messages"]], _replies(row)
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls", ())}
    tools = [place for place, message in enumerate(messages) if message["role"] == "tool"]
    places = sorted({*replies, *(place for place in tools if replies and place > replies[0])})
    times = np.linspace(started, started + seconds, len(places) + 1)
    ended = {name: row[name] for name in ("outcome", "finish_reason", "error") if row[name]}
    about = {"task": row["task_id"], "seed": str(row["seed"]), "group": row["group_id"]}
    name, whole = f"episode {row['trajectory_id']}", (times[0], times[-1])
    yield _span(run, row, 0, name, "AGENT", whole, about, {"reward": row["raw_reward"], **ended}, error=row["error"])
    for number, (place, between) in enumerate(zip(places, itertools.pairwise(times), strict=True), start=1):
        message = messages[place]
        if message["role"] == "tool":
            call = calls.get(message.get("tool_call_id"), {"name": "tool", "arguments": ""})
            yield _span(run, row, number, call["name"], "TOOL", between, call["arguments"], message["content"])
            continue
        answered = {key: row["messages"][place][key] for key in ("reward", "note")}
        seen: dict[str, Any] = {"observation": messages[place - 1]["content"], "reply": message["content"]}
        seen |= {key: value for key, value in answered.items() if value not in (None, "")}
        prompt, choices = {"messages": messages[:place]}, {"choices": [{"message": message}]}
        turn = f"turn {replies.index(place) + 1}"
        yield _span(run, row, number, turn, "CHAT_MODEL", between, prompt, choices, **seen)


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
    run: Run,
    row: Row,
    number: int,
    name: str,
    kind: str,
    between: tuple[float, float],
    inputs: object,
    outputs: object,
    error: str = "",
    **attributes: object,
) -> "Span":
    """Span `number` of an episode; 0 is the root, whose children are all the others."""
    from mlflow.entities import Span
    from mlflow.tracing.constant import SpanAttributeKey

    def bytes_of(digits: str) -> str:
        return base64.b64encode(bytes.fromhex(digits)).decode()

    def span_id(of: int) -> str:
        return bytes_of(_id(run, row, of, size=8))

    known = {
        SpanAttributeKey.REQUEST_ID: f"tr-{_id(run, row)}",
        SpanAttributeKey.SPAN_TYPE: kind,
        SpanAttributeKey.INPUTS: inputs,
        SpanAttributeKey.OUTPUTS: outputs,
        **attributes,
    }
    return Span.from_dict(
        {
            "trace_id": bytes_of(_id(run, row)),
            "span_id": span_id(number),
            "parent_span_id": span_id(0) if number else None,
            "name": name,
            "start_time_unix_nano": int(between[0] * 1e9),
            "end_time_unix_nano": int(between[1] * 1e9),
            "status": {"code": "STATUS_CODE_ERROR", "message": error} if error else {"code": "STATUS_CODE_OK"},
            "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in known.items()},
        }
    )
