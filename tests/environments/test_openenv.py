"""Anybody's OpenEnv server by a record: observations become messages, replies actions, steps rewards; bad servers."""

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from servers import free_port
from stand_ins import app
from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import EnvironmentSpec, Step
from tasks.environments.scripted import play_baseline


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


def opened(url: str, **options: Any) -> EnvironmentSpec:
    return get_environment("openenv", {"url": url, **options})


def played(spec: EnvironmentSpec, *replies: str, index: int = 0) -> list[Step]:
    async def play() -> list[Step]:
        environment = spec.make()
        steps = [await environment.reset(spec.task("train", index))]
        for reply in replies:
            steps.append(await environment.step({"role": "assistant", "content": reply}))
        await environment.close()
        return steps

    return asyncio.run(play())


def number(seed: int, low: int, high: int) -> int:
    return random.Random(seed).randint(low, high)


def test_the_schema_says_which_field_takes_the_reply(url: str) -> None:
    spec = opened(f"{url}/sums", metrics=["score"], system="Add.", reset={"top": 99})
    rng = random.Random(spec.task("train", 0).seed)
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    first, right = played(spec, f" {a + b}\n")
    assert first.messages == [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{a}+{b}=?"}]
    assert (right.reward, right.done, right.valid, right.metrics) == (1.0, True, True, {"score": 1.0})
    assert played(spec, "no idea")[1].reward == 0.0
    check_environment(spec, "", timeout_s=60)
    assert spec.defaults["rollout"]["concurrent_episodes"] == 8


def test_templates_types_and_rewards_of_several_steps(url: str) -> None:
    record = {"prompt": "At {place}, to {goal[x]}.", "next_prompt": "Now {place}.", "fields": {"loud": True}}
    spec = opened(f"{url}/walk", **record)
    goal = number(spec.task("train", 0).seed, 1, 50)
    assert goal > 2
    steps = played(spec, "2", " -1 ", "2")
    assert steps[0].messages == [{"role": "user", "content": f"At 0, to {goal}."}]
    assert [step.messages[0]["content"] for step in steps[1:3]] == ["Now 2.", "Now 1."]
    assert [step.reward for step in steps] == [0.0, 2.0, -1.0, 2.0]
    # Not a whole number, or not one that the server takes.
    for reply in ("right", "1.5", "true", "", "7"):
        last = played(spec, reply)[-1]
        assert (last.done, last.valid, last.reward) == (True, False, 0.0)
    assert not played(opened(f"{url}/walk"), "2")[1].done


def test_the_last_reward_or_their_sum_and_what_ends_an_episode(url: str) -> None:
    three = {"turns": 3, "pattern": r"MOVE (-?\d+)"}
    added = played(opened(f"{url}/walk", **three), "I MOVE 2.", "MOVE 1", "MOVE -1")
    assert [(step.reward, step.done) for step in added] == [(0.0, False), (2.0, False), (1.0, False), (-1.0, True)]
    last = played(opened(f"{url}/walk", rewards="last", **three), "MOVE 2", "MOVE 1", "MOVE -1")
    assert [(step.reward, step.done) for step in last] == [(0.0, False), (0.0, False), (0.0, False), (-1.0, True)]
    assert not played(opened(f"{url}/walk", **three), "2")[1].valid


def test_tools_are_offered_and_called(url: str) -> None:
    spec = opened(f"{url}/safe", prompt="Open it. {metadata[label]}", turns=4)
    assert [tool.name for tool in spec.tools] == ["look", "dial"]
    assert spec.tools[1].parameters["required"] == ["number"] and spec.tools[0].description == "Tells the number."
    secret = number(spec.task("train", 0).seed, 1, 10**6)

    def call(name: str, **arguments: Any) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    first, looked, wrong, broken, done = played(
        spec, call("look"), call("dial", number=1), call("dial", number="?"), call("dial", number=secret)
    )
    assert first.messages[-1]["content"] == f"Open it. Safe {secret % 1000}"
    assert looked.messages == [{"role": "tool", "content": f"The number is {secret}.", "tool_call_id": "call-1"}]
    assert looked.tool_calls == [{"id": "call-1", "name": "look", "arguments": "{}"}]
    assert wrong.messages[0]["content"] == "false" and wrong.reward == 0.0
    assert broken.messages[0]["content"].startswith("error: the arguments of dial do not fit")
    assert (done.reward, done.done, done.metrics) == (1.0, True, {"tool_calls": 1.0})
    assert [(s.done, s.valid, s.reward) for s in played(spec, "I give up.")[1:]] == [(True, True, 0.0)]
    check_environment(spec, "", timeout_s=60)


def test_replies_are_a_baseline_and_what_tiny_imitates(url: str) -> None:
    spec = opened(f"{url}/sums", replies=["2", "3", "4"], reset={"top": 2}, reward_range=[0, 1])
    episodes = play_baseline(spec, "random", [spec.task("test", index) for index in range(30)])
    assert 0 < sum(episode.reward for episode in episodes) < 30
    assert spec.demonstrations is not None
    assert {one.messages[-1]["content"] for one in spec.demonstrations(0, 30)} == {"2", "3", "4"}
    assert spec.reward_range == (0, 1)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("dice", "tell different things: chance decides there, and no replies lead back to what it decided; allowed: "),
        (
            "silent",
            '/silent", whose resets with 5 seeds all tell the same; allowed: another beginning for another seed',
        ),
    ],
)
def test_a_server_that_ignores_the_seed_is_refused_or_accepted(url: str, name: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_environment(opened(f"{url}/{name}"), "", timeout_s=60)
    assert complaint in str(caught.value)
    check_environment(opened(f"{url}/{name}", unseeded=True), "", timeout_s=60)


OPENINGS = [["1"], ["2"], ["2", "2"], ["-1"], ["-2", "-1"]]


def test_a_group_replays_its_opening_on_a_server_with_one_beginning(url: str) -> None:
    spec = opened(f"{url}/known", openings=OPENINGS, prompt="{place} of {goal[x]}", rewards="sum")
    check_environment(spec, "", timeout_s=60)
    tasks = {split: [spec.task(split, index) for index in range(40)] for split in ("train", "test")}
    names = {split: {task.id for task in of} for split, of in tasks.items()}
    assert names["train"] | names["test"] == {json.dumps(opening) for opening in OPENINGS}
    assert not names["train"] & names["test"] and len(names["test"]) == spec.test_tasks == 2
    for index, task in enumerate(tasks["train"][:10]):
        place = sum(map(int, json.loads(task.id)))
        for _ in range(2):
            first, moved = played(spec, "2", index=index)
            assert first.messages == [{"role": "user", "content": f"{place} of 16"}]
            assert moved.reward == 2.0  # that of the opening does not count


def test_openings_call_tools_where_the_server_has_some(url: str) -> None:
    def call(number: int) -> str:
        return f'<tool_call>{{"name": "dial", "arguments": {{"number": {number}}}}}</tool_call>'

    told = opened(f"{url}/safe", openings=[[call(1)], [call(2)]], prompt="{result}")
    with pytest.raises(ValueError, match="whose resets with 2 openings all tell the same"):  # a wrong number each
        check_environment(told, "", timeout_s=60)
    unread = opened(f"{url}/safe", openings=[["dial 1"], ["dial 2"]], prompt="{result}")
    with pytest.raises(ValueError, match="the server does not take the reply 'dial"):
        check_environment(unread, "", timeout_s=60)


@pytest.mark.parametrize(
    ("name", "openings", "complaint"),
    [
        ("lost", OPENINGS, 'two resets with the opening ["'),
        (
            "known",
            [["1"], ["1", "0"]],
            "whose resets with 2 openings all tell the same; allowed: another beginning",
        ),
        ("known", [["7"], ["9"]], "the server does not take the reply '"),
        ("dice", [["7"], ["9"]], "the server ends an episode with the reply '"),
    ],
)
def test_openings_that_lead_to_no_known_place_are_refused(
    url: str, name: str, openings: list[list[str]], complaint: str
) -> None:
    with pytest.raises(ValueError) as caught:
        check_environment(opened(f"{url}/{name}", openings=openings), "", timeout_s=60)
    assert complaint in str(caught.value)


def test_the_record_in_the_documentation(url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    config = RolloutConfig.from_dict(
        yaml.safe_load(re.findall(r"^```\n(rollout:.*?)^```$", page, re.M | re.S)[0])["rollout"]
    )
    spec = get_environment("openenv", {**config.environment_options, "url": f"{url}/sums"})
    assert played(spec, "x")[0].messages[0]["content"].endswith("=? Answer with the number alone.")
    check_environment(spec, "", timeout_s=60)


def test_seeds_of_tests_are_never_those_of_training(url: str) -> None:
    spec = opened(f"{url}/sums")
    train, test = ({spec.task(split, index).seed for index in range(500)} for split in ("train", "test"))
    assert len(train) == len(test) == 500 and not train & test and max(train | test) < 2**31


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"action": "reply"}, 'option action is "reply"; allowed: one of the action\'s fields: answer.'),
        ({"fields": {"color": 1}}, 'a field in option fields is "color"; allowed: the action\'s fields: answer.'),
        ({"rewards": "mean"}, 'option rewards is "mean"; allowed: sum, last.'),
        ({"turns": 0}, "option turns is 0; allowed: 1 or more, or null where the server ends its episodes."),
        ({"pattern": "MOVE"}, 'option pattern is "MOVE"; allowed: a regular expression with a group.'),
        ({"prompt": "{question"}, 'option prompt is "{question"; allowed: a template with fields in braces'),
        ({"format": "xml"}, 'format is "xml"; allowed: tool_call, python, line, bare.'),
        ({"replies": "a"}, 'option replies is "a"; allowed: a list of texts.'),
        ({"sessions": 0}, "option sessions is 0; allowed: 1 or more."),
        ({"openings": "ab"}, 'option openings is "ab"; allowed: two or more lists of replies'),
        ({"openings": [["a"]]}, "option openings is "),
        ({"openings": [["a"], ["a"]]}, "option openings is "),
        (
            {"openings": [["a"], ["b"]], "unseeded": True},
            "option unseeded is True; allowed: false with option openings.",
        ),
        (
            {"url": "localhost:8000"},
            'option url is "localhost:8000"; allowed: an address of the form http://host:port.',
        ),
    ],
)
def test_a_bad_record_is_one_sentence(url: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_environment("openenv", {"url": f"{url}/sums", **options})
    assert str(caught.value).startswith(complaint)


def test_a_template_that_names_what_the_server_has_not(url: str) -> None:
    with pytest.raises(ValueError, match=r"^option prompt names 'riddle', and the server's observation has metadata, "):
        check_environment(opened(f"{url}/sums", prompt="{riddle}"), "", timeout_s=60)


def test_something_else_or_nobody_answers(closed_port: int) -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(ValueError, match=r"and what answers there is no OpenEnv server: /schema gives 501\.$"):
        opened(f"http://127.0.0.1:{other.server_port}")
    other.shutdown()
    other.server_close()
    with pytest.raises(ConnectionError, match=rf'^option url is "http://127.0.0.1:{closed_port}", and nobody answers'):
        opened(f"http://127.0.0.1:{closed_port}")


def test_another_server_given_as_ours_is_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match="does not speak in messages; another server is played by --environment openenv"
    ):
        check_environment(get_environment("traffic_lights"), f"{url}/sums", timeout_s=60)
