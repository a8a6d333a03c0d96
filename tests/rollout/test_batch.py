"""Batches as they come from a real engine and a real environment: every token accounted for."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rollouts import sample_batch
from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.policy.chat import open_chat
from tasks.records import SAMPLE
from tasks.rollout.batch import part_metrics
from tasks.seeds import training_index

CONFIG = RolloutConfig(groups=12, max_groups=12, group_size=4, max_tokens=4, max_turns=16, max_episode_tokens=256)
LIMITS = ("invalid", "truncated")


def sampled(policy: Path, config: RolloutConfig = CONFIG, *, url: str = "", seed: int = 0, iteration: int = 2):
    return sample_batch(policy, config, environment="blackjack", url=url, run_seed=seed, iteration=iteration)


@pytest.fixture(scope="module")
def batch(tiny_policy: Path) -> pa.Table:
    return sampled(tiny_policy)[0]


@pytest.fixture(scope="module")
def rows(batch: pa.Table) -> list[dict[str, Any]]:
    return batch.to_pylist()


def test_the_batch_has_episodes_of_several_turns(batch: pa.Table, rows: list[dict[str, Any]]) -> None:
    assert batch.schema == SAMPLE
    assert len(rows) == 48
    assert {1, 2} <= {row["turns"] for row in rows}
    assert sum(row["finish_reason"] == "finished" for row in rows) > 24


def test_the_mask_is_true_exactly_where_the_policy_spoke(tiny_policy: Path, rows: list[dict[str, Any]]) -> None:
    chat = open_chat(tiny_policy)
    for row in rows:
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        tokens, place, replies = row["token_ids"], 0, 0
        for i, message in enumerate(row["messages"]):
            if message["role"] != "assistant":
                continue
            history, given = row["messages"][:i], row["messages"][i - 1 : i]
            if replies == 0:
                piece = chat.initial_ids(history)
            else:
                piece = chat.next_ids(row["messages"][: i - 2], row["messages"][i - 2]["content"], given)
            assert tokens[place : place + len(piece)] == piece
            assert not any(row["loss_mask"][place : place + len(piece)])
            assert not any(row["logprobs"][place : place + len(piece)])
            place, replies = place + len(piece), replies + 1
            end = next((t for t in range(place, len(tokens)) if not row["loss_mask"][t]), len(tokens))
            assert end > place
            assert chat.reply_text(tokens[place:end]) == message["content"]
            if end < len(tokens) or row["finish_reason"] == "finished":
                assert tokens[end - 1] == chat.end_id  # sampled like the words before it
            assert all(logprob < 0 for logprob in row["logprobs"][place:end])
            place = end
        assert place == len(tokens)
        assert replies == row["turns"] == sum(m["role"] == "assistant" for m in row["messages"])


def test_the_tokens_read_as_the_chat_template_renders_the_messages(
    tiny_policy: Path, rows: list[dict[str, Any]]
) -> None:
    tokenizer = open_chat(tiny_policy).tokenizer
    for row in rows:
        rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        text = tokenizer.decode(row["token_ids"], skip_special_tokens=False)
        if row["finish_reason"] == "finished":
            assert text + "\n" == rendered
        assert rendered.startswith(text)


def test_a_group_shares_seed_and_first_prompt(rows: list[dict[str, Any]]) -> None:
    groups = defaultdict(list)
    for row in rows:
        groups[row["group_id"]].append(row)
    assert len(groups) == 12
    for number, (group_id, members) in enumerate(sorted(groups.items())):
        assert group_id == f"00002-{number:05d}"
        assert [m["trajectory_id"] for m in members] == [f"{group_id}-{i}" for i in range(4)]
        assert {m["seed"] for m in members} == {training_index(0, 2, number)}
        assert {m["task_id"] for m in members} == {str(training_index(0, 2, number))}
        assert len({m["messages"][1]["content"] for m in members}) == 1
        assert {m["policy_version"] for m in members} == {0}
    assert len({row["seed"] for row in rows}) == 12
    assert any(len({tuple(m["token_ids"]) for m in members}) > 1 for members in groups.values())


def test_the_rewards_are_the_environments_own(rows: list[dict[str, Any]]) -> None:
    spec = get_environment("blackjack")

    async def check(row: dict[str, Any]) -> None:
        environment = spec.make()
        step = await environment.reset(spec.task("train", row["seed"]))
        said = [{"role": m["role"], "content": m["content"]} for m in row["messages"]]
        assert said[:2] == list(step.messages)
        for place, message in enumerate(said):
            if message["role"] != "assistant":
                continue
            if place == len(said) - 1 and row["finish_reason"] == "truncated":
                assert row["messages"][place]["reward"] is None  # the environment was not asked
                assert (row["raw_reward"], row["outcome"]) == (-1.0, "truncated")
                return
            step = await environment.step(message)
            assert said[place + 1 : place + 2] == list(step.messages)
            assert (row["messages"][place]["reward"], row["messages"][place]["note"]) == (step.reward, step.note)
        assert step.done and row["raw_reward"] == step.reward == row["reward"]
        assert row["invalid"] == (not step.valid) == (row["finish_reason"] == "invalid")
        words = {1.0: "won", 0.0: "pushed", -1.0: "lost"}
        assert row["outcome"] == (words[step.reward] if step.valid else "invalid")

    for row in rows:
        asyncio.run(check(row))


def test_the_same_arguments_give_the_same_batch(tiny_policy: Path, batch: pa.Table) -> None:
    assert sampled(tiny_policy)[0].equals(batch)
    one_by_one = CONFIG.replace(concurrent_episodes=1)
    assert sampled(tiny_policy, one_by_one)[0].equals(batch)  # bit for bit
    for other in (sampled(tiny_policy, seed=1)[0], sampled(tiny_policy, iteration=3)[0]):
        assert not set(other["seed"].to_pylist()) & set(batch["seed"].to_pylist())
        assert other["token_ids"] != batch["token_ids"]


def test_replies_that_cannot_be_read_end_the_episode(newborn_policy: Path) -> None:
    config = CONFIG.replace(groups=4, max_groups=4, group_size=2, invalid_reward=-0.5)
    table, metrics = sampled(newborn_policy, config)
    assert table["turns"].to_pylist() == [1] * 8  # no second chance, and no default move
    assert table["reward"].to_pylist() == [-0.5] * 8
    assert set(table["finish_reason"].to_pylist()) <= set(LIMITS)
    assert table["raw_reward"].to_pylist() == [-1.0] * 8  # the environment's own, which people see
    assert metrics["rollout/invalid_share"] + metrics["rollout/truncated_share"] == 1
    assert metrics["rollout/reward_mean"] == -0.5


def test_an_episode_that_is_not_over_after_max_turns(tiny_policy: Path, batch: pa.Table) -> None:
    table, metrics = sampled(tiny_policy, CONFIG.replace(max_turns=1))
    before, after = batch.to_pylist(), table.to_pylist()
    for whole, cut in zip(before, after, strict=True):
        longer = whole["turns"] > 1
        assert cut["turns"] == 1
        assert not longer or cut["finish_reason"] == "truncated"
        if longer:
            assert not cut["invalid"] and cut["reward"] == -1.0
            assert whole["token_ids"][: len(cut["token_ids"])] == cut["token_ids"]
            assert cut["loss_mask"][-1]  # nothing is put behind the last reply
    assert metrics["rollout/truncated_share"] == table["finish_reason"].to_pylist().count("truncated") / 48 > 0


def test_the_budget_holds_for_the_whole_episode(tiny_policy: Path, batch: pa.Table) -> None:
    lengths = [len(ids) for ids in batch["token_ids"].to_pylist()]
    limit = sorted(lengths)[-12]  # some episodes are longer
    table, _ = sampled(tiny_policy, CONFIG.replace(max_episode_tokens=limit))
    longer = 0
    for whole, row in zip(batch.to_pylist(), table.to_pylist(), strict=True):
        assert len(row["token_ids"]) == len(row["loss_mask"]) <= limit
        if len(whole["token_ids"]) > limit:
            longer += 1
            assert row["finish_reason"] == "truncated" and row["reward"] == -1.0
            assert whole["token_ids"][: len(row["token_ids"])] == row["token_ids"]
            assert row["loss_mask"][-1]  # what would not fit is not put there at all
    assert longer > 0
    # A prompt that leaves no room for a reply: nothing is sampled, nothing is learned, and all is counted.
    table, metrics = sampled(tiny_policy, CONFIG.replace(max_episode_tokens=20))
    assert set(table["turns"].to_pylist()) == {0} and set(table["finish_reason"].to_pylist()) == {"truncated"}
    assert not any(any(mask) for mask in table["loss_mask"].to_pylist())
    assert metrics["rollout/truncated_share"] == 1


def test_a_reply_that_began_readably_has_a_partial_format(tiny_policy: Path) -> None:
    # The whole word, and no token left to end the turn.
    table, metrics = sampled(tiny_policy, CONFIG.replace(max_tokens=1, invalid_reward=-2, partial_format_bonus=0.25))
    rewards = {row["messages"][-1]["content"] in ("HIT", "STAND"): row["reward"] for row in table.to_pylist()}
    assert rewards[True] == -1.75 and rewards.get(False, -2.0) == -2.0
    assert 0.9 < metrics["environment/partial_format"] <= 1.0
    assert metrics["rollout/raw_reward"] == -1.0  # what people see is unshaped


@pytest.mark.parametrize("rule", ["invalid", "drop"])
def test_the_rule_for_truncated_replies_holds_for_reward_and_mask_alike(tiny_policy: Path, rule: str) -> None:
    # A reply is a word and the end of the turn: with one token all of them are truncated.
    table, metrics = sampled(tiny_policy, CONFIG.replace(max_tokens=1, truncated=rule))
    assert set(table["finish_reason"].to_pylist()) == {"truncated"}
    assert metrics["rollout/truncated_share"] == 1 and metrics["rollout/invalid_share"] == 0
    for row in table.to_pylist():
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        if rule == "invalid":  # it lost, and its one token is trained on
            assert row["reward"] == -1.0
            assert row["loss_mask"] == [False] * (len(row["token_ids"]) - 1) + [True]
            assert row["logprobs"][-1] < 0
        else:  # it has no reward, and nothing of it is trained on; what was said stays on record
            assert row["reward"] is None and row["raw_reward"] == -1.0
            assert not any(row["loss_mask"]) and not any(row["logprobs"])
            assert row["messages"][-1]["role"] == "assistant"


def test_dropping_what_was_truncated_leaves_the_others_alone(tiny_policy: Path, batch: pa.Table) -> None:
    table, metrics = sampled(tiny_policy, CONFIG.replace(max_turns=1, truncated="drop"))
    kept = []
    for whole, row in zip(batch.to_pylist(), table.to_pylist(), strict=True):
        if whole["turns"] > 1 or whole["finish_reason"] == "truncated":
            assert row["finish_reason"] == "truncated"
            assert row["reward"] is None and not any(row["loss_mask"])
        else:
            assert row == whole
            kept.append(row["reward"])
    assert metrics["rollout/reward_mean"] == pytest.approx(sum(kept) / len(kept))


def test_equal_groups_are_replaced_until_the_batch_has_its_size(tiny_policy: Path) -> None:
    config = CONFIG.replace(groups=12, max_groups=200, group_size=4, concurrent_episodes=32)
    table, metrics = sampled(tiny_policy, config)
    rewards = table.to_pandas().groupby("group_id")["reward"].agg(["min", "max", "size"])
    differing = rewards["min"] < rewards["max"]
    assert differing.sum() == metrics["rollout/groups_with_variance"] == 12 and differing.iloc[-1]  # and no more
    assert 12 < len(rewards) == metrics["rollout/groups"] <= 200
    assert (rewards["size"] == 4).all() and metrics["rollout/episodes"] == 4 * len(rewards)  # all are on record
    assert table["group_id"].unique().to_pylist() == [f"00002-{i:05d}" for i in range(len(rewards))]
    assert len(set(table["seed"].to_pylist())) == len(rewards)
    for episodes in (4, 200):  # however many are played at once
        assert sampled(tiny_policy, config.replace(concurrent_episodes=episodes))[0].equals(table)
    # The limit: the same episodes, but no further ones.
    few, metrics = sampled(tiny_policy, config.replace(max_groups=13))
    assert metrics["rollout/groups"] == 13 > metrics["rollout/groups_with_variance"]
    assert few.equals(table.slice(0, 52))


def test_the_metrics_describe_the_batch(tiny_policy: Path, rows: list[dict[str, Any]]) -> None:
    metrics = sampled(tiny_policy)[1]
    assert metrics["rollout/reward_mean"] == pytest.approx(sum(r["reward"] for r in rows) / 48)
    assert metrics["rollout/turns_mean"] == pytest.approx(sum(r["turns"] for r in rows) / 48)
    truncated = sum(r["finish_reason"] == "truncated" for r in rows)
    assert metrics["rollout/truncated_share"] == pytest.approx(truncated / 48)
    agreement = [value for r in rows for name, value in r["metrics"] if name == "agreement"]
    assert metrics["environment/agreement"] == pytest.approx(sum(agreement) / len(agreement))


def test_over_an_openenv_server_the_batch_is_the_same(
    tiny_policy: Path, batch: pa.Table, openenv_server: Callable[..., AbstractContextManager[str]]
) -> None:
    with openenv_server() as url:
        assert sampled(tiny_policy, url=url)[0].equals(batch)


def test_other_policies_play_the_same_tasks(newborn: Callable[[int], Path], batch: pa.Table) -> None:
    table, _ = sampled(newborn(6))
    assert table["seed"] == batch["seed"]
    assert set(table["policy_version"].to_pylist()) == {6}


def test_the_reward_of_each_part_of_the_environment() -> None:
    once = pa.table(
        {"raw_reward": [1.0, None, 0.0, 0.5], "parts": [["sums", "long"], ["sums"], ["words/long"], ["sums"]]},
        schema=pa.schema([SAMPLE.field("raw_reward"), SAMPLE.field("parts")]),
    )
    assert part_metrics(once) == {
        "rollout.long/raw_reward": 1.0,
        "rollout.long/share": 0.25,
        "rollout.sums/raw_reward": 0.75,
        "rollout.sums/share": 0.75,
        "rollout.words.long/raw_reward": 0.0,
        "rollout.words.long/share": 0.25,
    }
