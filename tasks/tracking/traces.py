"""Episodes for people: a few groups an iteration as MLflow traces, one a game, linked to the training's run.

    game  seed, group  ──────────────────────────────►  reward
      ├─ turn 1   prompt  ──►  reply
      └─ turn 2   prompt  ──►  reply

All ids are made from the run's and the trajectory's: a stage that is repeated writes the same traces again.
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.advantage.advantages import has_reward_variance
from tasks.config import GrpoConfig, Run
from tasks.records import trajectory_numbers
from tasks.seeds import derived_seed
from tasks.tracking.mlflow_store import client
from tasks.tracking.patience import try_to_send

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

Row = Mapping[str, Any]


def log_games(run: Run, config: GrpoConfig, batch: pa.Table, *, iteration: int, started: float, seconds: float) -> int:
    """Write the games of this iteration that become traces; returns how many came to MLflow.

    `batch` has advantages; its games were played from `started`, seconds since 1970, for `seconds`. A tracking server
    that is away costs a few seconds and these traces, never the stage.
    """
    games = games_to_trace(run, config, batch, iteration)
    if not games:
        return 0

    def send() -> None:
        from mlflow.tracing.client import TracingClient

        tracing = TracingClient(run.tracking_uri)
        experiment = client(run.tracking_uri).get_run(run.mlflow_run_id).info.experiment_id
        for game in games:
            tracing.start_trace(_trace(run, experiment, game, iteration, started, seconds))
        tracing.log_spans(experiment, [span for game in games for span in _spans(run, game, started, seconds)])

    sent = try_to_send(f"{len(games)} traces of iteration {iteration}", run.tracking_uri, send)
    return len(games) if sent else 0


def games_to_trace(run: Run, config: GrpoConfig, batch: pa.Table, iteration: int) -> list[Row]:
    """One row a game, the whole conversation in it: all games of the groups chosen, none in some iterations.

    Groups whose rewards differ come first, ties by the seed. Where `tracking.max_traces` is less than what all
    iterations would give, the iterations that have traces are spread over the run.
    """
    size = config.rollout.group_size
    groups = min(config.tracking.trace_groups, config.tracking.max_traces // size)
    if not groups or not is_traced(iteration, run.iterations, config.tracking.max_traces // (groups * size)):
        return []
    trajectory, firsts = trajectory_numbers(batch)
    overview = batch.select(["group_id", "reward"]).take(firsts)
    ids = overview["group_id"].to_pylist()
    teaches = dict(zip(ids, has_reward_variance(overview["reward"].to_numpy(), ids).tolist(), strict=True))
    order = sorted(teaches, key=lambda group: (not teaches[group], derived_seed("trace", run.seed, group)))
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


def outcome(row: Row) -> str:
    """win, push or loss by the environment's own rules; invalid where a reply or its limits ended the game."""
    if row["invalid"]:
        return "invalid"
    return "win" if row["reward"] > 0 else "loss" if row["reward"] < 0 else "push"


def _id(run: Run, *parts: object, size: int) -> str:
    """A number made from the run and a name, in hexadecimal digits, `size` bytes of them."""
    text = "/".join(map(str, (run.mlflow_run_id, *parts)))
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _trace_id(run: Run, game: Row) -> str:
    return _id(run, game["trajectory_id"], size=16)


def _trace(run: Run, experiment: str, game: Row, iteration: int, started: float, seconds: float) -> "TraceInfo":
    from mlflow.entities import TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.constant import TRACE_SCHEMA_VERSION, TRACE_SCHEMA_VERSION_KEY, TraceMetadataKey, TraceTagKey

    replies = [message["content"] for message in game["messages"] if message["role"] == "assistant"]
    cards = next((message["content"] for message in game["messages"] if message["role"] == "user"), "")
    return TraceInfo(
        trace_id=f"tr-{_trace_id(run, game)}",
        client_request_id=game["trajectory_id"],
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=int(started * 1000),
        execution_duration=int(seconds * 1000),
        state=TraceState.OK,
        request_preview=cards,
        response_preview=f"{', '.join(replies)}: {outcome(game)}",
        trace_metadata={
            TraceMetadataKey.SOURCE_RUN: run.mlflow_run_id,
            TRACE_SCHEMA_VERSION_KEY: str(TRACE_SCHEMA_VERSION),
        },
        tags={
            TraceTagKey.TRACE_NAME: game["trajectory_id"],
            "iteration": str(iteration),
            "policy_version": str(game["policy_version"]),
            "outcome": outcome(game),
            "run": run.name,
            "group": game["group_id"],
        },
        assessments=_assessments(run, game, iteration, started + seconds),
    )


