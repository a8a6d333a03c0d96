"""Episodes through the chat templates of pretrained checkpoints: each sample is what the generator saw."""

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from objectives import objective
from rollout.scripted_engine import ScriptedEngine
from rollouts import sample_batch
from tasks.advantage.advantages import add_advantages
from tasks.buffer.selection import gather, select_groups
from tasks.config import BufferConfig, RolloutConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.environments.scripted import play_baseline
from tasks.policy.chat import Chat, open_chat
from tasks.policy.checkpoint import write_manifest
from tasks.reference.score import score_batch
from tasks.rollout.episode import SampledEpisode
from tasks.rollout.loop import EpisodeLoop
from tasks.rollout.play import TaskSchedule
from tasks.rollout.shards import join_shards, sample_shard
from tasks.rollout.worker import RolloutWorker
from tasks.training.losses import LOSSES, supervised_loss
from tasks.training.packing import FlatSamples, flat_samples
from tasks.training.train import mismatch, train_on
from tasks.training.trainer import Trainer

TEMPLATES = Path(__file__).parents[1] / "policy" / "templates"
THOUGHT = "<think>\nOne more will do.\n</think>\n\n"
CONFIG = RolloutConfig(groups=12, max_groups=12, group_size=4, max_tokens=4, max_turns=16, max_episode_tokens=256)

# The template, whether thinking is on, what is said before HIT or STAND, and whether each turn begins a sample.
CASES = {
    "Qwen2.5": ("Qwen2.5-Instruct", False, "", False),
    "Qwen2.5, thinking": ("Qwen2.5-Instruct", True, "One more will do.\n", False),
    "SmolLM2": ("SmolLM2-Instruct", False, "", False),
    "SmolLM2, thinking": ("SmolLM2-Instruct", True, "One more will do.\n", False),
    "Qwen3, thinking off": ("Qwen3", False, "", True),  # an empty thought that is in the prompt, not in the history
    "Qwen3, thinking on": ("Qwen3", True, THOUGHT, True),  # earlier thoughts are left out
    "Qwen3, thinking on, without a thought": ("Qwen3", True, "", False),  # nothing to leave out
}


