"""Batches as they come from a real engine and a real environment: every token accounted for."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.config import RolloutConfig
from tasks.environments.catalog import Games, get_environment
from tasks.policy.chat import open_chat
from tasks.records import SAMPLE
from tasks.rollout.engine import open_engine
from tasks.rollout.episodes import play
from tasks.rollout.rollout import groups_to_play, sample_batch
from tasks.seeds import training_seed

CONFIG = RolloutConfig(groups=12, max_groups=12, group_size=4)


def sampled(policy: Path, config: RolloutConfig = CONFIG, *, url: str = "", seed: int = 0, iteration: int = 2):
    return sample_batch(policy, config, environment="blackjack", url=url, run_seed=seed, iteration=iteration)


@pytest.fixture(scope="module")
def batch(tiny_policy: Path) -> pa.Table:
    return sampled(tiny_policy)[0]


@pytest.fixture(scope="module")
def rows(batch: pa.Table) -> list[dict[str, Any]]:
    return batch.to_pylist()


def test_the_batch_has_games_of_several_turns(batch: pa.Table, rows: list[dict[str, Any]]) -> None:
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
                piece = chat.opening(history)
            else:
                piece = chat.follow_up(row["messages"][: i - 2], row["messages"][i - 2]["content"], given)
            assert tokens[place : place + len(piece)] == piece
            assert not any(row["loss_mask"][place : place + len(piece)])
            assert not any(row["logprobs"][place : place + len(piece)])
            place, replies = place + len(piece), replies + 1
            end = next((t for t in range(place, len(tokens)) if not row["loss_mask"][t]), len(tokens))
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
    in_waves = replace(CONFIG, concurrent_episodes=10)
    assert sampled(tiny_policy, in_waves)[0].drop(["logprobs"]).equals(batch.drop(["logprobs"]))
    for other in (sampled(tiny_policy, seed=1)[0], sampled(tiny_policy, iteration=3)[0]):
        assert not set(other["seed"].to_pylist()) & set(batch["seed"].to_pylist())
        assert other["token_ids"] != batch["token_ids"]


def test_replies_that_cannot_be_read_end_the_game(newborn_policy: Path) -> None:
    config = RolloutConfig(groups=4, max_groups=4, group_size=2, invalid_reward=-0.5)
    table, metrics = sampled(newborn_policy, config)
    assert table["invalid"].to_pylist() == [True] * 8
    assert table["turns"].to_pylist() == [1] * 8  # no second chance, and no default move
    assert table["reward"].to_pylist() == [-0.5] * 8
    assert set(table["finish_reason"].to_pylist()) <= {"invalid", "length"}
    assert metrics["rollout/invalid_share"] == 1
    assert metrics["rollout/reward_mean"] == -0.5


def test_a_game_that_is_not_over_after_max_turns(tiny_policy: Path, batch: pa.Table) -> None:
    table, metrics = sampled(tiny_policy, replace(CONFIG, max_turns=1))
    before, after = batch.to_pylist(), table.to_pylist()
    for whole, cut in zip(before, after, strict=True):
        longer = whole["turns"] > 1
        assert cut["turns"] == 1
        assert (cut["finish_reason"] == "max_turns") == longer
        if longer:
            assert cut["invalid"] and cut["reward"] == -1.0
            assert whole["token_ids"][: len(cut["token_ids"])] == cut["token_ids"]
            assert cut["loss_mask"][-1]  # nothing is put behind the last reply
    assert metrics["rollout/max_turns_share"] == table["finish_reason"].to_pylist().count("max_turns") / 48 > 0


def test_a_reply_that_began_readably_is_a_near_miss(tiny_policy: Path) -> None:
    # The whole word, and no token left to end the turn.
    table, metrics = sampled(tiny_policy, replace(CONFIG, max_tokens=1, invalid_reward=-2, partial_format_bonus=0.25))
    rewards = {row["messages"][-1]["content"] in ("HIT", "STAND"): row["reward"] for row in table.to_pylist()}
    assert rewards[True] == -1.75 and rewards.get(False, -2.0) == -2.0
    assert 0.9 < metrics["rollout/partial_format_share"] <= 1.0
    assert metrics["rollout/expected_reward"] == -1.0  # what people see is unshaped


@pytest.mark.parametrize("cut", ["forfeit", "drop"])
def test_the_rule_for_cut_replies_holds_for_reward_and_mask_alike(tiny_policy: Path, cut: str) -> None:
    # A reply is a word and the end of the turn: with one token all of them are cut.
    table, metrics = sampled(tiny_policy, replace(CONFIG, max_tokens=1, cut=cut))
    assert set(table["finish_reason"].to_pylist()) == {"length"}
    assert metrics["rollout/cut_share"] == metrics["rollout/invalid_share"] == 1
    for row in table.to_pylist():
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        if cut == "forfeit":  # it lost, and its one token is trained on
            assert row["reward"] == -1.0
            assert row["loss_mask"] == [False] * (len(row["token_ids"]) - 1) + [True]
            assert row["logprobs"][-1] < 0
        else:  # it has no reward, and nothing of it is trained on; what was said stays on record
            assert row["reward"] is None
            assert not any(row["loss_mask"]) and not any(row["logprobs"])
            assert row["messages"][-1]["role"] == "assistant"


def test_dropping_what_was_cut_leaves_the_others_alone(tiny_policy: Path, batch: pa.Table) -> None:
    table, metrics = sampled(tiny_policy, replace(CONFIG, max_turns=1, cut="drop"))
    kept = []
    for whole, row in zip(batch.to_pylist(), table.to_pylist(), strict=True):
        if whole["turns"] > 1 or whole["finish_reason"] == "length":
            assert row["finish_reason"] in ("max_turns", "length")
            assert row["reward"] is None and not any(row["loss_mask"])
        else:
            assert row == whole
            kept.append(row["reward"])
    assert metrics["rollout/reward_mean"] == pytest.approx(sum(kept) / len(kept))


def test_equal_groups_are_replaced_until_the_batch_has_its_size(tiny_policy: Path) -> None:
    config = RolloutConfig(groups=12, max_groups=200, group_size=4, concurrent_episodes=32)
    table, metrics = sampled(tiny_policy, config)
    rewards = table.to_pandas().groupby("group_id")["reward"].agg(["min", "max", "size"])
    differing = int((rewards["min"] < rewards["max"]).sum())
    assert (
        12 <= differing == metrics["rollout/groups_with_variance"] < 12 + 8
    )  # no more than a last wave of 8 groups too many
    assert 12 < len(rewards) == metrics["rollout/groups"] <= 200
    assert (rewards["size"] == 4).all() and metrics["rollout/games"] == 4 * len(rewards)  # all are on record
    assert table["group_id"].unique().to_pylist() == [f"00002-{i:05d}" for i in range(len(rewards))]
    assert len(set(table["seed"].to_pylist())) == len(rewards)
    assert sampled(tiny_policy, config)[0].equals(table)
    # The limit: the same games, but no further ones.
    few, metrics = sampled(tiny_policy, replace(config, max_groups=13))
    assert metrics["rollout/groups"] == 13 > metrics["rollout/groups_with_variance"]
    assert few.drop(["logprobs"]).equals(table.slice(0, 52).drop(["logprobs"]))


def test_how_many_groups_are_played_next() -> None:
    config = RolloutConfig(groups=100, max_groups=1000, group_size=4, concurrent_episodes=800)  # 200 groups at once
    assert groups_to_play(0, 0, config) == 100
    assert groups_to_play(100, 40, config) == 150  # 60 are missing, two in five are kept
    assert groups_to_play(100, 10, config) == 200  # not the 900 that it would take
    assert groups_to_play(950, 95, config) == 50  # up to the limit
    assert groups_to_play(1000, 95, config) == 0
    assert groups_to_play(300, 100, config) == groups_to_play(300, 130, config) == 0
    assert groups_to_play(100, 0, config) == 200  # none so far: as if one had been kept
    assert groups_to_play(0, 0, replace(config, concurrent_episodes=1)) == 1


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_a_game_that_ends_without_a_reward_stops_the_rollout(tiny_policy: Path, reward: float | None) -> None:
    class Unpaid(Games):
        """BlackJack whose last observations carry another reward."""

        def __init__(self) -> None:
            self.games = get_environment("blackjack").open_local()

        def reset(self, seeds: Sequence[int]) -> list[Any]:
            return self.games.reset(seeds)

        def step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
            seen = self.games.step(actions)
            return {g: o.model_copy(update={"reward": reward}) if o.done else o for g, o in seen.items()}

    with pytest.raises(ValueError, match=r"^environment gave the reward (nan|inf) for the game of seed \d; allowed: a"):
        play(
            open_engine(tiny_policy, CONFIG),
            open_chat(tiny_policy),
            get_environment("blackjack").agent,
            Unpaid(),
            range(8),
            temperature=1.0,
            max_tokens=4,
            max_turns=16,
            sampling_seed=lambda game, turn: game,
        )


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
