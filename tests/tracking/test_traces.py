"""Traces in a real store, SQLite's and a server's, read back by MLflow's own client."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.advantage.advantages import add_advantages
from tasks.config import GrpoConfig, Run
from tasks.records import Sample, to_table
from tasks.tracking import mlflow_run, mlflow_store, outbox
from tasks.tracking.mlflow_store import client
from tasks.tracking.traces import is_traced, log_episodes, rows_to_trace

CONFIG = GrpoConfig.from_dict({"rollout": {"group_size": 2}, "tracking": {"trace_groups": 2, "max_traces": 100}})
CARDS = ("Cards 10 2, hard 12. Dealer 10.", "Cards 10 2 4, hard 16. Dealer 10.")
STARTED, SECONDS = 1_700_000_000.0, 4.0


@pytest.fixture(scope="module", params=["sqlite", "server"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "server":
        return request.getfixturevalue("mlflow_server").url
    return f"sqlite:///{tmp_path_factory.mktemp('runs') / 'mlflow.db'}"


def opened(uri: str, name: str, iterations: int = 8) -> Run:
    run_id = mlflow_run.open_run(uri=uri, name=name, token=name, parameters={}, tags={})
    return a_run(uri, iterations, name, run_id)


def a_run(uri: str = "sqlite://", iterations: int = 8, name: str = "a", run_id: str = "id") -> Run:
    return Run(
        name=name,
        token=name,
        seed=0,
        environment="blackjack",
        environment_url="",
        mlflow_run_id=run_id,
        tracking_uri=uri,
        iterations=iterations,
    )


def sample(
    group: int,
    member: int,
    reward: float | None,
    *,
    finish: str = "finished",
    outcome: str = "lost",
    turns: int = 1,
    iteration: int = 3,
    **changes: Any,
) -> Sample:
    said: list[dict[str, Any]] = [{"role": "system", "content": "You play BlackJack."}]
    for cards, move in zip(CARDS[:turns], ("HIT", "STAND"), strict=False):
        said += [{"role": "user", "content": cards}, {"role": "assistant", "content": move, "reward": 0.0}]
    if reward is not None:
        said[-1] |= {"reward": reward, "note": f"{outcome}, at last"}
    known: dict[str, Any] = {
        "trajectory_id": f"{iteration:05d}-{group:05d}-{member}",
        "sample": 0,
        "group_id": f"{iteration:05d}-{group:05d}",
        "task_id": f"deck-{group}",
        "seed": 2**61 - 1,
        "policy_version": 2,
        "token_ids": [1, 2],
        "loss_mask": [False, True],
        "logprobs": [0.0, -0.5],
        "reward": reward,
        "raw_reward": reward,
        "turns": turns,
        "invalid": finish == "invalid",
        "finish_reason": finish,
        "outcome": outcome,
        "error": "",
        "metrics": [("agreement", 0.5)],
        "messages": said,
    }
    return Sample(**{**known, **changes})


def batch(*samples: Sample) -> pa.Table:
    return add_advantages(to_table(samples))[0]


# Of these four groups two have reward variance, numbers 1 and 3.
EPISODES = (
    *(sample(0, 0, 1.0, outcome="won"), sample(0, 1, 1.0, outcome="won")),
    *(sample(1, 0, 1.0, outcome="won", turns=2), sample(1, 1, -1.0, finish="invalid", outcome="invalid")),
    *(sample(2, 0, 0.0, outcome="pushed"), sample(2, 1, 0.0, outcome="pushed")),
    *(sample(3, 0, 0.0, outcome="pushed"), sample(3, 1, -1.0)),
)


def log(run: Run) -> None:
    log_episodes(run, CONFIG, batch(*EPISODES), iteration=3, started=STARTED, seconds=SECONDS)


def traces(run: Run, query: str | None = None) -> dict[str, Any]:
    mlflow = client(run.tracking_uri)
    home = mlflow.get_run(run.mlflow_run_id).info.experiment_id
    found = mlflow.search_traces(locations=[home], filter_string=query, run_id=run.mlflow_run_id)
    return {trace.info.client_request_id: trace for trace in found}


def test_an_episode_becomes_a_trace_of_the_run(uri: str) -> None:
    run = opened(uri, "one")
    log(run)
    found = traces(run)
    assert sorted(found) == ["00003-00001-0", "00003-00001-1", "00003-00003-0", "00003-00003-1"]
    trace = found["00003-00001-0"]
    tags = {key: value for key, value in trace.info.tags.items() if not key.startswith("mlflow.")}
    about = {"iteration": "3", "policy_version": "2", "run": "one", "group": "00003-00001", "task": "deck-1"}
    assert tags == {**about, "outcome": "won"}
    assert trace.info.state == "OK"
    assert trace.info.trace_metadata["mlflow.sourceRun"] == run.mlflow_run_id
    assert (trace.info.request_time, trace.info.execution_duration) == (STARTED * 1000, SECONDS * 1000)
    assert (trace.info.request_preview, trace.info.response_preview) == (CARDS[0], "HIT, STAND: won")
    feedback = {a.name: a.feedback.value for a in trace.info.assessments}
    assert feedback == {"reward": 1.0, "agreement": 0.5, "advantage": 1.0, "age": 1}
    root, first, second = sorted(trace.data.spans, key=lambda span: (span.parent_id is not None, span.start_time_ns))
    assert root.inputs == {"task": "deck-1", "seed": str(2**61 - 1), "group": "00003-00001"}
    assert root.outputs == {"reward": 1.0, "outcome": "won", "finish_reason": "finished"}
    assert [(s.parent_id, s.name, s.attributes["observation"], s.attributes["reply"]) for s in (first, second)] == [
        (root.span_id, "turn 1", CARDS[0], "HIT"),
        (root.span_id, "turn 2", CARDS[1], "STAND"),
    ]
    assert [message["content"] for message in second.inputs["messages"]] == [
        "You play BlackJack.",
        CARDS[0],
        "HIT",
        CARDS[1],
    ]
    assert second.outputs["choices"][0]["message"] == {"role": "assistant", "content": "STAND"}
    answers = [(s.attributes["reward"], s.attributes.get("note")) for s in (first, second)]
    assert answers == [(0.0, None), (1.0, "won, at last")]
    begin, middle, end = STARTED * 1e9, (STARTED + 2) * 1e9, (STARTED + 4) * 1e9
    assert [(s.start_time_ns, s.end_time_ns) for s in (root, first, second)] == [
        (begin, end),
        (begin, middle),
        (middle, end),
    ]


def test_traces_are_found_by_iteration_and_outcome(uri: str) -> None:
    run = opened(uri, "filtered")
    log(run)
    log_episodes(
        run,
        CONFIG,
        batch(sample(1, 0, 1.0, outcome="won", iteration=4), sample(1, 1, -1.0, iteration=4)),
        iteration=4,
        started=STARTED,
        seconds=SECONDS,
    )
    assert sorted(traces(run, "tags.iteration = '3' AND tags.outcome = 'lost'")) == ["00003-00003-1"]
    assert sorted(traces(run, "tags.outcome = 'won'")) == ["00003-00001-0", "00004-00001-0"]
    assert sorted(traces(run, "tags.iteration = '4'")) == ["00004-00001-0", "00004-00001-1"]


def test_a_repeated_stage_leaves_nothing_twice(uri: str) -> None:
    run, other = opened(uri, "repeated"), opened(uri, "another")
    for _ in range(3):
        log(run)
    log(other)  # the same episodes in another run are traces of their own
    found = traces(run)
    assert len(found) == len(traces(other)) == 4
    assert sorted(len(trace.data.spans) for trace in found.values()) == [2, 2, 2, 3]
    assert {len(trace.info.assessments) for trace in found.values()} == {4}


def test_groups_with_reward_variance_come_first_and_the_same_ones_every_time() -> None:
    run = a_run()
    chosen = {row["group_id"] for row in rows_to_trace(run, CONFIG, batch(*EPISODES), 3)}
    assert chosen == {"00003-00001", "00003-00003"}
    more = GrpoConfig.from_dict({"tracking": {"trace_groups": 3}})
    assert len({row["group_id"] for row in rows_to_trace(run, more, batch(*EPISODES), 3)} - chosen) == 1
    none = GrpoConfig.from_dict({"tracking": {"trace_groups": 0}})
    assert rows_to_trace(run, none, batch(*EPISODES), 3) == []


def test_the_last_sample_of_an_episode_has_its_whole_conversation() -> None:
    run = a_run()
    later = sample(1, 0, 1.0, turns=2, sample=1)
    rows = rows_to_trace(run, CONFIG, batch(sample(1, 0, 1.0), later, sample(1, 1, -1.0)), 3)
    assert {row["trajectory_id"]: len(row["messages"]) for row in rows} == {"00003-00001-0": 5, "00003-00001-1": 3}
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("groups", "most", "iterations", "traced"),
    [
        (2, 100, 8, {v: 4 for v in range(8)}),  # enough for all
        (2, 12, 9, {0: 4, 4: 4, 8: 4}),  # three iterations' worth, spread
        (2, 7, 9, {0: 4}),
        (2, 3, 9, {0: 2}),  # not even one iteration's: one group of it
        (2, 1, 9, {}),
    ],
)
def test_a_run_has_no_more_traces_than_its_cap(groups: int, most: int, iterations: int, traced: dict[int, int]) -> None:
    config = GrpoConfig.from_dict(
        {"rollout": {"group_size": 2}, "tracking": {"trace_groups": groups, "max_traces": most}}
    )
    run = a_run(iterations=iterations)
    found = {v: len(rows_to_trace(run, config, batch(*EPISODES), v)) for v in range(iterations)}
    assert {v: count for v, count in found.items() if count} == traced
    assert sum(found.values()) <= most


def test_iterations_with_traces_are_spread_over_the_run() -> None:
    assert [v for v in range(80) if is_traced(v, 80, 6)] == [0, 16, 32, 47, 63, 79]
    assert all(is_traced(v, 5, 5) for v in range(5))


def test_an_episode_that_was_dropped_has_the_environments_reward(uri: str) -> None:
    run = opened(uri, "dropped")
    cut = sample(1, 0, None, finish="truncated", outcome="truncated", raw_reward=-1.0)
    episodes = batch(cut, sample(1, 1, 1.0), sample(1, 2, -1.0))
    log_episodes(run, CONFIG, episodes, iteration=3, started=STARTED, seconds=SECONDS)
    trace = traces(run)["00003-00001-0"]
    found = {a.name: a.feedback.value for a in trace.info.assessments}
    assert found == {"reward": -1.0, "agreement": 0.5, "advantage": 0.0, "age": 1}


def test_an_error_has_its_reason_and_no_reward(uri: str) -> None:
    run, reason = opened(uri, "failed"), "blackjack failed in a step: the server went away"
    failed = sample(1, 0, None, finish="error", outcome="error", error=reason, metrics=[])
    mute = sample(1, 1, None, finish="error", outcome="error", error=reason, metrics=[], turns=0)
    episodes = batch(failed, mute, sample(1, 2, 1.0), sample(1, 3, -1.0))
    log_episodes(run, CONFIG, episodes, iteration=3, started=STARTED, seconds=SECONDS)
    found = traces(run, "trace.status = 'ERROR'")
    assert sorted(found) == ["00003-00001-0", "00003-00001-1"]
    trace = found["00003-00001-0"]
    root, turn = sorted(trace.data.spans, key=lambda span: span.parent_id is not None)
    assert (root.status.status_code, root.status.description) == ("ERROR", reason)
    assert root.outputs == {"reward": None, "outcome": "error", "finish_reason": "error", "error": reason}
    assert turn.status.status_code == "OK"
    assert {a.name: a.feedback.value for a in trace.info.assessments} == {"advantage": 0.0, "age": 1}
    assert len(found["00003-00001-1"].data.spans) == 1  # it failed before the first reply


def test_tools_have_spans_and_examples_in_the_prompt_have_none(uri: str) -> None:
    run = opened(uri, "tools")
    call = {"id": "c1", "name": "python", "arguments": '{"code": "1+1"}'}
    said = [
        {"role": "user", "content": "3+3"},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reward": 0.0, "note": "a call"},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2", "reward": 1.0, "note": "right"},
    ]
    episodes = batch(sample(1, 0, 1.0, messages=said, turns=2), sample(1, 1, -1.0))
    log_episodes(run, CONFIG, episodes, iteration=3, started=STARTED, seconds=SECONDS)
    trace = traces(run)["00003-00001-0"]
    assert trace.info.request_preview == "1+1"
    _, first, tool, second = sorted(trace.data.spans, key=lambda s: (s.parent_id is not None, s.start_time_ns))
    assert [(s.name, s.span_type) for s in (first, tool, second)] == [
        ("turn 1", "CHAT_MODEL"),
        ("python", "TOOL"),
        ("turn 2", "CHAT_MODEL"),
    ]
    assert (tool.inputs, tool.outputs) == ({"code": "1+1"}, "2")
    function = {"name": "python", "arguments": '{"code": "1+1"}'}
    reply = first.outputs["choices"][0]["message"]
    assert reply["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert second.inputs["messages"][-1] == {"role": "tool", "content": "2", "tool_call_id": "c1"}


def test_previews_are_no_longer_than_mlflow_takes(uri: str) -> None:
    run = opened(uri, "long")
    said = [{"role": "user", "content": "x" * 3000}, {"role": "assistant", "content": "y" * 3000}]
    log_episodes(
        run,
        CONFIG,
        batch(sample(1, 0, 1.0, messages=said, outcome="won"), sample(1, 1, -1.0)),
        iteration=3,
        started=STARTED,
        seconds=SECONDS,
    )
    info = traces(run)["00003-00001-0"].info
    assert len(info.request_preview) == 1000 and len(info.response_preview) <= 1000
    assert info.response_preview.endswith("y: won")


def test_traces_that_a_server_could_not_take_come_later(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], closed_port: int
) -> None:
    run = opened(uri, "late")
    away = run.replace(tracking_uri=f"http://127.0.0.1:{closed_port}")
    log(away)
    assert f"MLflow at {away.tracking_uri} is away; what it is to get is kept" in capsys.readouterr().out
    outbox.save_pending(away, tmp_path)
    assert traces(run) == {}
    for _ in range(2):
        outbox.flush_pending(run, [tmp_path])
        assert sorted(len(trace.data.spans) for trace in traces(run).values()) == [2, 2, 2, 3]
    mlflow_store.note_answer(away.tracking_uri, True)