@pytest.fixture(scope="module")
def policies(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the tiny policy speak through one of the templates."""

    def make(template: str) -> Path:
        folder = tmp_path_factory.mktemp("policies") / template
        shutil.copytree(tiny_policy, folder)
        shutil.copy(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
        write_manifest(folder, version=0, parent="")
        return folder

    return make


@pytest.fixture(scope="module")
def qwen3_policy(policies: Callable[[str], Path]) -> Path:
    """The tiny policy, taught to answer HIT or STAND where Qwen3's prompt without thinking ends."""
    folder = policies("Qwen3")
    chat, pieces, masks = Chat(folder), [], []
    spec = get_environment("blackjack")
    for episode in play_baseline(spec, "random", [spec.task("train", seed) for seed in range(200)]):
        messages = episode.messages
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt, reply = chat.initial_ids(messages[:i]), chat.tokenizer.encode(message["content"])
                pieces.append([*prompt, *reply, chat.end_id])
                masks.append([False] * len(prompt) + [True] * (len(reply) + 1))
    data = FlatSamples(np.cumsum([0, *map(len, pieces)]), np.concatenate(pieces), np.concatenate(masks))
    trainer = Trainer(folder, TrainingConfig(learning_rate=5e-3), temperature=1.0, schedule_steps=30)
    for step in range(30):
        trainer.step(data, range(step % 10, len(data), 10), supervised_loss)
        trainer.schedule.step()
    trainer.export(folder, folder)
    write_manifest(folder, version=0, parent="")
    return folder


def played(policy: Path, thinking: bool, words: str) -> tuple[list[SampledEpisode], ScriptedEngine, Chat]:
    chat, spec = Chat(policy, thinking), get_environment("blackjack", thinking=thinking)
    engine = ScriptedEngine(chat, lambda turn: words + ("HIT" if turn < 2 else "STAND"))
    config = CONFIG.replace(max_tokens=64, max_episode_tokens=1024)
    schedule = TaskSchedule([spec.task("train", seed) for seed in range(24)], config, lambda n, turn: n, lambda e: None)
    EpisodeLoop(engine, chat, spec, "", config, 1.0).run(schedule)  # pyright: ignore[reportArgumentType]
    return [schedule.episodes[n] for n in range(24)], engine, chat  # type: ignore[misc]


@pytest.mark.parametrize("case", CASES)
def test_each_sample_is_what_the_generator_saw_and_said(policies: Callable[[str], Path], case: str) -> None:
    template, thinking, words, splits = CASES[case]
    episodes, engine, chat = played(policies(template), thinking, words)
    assert {1, 2, 3} <= {e.turns for e in episodes}
    for number, episode in enumerate(episodes):
        assert episode.finish_reason == "finished"
        assert len(episode.segments) == (episode.turns if splits else 1)
        calls = iter(engine.seen[number])
        for segment in episode.segments:
            messages = episode.messages[: segment.messages]
            spoken, place = np.zeros(len(segment.token_ids), dtype=bool), 0
            for i, message in enumerate(messages):
                if message["role"] != "assistant" or (splits and i < len(messages) - 1):
                    continue
                prompt, reply = next(calls)
                place = len(prompt) + len(reply)
                assert segment.token_ids[:place] == prompt + reply
                spoken[len(prompt) : place] = True
                rendered = chat.tokenizer.apply_chat_template(
                    messages[:i], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
                )
                assert chat.tokenizer.decode(prompt, skip_special_tokens=False) == rendered
                assert chat.reply_text(reply) == message["content"]
            assert place == len(segment.token_ids)
            assert segment.loss_mask == spoken.tolist()
            assert segment.logprobs == (-0.5 * spoken).tolist()
        assert next(calls, None) is None  # every reply is in a sample, and in one only


def test_what_the_templates_leave_out(policies: Callable[[str], Path]) -> None:
    # What the tests above compare with, in words: a last prompt of three turns.
    def last_prompt(case: str) -> str:
        template, thinking, words, _ = CASES[case]
        episodes, engine, chat = played(policies(template), thinking, words)
        number = next(number for number, e in enumerate(episodes) if e.turns == 3)
        return chat.tokenizer.decode(engine.seen[number][-1][0], skip_special_tokens=False)

    said = "<|im_start|>assistant\n"
    thought = last_prompt("Qwen3, thinking on")
    assert thought.count(f"{said}HIT<|im_end|>") == 2 and "<think>" not in thought and thought.endswith(said)
    off = last_prompt("Qwen3, thinking off")
    assert off.count(f"{said}HIT<|im_end|>") == 2 and off.endswith(f"{said}<think>\n\n</think>\n\n")
    assert off.count("<think>") == 1
    kept = last_prompt("Qwen2.5, thinking")
    assert kept.count(f"{said}One more will do.\nHIT<|im_end|>") == 2


def batch(policy: Path, config: RolloutConfig = CONFIG) -> tuple[pa.Table, dict[str, float]]:
    return sample_batch(policy, config, environment="blackjack", url="", run_seed=0, iteration=2)


@pytest.mark.parametrize("template", ["Qwen2.5-Instruct", "SmolLM2-Instruct"])
def test_a_template_that_appends_gives_one_row_an_episode(
    tiny_policy: Path, policies: Callable[[str], Path], template: str
) -> None:
    # With a system message both write what the tiny policy's own template does, so that the whole batch is the same.
    table, metrics = batch(policies(template))
    assert set(table["sample"].to_pylist()) == {0} and metrics["rollout/samples_mean"] == 1
    assert table.equals(batch(tiny_policy)[0])


def test_a_template_that_rewrites_splits_trajectories_and_counts_them_once(qwen3_policy: Path) -> None:
    table, metrics = batch(qwen3_policy)
    complete, found = add_advantages(table)
    trajectories = defaultdict(list)
    for row in complete.to_pylist():
        trajectories[row["trajectory_id"]].append(row)
    assert len(trajectories) == metrics["rollout/episodes"] == 48
    assert {1, 2} <= {len(rows) for rows in trajectories.values()}
    shared = ("group_id", "seed", "reward", "turns", "invalid", "finish_reason", "advantage")
    rewards, advantages = defaultdict(list), {}
    for name, rows in trajectories.items():
        assert [row["sample"] for row in rows] == list(range(rows[0]["turns"]))  # each turn begins a sample
        assert all({key: row[key] for key in shared} == {key: rows[0][key] for key in shared} for row in rows)
        for before, after in itertools.pairwise(rows):
            assert after["messages"][: len(before["messages"])] == before["messages"]
        rewards[rows[0]["group_id"]].append(rows[0]["reward"])
        advantages[name] = rows[0]["advantage"]
    for name, advantage in advantages.items():
        group, member = name.rsplit("-", 1)
        assert advantage == pytest.approx(rewards[group][int(member)] - np.mean(rewards[group]), abs=1e-6)

    first = [rows[0] for rows in trajectories.values()]
    assert metrics["rollout/reward_mean"] == pytest.approx(np.mean([row["reward"] for row in first]))
    assert metrics["rollout/turns_mean"] == np.mean([row["turns"] for row in first])
    assert metrics["rollout/invalid_share"] == np.mean([row["invalid"] for row in first])
    assert metrics["rollout/groups"] == len(rewards) == 12
    assert metrics["rollout/groups_with_variance"] == sum(len(set(r)) > 1 for r in rewards.values()) > 0
    assert found["advantage/dropped_share"] == pytest.approx(1 - metrics["rollout/groups_with_variance"] / 12)
    assert metrics["rollout/samples_mean"] == len(table) / 48 > 1
    assert metrics["rollout/tokens_mean"] == sum(len(ids) for ids in table["token_ids"].to_pylist()) / 48

    # The trainer, given a sample's tokens, finds the log-probabilities with which they were sampled.
    data = flat_samples(table)
    scores = Trainer(qwen3_policy, TrainingConfig(), temperature=1.0, schedule_steps=1).score(data)
    logprobs = np.concatenate(table["logprobs"].to_pylist())
    assert np.abs(scores - logprobs).max() < 1e-4 and logprobs[data.loss_mask_N].min() < -0.5


@pytest.mark.parametrize("name", LOSSES)
def test_split_trajectories_are_trained_on_as_wholes(qwen3_policy: Path, name: str) -> None:
    # The whole way from the rollout to the steps; where a trajectory counts once, its samples are in one step.
    training = TrainingConfig(epochs=1, minibatch_size=6, rows=1)
    algorithm = objective(name, importance_sampling="truncate", importance_sampling_level="sequence", max_mismatch=0.02)
    scored, metrics = score_batch(batch(qwen3_policy)[0], qwen3_policy, training, CONFIG)
    complete, _ = add_advantages(scored)
    chosen = select_groups([complete], BufferConfig(), wanted=12, uses={}, policy_version=0, seed=0)
    training_batch = gather([complete], chosen.group_ids)
    trajectories = len(set(training_batch["trajectory_id"].to_pylist()))
    assert len(training_batch) > trajectories == metrics["reference/scored"] == chosen.metrics["buffer/trajectories"]
    assert trajectories == 4 * chosen.metrics["buffer/groups"]

    trainer = Trainer(qwen3_policy, training, temperature=1.0, schedule_steps=1)
    assert mismatch(trainer, training_batch, algorithm, policy_version=0)["train/mismatch_max"] < 1e-4
    found, steps = train_on(training_batch, trainer, algorithm, policy_version=0, seed=0)
    assert found["train/steps"] == round(trajectories / 6)
    assert steps[0]["ratio_mean"] == pytest.approx(1, abs=1e-4) == steps[0]["weight_mean"]
    assert all(step["grad_norm"] > 0 for step in steps)


def test_a_dropped_trajectory_is_dropped_in_all_its_samples(qwen3_policy: Path) -> None:
    table, _ = batch(qwen3_policy, CONFIG.replace(groups=60, max_groups=60, max_turns=2, truncated="drop"))
    cut = [row for row in table.to_pylist() if row["finish_reason"] == "truncated" and row["turns"] == 2]
    assert {row["sample"] for row in cut} == {0, 1}
    for row in cut:
        assert row["reward"] is None and not any(row["loss_mask"]) and not any(row["logprobs"])


@pytest.mark.parametrize("settings", [{}, {"thinking": True, "max_tokens": 16}])
def test_two_workers_split_trajectories_as_one_does(qwen3_policy: Path, settings: dict[str, object]) -> None:
    config = CONFIG.replace(**settings)
    two = config.replace(workers=2)
    times = {"time/rollout_s": 1.0, "time/rollout_setup_s": 1.0}

    def worker() -> RolloutWorker:
        return RolloutWorker(qwen3_policy, two, "blackjack", "", run_seed=0, iteration=2)

    table, metrics = join_shards(worker(), [sample_shard(worker(), shard) for shard in range(2)], [times, times])
    reference, expected = batch(qwen3_policy, config)
    assert table.drop(["logprobs"]).equals(reference.drop(["logprobs"]))
    names = ("rollout/samples_mean", "rollout/tokens_mean", "rollout/turns_mean", "rollout/groups_with_variance")
    assert [metrics[name] for name in names] == [expected[name] for name in names]


def test_the_rollout_tells_environment_and_template_of_the_thinking(qwen3_policy: Path) -> None:
    table, _ = batch(qwen3_policy, CONFIG.replace(thinking=True, max_tokens=16))
    row = table.to_pylist()[0]
    assert "Think first" in row["messages"][0]["content"]
    prompt = row["token_ids"][: row["loss_mask"].index(True)]
    said = open_chat(qwen3_policy, thinking=True).tokenizer.decode(prompt, skip_special_tokens=False)
    assert said.endswith("<|im_start|>assistant\n")  # with thinking off an empty thought would stand here
