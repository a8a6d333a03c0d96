"""Batches as they come from a real engine and a real environment: every token accounted for."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.policy.chat import open_chat
from tasks.records import TRAJECTORY
from tasks.rollout.rollout import sample_batch
from tasks.seeds import training_seed

CONFIG = RolloutConfig(groups=12, group_size=4)


def sampled(policy: Path, config: RolloutConfig = CONFIG, *, url: str = "", seed: int = 0, iteration: int = 2):
    return sample_batch(policy, config, environment="blackjack", url=url, run_seed=seed, iteration=iteration)


@pytest.fixture(scope="module")
def batch(tiny_policy: Path) -> pa.Table:
    return sampled(tiny_policy)[0]


@pytest.fixture(scope="module")
def rows(batch: pa.Table) -> list[dict[str, Any]]:
    return batch.to_pylist()


def test_the_batch_has_games_of_several_turns(batch: pa.Table, rows: list[dict[str, Any]]) -> None:
    assert batch.schema == TRAJECTORY
    assert len(rows) == 48
    assert {1, 2} <= {row["turns"] for row in rows}
    assert sum(row["finish_reason"] == "finished" for row in rows) > 24


def test_the_mask_is_true_exactly_where_the_policy_spoke(tiny_policy: Path, rows: list[dict[str, Any]]) -> None:
    chat = open_chat(tiny_policy)
    for row in rows:
        assert len(row["token_ids"]) == len(row["action_mask"]) == len(row["logprobs"])
        tokens, place, replies = row["token_ids"], 0, 0
        for i, message in enumerate(row["messages"]):
            if message["role"] != "assistant":
                continue
            history, given = row["messages"][:i], row["messages"][i - 1 : i]
            if replies == 0:
                piece = chat.opening(history)
            else:
                piece = chat.follow_up(row["messages"][: i - 2], row["messages"][i - 2]["content"], given)
            assert tokens[place : place + len(piece)] == piece
            assert not any(row["action_mask"][place : place + len(piece)])
            assert not any(row["logprobs"][place : place + len(piece)])
            place, replies = place + len(piece), replies + 1
            end = next((t for t in range(place, len(tokens)) if not row["action_mask"][t]), len(tokens))
            assert end > place
            assert chat.reply(tokens[place:end]) == message["content"]
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
        assert {m["seed"] for m in members} == {training_seed(0, 2, number)}
        assert len({m["messages"][1]["content"] for m in members}) == 1
        assert {m["policy_version"] for m in members} == {0}
    assert len({row["seed"] for row in rows}) == 12
    assert any(len({tuple(m["token_ids"]) for m in members}) > 1 for members in groups.values())


def test_the_rewards_are_the_environments_own(tiny_policy: Path, rows: list[dict[str, Any]]) -> None:
    kind = get_environment("blackjack")
    for row in rows:
        assert row["invalid"] == (row["finish_reason"] != "finished")
        games = kind.open_local()
        (seen,) = games.reset([row["seed"]])
        assert kind.agent.opening(seen) == row["messages"][:2]
        for message in row["messages"][2:]:
            if message["role"] == "user":
                assert kind.agent.follow_up(seen) == [message]
            elif (action := kind.agent.read(message["content"], seen)) is not None and not seen.done:
                seen = games.step({0: action})[0]
        assert row["reward"] == (seen.reward if row["finish_reason"] == "finished" else -1.0)


def test_the_same_arguments_give_the_same_batch(tiny_policy: Path, batch: pa.Table) -> None:
    assert sampled(tiny_policy)[0].equals(batch)
    in_waves = RolloutConfig(groups=12, group_size=4, concurrent_games=10)
    assert sampled(tiny_policy, in_waves)[0].drop(["logprobs"]).equals(batch.drop(["logprobs"]))
    for other in (sampled(tiny_policy, seed=1)[0], sampled(tiny_policy, iteration=3)[0]):
        assert not set(other["seed"].to_pylist()) & set(batch["seed"].to_pylist())
        assert other["token_ids"] != batch["token_ids"]


def test_replies_that_cannot_be_read_end_the_game(newborn_policy: Path) -> None:
    config = RolloutConfig(groups=4, group_size=2, invalid_reward=-0.5)
    table, metrics = sampled(newborn_policy, config)
    assert table["invalid"].to_pylist() == [True] * 8
    assert table["turns"].to_pylist() == [1] * 8  # no second chance, and no default move
    assert table["reward"].to_pylist() == [-0.5] * 8
    assert set(table["finish_reason"].to_pylist()) <= {"invalid", "length"}
    assert metrics["rollout/invalid_share"] == 1
    assert metrics["rollout/reward_mean"] == -0.5


def test_a_game_that_is_not_over_after_max_turns(tiny_policy: Path, batch: pa.Table) -> None:
    table, _ = sampled(tiny_policy, RolloutConfig(groups=12, group_size=4, max_turns=1))
    before, after = batch.to_pylist(), table.to_pylist()
    for whole, cut in zip(before, after, strict=True):
        longer = whole["turns"] > 1
        assert cut["turns"] == 1
        assert (cut["finish_reason"] == "max_turns") == longer
        if longer:
            assert cut["invalid"] and cut["reward"] == -1.0
            assert whole["token_ids"][: len(cut["token_ids"])] == cut["token_ids"]
            assert cut["action_mask"][-1]  # nothing is put behind the last reply
    assert "max_turns" in table["finish_reason"].to_pylist()


def test_the_metrics_describe_the_batch(tiny_policy: Path, rows: list[dict[str, Any]]) -> None:
    metrics = sampled(tiny_policy)[1]
    assert metrics["rollout/reward_mean"] == pytest.approx(sum(r["reward"] for r in rows) / 48)
    assert metrics["rollout/turns_mean"] == pytest.approx(sum(r["turns"] for r in rows) / 48)
    assert metrics["rollout/cut_share"] == pytest.approx(sum(r["finish_reason"] == "length" for r in rows) / 48)


def test_over_an_openenv_server_the_batch_is_the_same(
    tiny_policy: Path, batch: pa.Table, openenv_server: Callable[..., AbstractContextManager[str]]
) -> None:
    with openenv_server() as url:
        assert sampled(tiny_policy, url=url)[0].equals(batch)


def test_other_policies_play_the_same_decks(newborn: Callable[[int], Path], batch: pa.Table) -> None:
    table, _ = sampled(newborn(6))
    assert table["seed"] == batch["seed"]
    assert set(table["policy_version"].to_pylist()) == {6}
