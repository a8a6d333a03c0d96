"""Environments that are slow, fast or broken, together in one rollout, by a real engine."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollouts import sample_batch
from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import EnvironmentSpec, Message, Step, Task
from tasks.environments.scripted import play_baseline
from tasks.records import to_table
from tasks.rollout.play import play_tasks

BLACKJACK = get_environment("blackjack")
CONFIG = RolloutConfig(
    groups=12,
    max_groups=12,
    group_size=4,
    max_tokens=4,
    max_turns=16,
    max_episode_tokens=256,
    environment_timeout_s=0.2,
    max_error_share=1.0,
)


class Temperamental:
    """BlackJack whose task decides how it behaves; `opened` and `closed` count what was done to all of them."""

    opened = closed = calls = most_calls = 0
    tried: ClassVar[Counter[str]] = Counter()

    def __init__(self, behaviour: dict[int, str]) -> None:
        self.inner, self.behaviour = BLACKJACK.make(), behaviour
        type(self).opened += 1

    async def reset(self, task: Task) -> Step:
        self.task = task
        self.tried[task.id] += 1
        return await self.inner.reset(task)

    async def step(self, reply: Message) -> Step:
        kind = type(self)
        kind.calls += 1
        kind.most_calls = max(kind.most_calls, kind.calls)
        try:
            return await self.behave(reply, self.behaviour.get(self.task.data["number"], "fast"))
        finally:
            kind.calls -= 1

    async def behave(self, reply: Message, behaviour: str) -> Step:
        if behaviour == "slow":
            await asyncio.sleep(0.05)
        if behaviour == "late":
            await asyncio.sleep(60)
        if behaviour == "broken" or (behaviour == "shaky" and self.tried[self.task.id] == 1):
            raise RuntimeError("the table fell over")
        step = await self.inner.step(reply)
        if behaviour == "unpaid":
            return dataclasses.replace(step, reward=float("nan"))
        return None if behaviour == "silent" else step  # type: ignore[return-value]

    async def close(self) -> None:
        type(self).closed += 1
        raise RuntimeError("what goes wrong when it closes is no loss")


def temperamental(behaviour: dict[int, str]) -> EnvironmentSpec:
    Temperamental.opened = Temperamental.closed = Temperamental.calls = Temperamental.most_calls = 0
    Temperamental.tried = Counter()
    return dataclasses.replace(BLACKJACK, name="table", local=lambda: Temperamental(behaviour))


def tasks(count: int) -> list[Task]:
    return [Task(str(seed), "train", seed, {"number": seed}) for seed in range(count)]


def played(policy: Path, spec: EnvironmentSpec, config: RolloutConfig, count: int = 40) -> list[Any]:
    return play_tasks(
        policy, spec, tasks(count), config, temperature=1.0, reply_seed=lambda number, turn: 100 * number + turn
    )


@pytest.fixture(scope="module")
def alone(tiny_policy: Path) -> list[Any]:
    """One episode at a time, with nothing slow or broken."""
    return played(tiny_policy, BLACKJACK, CONFIG.replace(concurrent_episodes=1))


def test_slow_fast_and_broken_environments_change_nothing_for_each_other(tiny_policy: Path, alone: list[Any]) -> None:
    behaviour = {3: "slow", 8: "broken", 11: "late", 14: "unpaid", 17: "silent", 20: "shaky", 21: "slow", 30: "slow"}
    failing = {number for number, kind in behaviour.items() if kind not in ("slow", "shaky")}
    for episodes in (7, 40):
        spec = temperamental(behaviour)
        found = played(tiny_policy, spec, CONFIG.replace(concurrent_episodes=episodes))
        for number, (episode, expected) in enumerate(zip(found, alone, strict=True)):
            if number in failing:
                continue
            assert (episode.messages, episode.segments) == (expected.messages, expected.segments)  # bit for bit
            assert (episode.reward, episode.finish_reason) == (expected.reward, expected.finish_reason)
        reasons = {number: found[number].error for number in failing if found[number].finish_reason == "error"}
        assert reasons == {
            8: "table failed in a step: the table fell over",
            11: "table did not answer a step in 0.2 s",
            14: "table failed in a step: the reward is nan; allowed: a finite number.",
            17: "table failed in a step: the answer is None; allowed: a Step.",
        }
        assert {Temperamental.tried[str(number)] for number in failing} == {2}  # once again, and no more
        assert Temperamental.tried["20"] == 2 and found[20].finish_reason != "error"
        assert Temperamental.opened == Temperamental.closed


def test_environments_work_while_others_do_and_no_more_than_allowed_at_once(tiny_policy: Path) -> None:
    slow = dict.fromkeys(range(40), "slow")
    spec = temperamental(slow)
    began = time.monotonic()
    found = played(tiny_policy, spec, CONFIG)
    steps = sum(episode.turns for episode in found)
    assert time.monotonic() - began < steps * 0.05 / 2  # they overlap
    assert 20 < Temperamental.most_calls <= 40
    spec = temperamental(slow)
    again = played(tiny_policy, spec, CONFIG.replace(environment_concurrency=5))
    assert Temperamental.most_calls == 5
    assert [e.segments for e in again] == [e.segments for e in found]


def test_too_many_errors_end_the_stage_with_the_first_reason(tiny_policy: Path) -> None:
    spec = temperamental({3: "broken", 5: "broken"})
    found = played(tiny_policy, spec, CONFIG.replace(max_error_share=0.05))  # two of forty
    assert [e.finish_reason for e in found].count("error") == 2
    spec = temperamental({3: "broken", 5: "broken", 7: "unpaid"})
    with pytest.raises(RuntimeError) as caught:
        played(tiny_policy, spec, CONFIG.replace(max_error_share=0.05, concurrent_episodes=1))
    assert str(caught.value) == (
        "3 of 8 episodes failed in the environment; allowed: a share of rollout.max_error_share = 0.05. The first: "
        "table failed in a step: the table fell over"
    )
    assert Temperamental.opened == Temperamental.closed  # nothing is left open


def test_an_error_teaches_nothing_and_is_on_record(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = sample_batch(tiny_policy, CONFIG, environment="blackjack", url="", run_seed=0, iteration=2)[0].to_pylist()
    broken = sampled[5]["seed"]

    def task(split: Any, index: int) -> Task:
        return dataclasses.replace(BLACKJACK.task(split, index), data={"number": index})

    spec = dataclasses.replace(temperamental({broken: "broken"}), task=task)
    monkeypatch.setattr("tasks.rollout.worker.get_environment", lambda *_, **__: spec)
    table, metrics = sample_batch(tiny_policy, CONFIG, environment="table", url="", run_seed=0, iteration=2)
    rows = {row["trajectory_id"]: row for row in table.to_pylist()}
    for row in sampled:
        found = rows[row["trajectory_id"]]
        if row["seed"] != broken:
            assert found == row
            continue
        assert (found["finish_reason"], found["outcome"], found["reward"], found["raw_reward"]) == (
            "error",
            "error",
            None,
            None,
        )
        assert found["error"] == "table failed in a step: the table fell over"
        assert not any(found["loss_mask"]) and not any(found["logprobs"])
        assert found["messages"][-1]["role"] == "assistant" and found["messages"][-1]["reward"] is None
    assert metrics["rollout/error_share"] == 4 / 48
    known = [row["reward"] for row in rows.values() if row["reward"] is not None]
    assert metrics["rollout/reward_mean"] == metrics["rollout/raw_reward"] == pytest.approx(sum(known) / 44)


def test_a_server_that_goes_away_costs_what_was_being_played(tiny_policy: Path, openenv_server: Any) -> None:
    with openenv_server() as url:
        found = play_tasks(
            tiny_policy,
            BLACKJACK,
            tasks(30),
            CONFIG.replace(environment_timeout_s=30),
            url=url,
            temperature=1.0,
            reply_seed=lambda n, t: n + t,
        )
        assert {e.finish_reason for e in found} <= {"finished", "invalid", "truncated"}
    with pytest.raises(RuntimeError, match=r"episodes failed .* nobody answers there; start one with python -m"):
        play_tasks(
            tiny_policy,
            BLACKJACK,
            tasks(30),
            CONFIG.replace(max_error_share=0.1, environment_timeout_s=10),
            url=url,
            temperature=1.0,
            reply_seed=lambda n, t: n + t,
        )


def test_greedy_replies_to_equal_prompts_are_sampled_once(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.rollout.engine import Engine

    asked: list[tuple[int, ...]] = []
    add = Engine.add
    monkeypatch.setattr(
        Engine, "add", lambda self, prompt, **o: (asked.append(tuple(prompt)), add(self, prompt, **o))[1]
    )
    same = [Task(str(i), "train", 7) for i in range(20)]
    found = play_tasks(tiny_policy, BLACKJACK, same, CONFIG, temperature=0.0, reply_seed=lambda n, t: n)
    assert len(asked) == len(set(asked)) == found[0].turns
    assert all(episode.messages == found[0].messages for episode in found)


def test_steps_of_several_rewards_and_tool_messages_are_on_record() -> None:
    from tasks.rollout.episode import SampledEpisode, Segment
    from tasks.rollout.worker import rows

    call = {"role": "assistant", "content": "2+2", "tool_calls": [{"id": "a", "name": "run", "arguments": '{"x": 1}'}]}
    answer = {"role": "tool", "content": "4", "tool_call_id": "a"}
    shown = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "?"},
    ]
    episode = SampledEpisode(
        Task("t", "train", 5),
        messages=[*shown, call, answer, {"role": "assistant", "content": "4"}],
        steps=[
            Step(shown),  # with an example, whose reply is not the policy's
            Step([answer], reward=0.25, metrics={"calls": 1.0}, note="ran"),
            Step(reward=0.5, done=True, metrics={"calls": 0.0}),
        ],
        turns=2,
        reward=0.75,
        finish_reason="finished",
        segments=[Segment(6, [1, 2, 3, 4], [False, True, False, True], [0.0, -0.5, 0.0, -0.1])],
    )
    (row,) = to_table(rows(episode, BLACKJACK, CONFIG, "00000-00001", 2, 3)).to_pylist()
    assert (row["trajectory_id"], row["policy_version"], row["task_id"]) == ("00000-00001-2", 3, "t")
    assert row["reward"] == row["raw_reward"] == 0.75 and row["metrics"] == [("calls", 0.5)]
    told = [(m["role"], m["content"], m["reward"], m["note"]) for m in row["messages"]]
    assert told == [
        ("user", "1+1", None, None),
        ("assistant", "2", None, None),
        ("user", "?", None, None),
        ("assistant", "2+2", 0.25, "ran"),
        ("tool", "4", None, None),
        ("assistant", "4", 0.5, ""),
    ]
    assert row["messages"][3]["tool_calls"] == call["tool_calls"] and row["messages"][4]["tool_call_id"] == "a"


def test_a_rollout_in_a_thread_with_a_running_loop_is_possible(tiny_policy: Path, alone: list[Any]) -> None:
    async def from_a_loop() -> list[Any]:
        return await asyncio.to_thread(played, tiny_policy, BLACKJACK, CONFIG)

    assert [e.segments for e in asyncio.run(from_a_loop())] == [e.segments for e in alone]


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    yield
    assert play_baseline(BLACKJACK, "optimum", tasks(1))[0].finish_reason == "finished"  # loops are usable again