def _assessments(run: Run, game: Row, iteration: int, now: float) -> "list[Assessment]":
    """Reward, advantage and age, the versions between the policy that played and the one trained."""
    from mlflow.entities import AssessmentSource, Feedback

    values = {
        "reward": game["reward"],
        "advantage": game["advantage"],
        "age": iteration - game["policy_version"],
    }
    assessments = []
    for name, value in values.items():
        if value is not None:  # a trajectory that was dropped has no reward
            feedback = Feedback(
                name=name,
                value=round(value, 6),  # float32 has no more digits
                source=AssessmentSource("CODE", run.environment if name == "reward" else "grpo"),
                trace_id=f"tr-{_trace_id(run, game)}",
                create_time_ms=int(now * 1000),
                last_update_time_ms=int(now * 1000),
            )
            feedback.assessment_id = f"a-{_id(run, game['trajectory_id'], name, size=16)}"
            assessments.append(feedback)
    return assessments


def _spans(run: Run, game: Row, started: float, seconds: float) -> "list[Span]":
    """The game, and a child for each reply.

    Games of a wave advance together, and when each turn was played is not recorded: they share the rollout's seconds
    evenly.
    """
    messages = game["messages"]
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    times = np.linspace(started, started + seconds, len(ends) + 1)
    root = _span(
        run,
        game,
        0,
        f"game {game['trajectory_id']}",
        "AGENT",
        times[0],
        times[-1],
        inputs={"seed": str(game["seed"]), "group": game["group_id"]},
        outputs={"reward": game["reward"], "outcome": outcome(game), "finish_reason": game["finish_reason"]},
    )
    turns = [
        _span(
            run,
            game,
            turn,
            f"turn {turn}",
            "CHAT_MODEL",
            begin,
            end,
            inputs={"messages": messages[:place]},
            outputs={"choices": [{"message": messages[place]}]},
            observation=messages[place - 1]["content"],
            reply=messages[place]["content"],
        )
        for turn, (place, (begin, end)) in enumerate(zip(ends, itertools.pairwise(times), strict=True), start=1)
    ]
    return [root, *turns]


def _span(
    run: Run,
    game: Row,
    number: int,
    name: str,
    kind: str,
    begin: float,
    end: float,
    *,
    inputs: object,
    outputs: object,
    **attributes: object,
) -> "Span":
    """Span `number` of a game; 0 is the root, whose children are all the others."""
    from mlflow.entities import Span
    from mlflow.tracing.constant import SpanAttributeKey

    def bytes_of(digits: str) -> str:
        return base64.b64encode(bytes.fromhex(digits)).decode()

    def span_id(of: int) -> str:
        return bytes_of(_id(run, game["trajectory_id"], of, size=8))

    known = {
        SpanAttributeKey.REQUEST_ID: f"tr-{_trace_id(run, game)}",
        SpanAttributeKey.SPAN_TYPE: kind,
        SpanAttributeKey.INPUTS: inputs,
        SpanAttributeKey.OUTPUTS: outputs,
        **attributes,
    }
    return Span.from_dict(
        {
            "trace_id": bytes_of(_trace_id(run, game)),
            "span_id": span_id(number),
            "parent_span_id": span_id(0) if number else None,
            "name": name,
            "start_time_unix_nano": int(begin * 1e9),
            "end_time_unix_nano": int(end * 1e9),
            "status": {"code": "STATUS_CODE_OK"},
            "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in known.items()},
        }
    )
