"""The policy made on the spot: the same bytes each time, and a fair start for learning."""

from pathlib import Path

import numpy as np
import pytest

from tasks.config import TinyPolicyConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Demonstration
from tasks.environments.scripted import play_baseline
from tasks.policy.chat import Chat
from tasks.policy.tiny import make_tokenizer, make_weights
from tasks.seeds import evaluation_indices
from tasks.training.cold_start import make_tiny, tokenised
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

SMALL = TinyPolicyConfig(
    hidden_size=64, layers=1, heads=2, cold_start_steps=5, cold_start_demonstrations=64, cold_start_batch=8
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_seed_fixes_every_byte(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        make_tiny(tmp_path / name, SMALL, TrainingConfig(), "blackjack", seed)
    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert first["model.safetensors"] != other["model.safetensors"]
    assert set(first) >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "policy.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "first", "other"]  # nothing half-made


def test_with_thinking_it_learns_the_prompts_that_ask_for_it(tmp_path: Path) -> None:
    tokens = []
    for thinking in (False, True):
        folder = tmp_path / str(thinking)
        make_tiny(folder, SMALL, TrainingConfig(), "blackjack", 0, thinking=thinking)
        tokens.append(Chat(folder).tokenizer.encode("Think first."))
    assert len(tokens[1]) < len(tokens[0]) / 2  # words that it has read before


def test_making_weights_leaves_the_random_numbers_of_the_process_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make_weights(SMALL, 300, end_id=2, pad_id=0, seed=9, folder=tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_the_tokenizer_takes_any_text_and_gives_it_back(tmp_path: Path) -> None:
    size = make_tokenizer(["HIT", "STAND", "Cards A 7, soft 18."], tmp_path)
    assert 256 + 3 <= size <= 512
    chat = Chat(tmp_path)
    assert (chat.tokenizer.eos_token, chat.tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    for text in ("HIT", "naïve 日本\n\t<>", " two  blanks "):
        assert chat.tokenizer.decode(chat.tokenizer.encode(text)) == text


def test_whole_conversations_are_imitated_but_their_first_token(tiny_policy: Path) -> None:
    spec, chat = get_environment("blackjack"), Chat(tiny_policy)
    demonstrations = spec.demonstrations(0, 40)
    data = tokenised(chat, demonstrations)
    assert len(data) == len(demonstrations) == 40
    for r, demonstration in enumerate(demonstrations):
        text = chat.tokenizer.decode(data.tokens(r).tolist(), skip_special_tokens=False)
        assert text + "\n" == chat.tokenizer.apply_chat_template(demonstration.messages, tokenize=False)
        mask = data.loss_mask_N[data.offsets_R[r] : data.offsets_R[r + 1]].tolist()
        assert mask == [False] + [True] * (len(mask) - 1)
    replies = [m["content"] for d in demonstrations for m in d.messages if m["role"] == "assistant"]
    assert 0.3 < replies.count("HIT") / len(replies) < 0.7
    assert set(replies) == {"HIT", "STAND"}


def test_or_only_the_replies_with_their_ends(tiny_policy: Path) -> None:
    chat = Chat(tiny_policy)
    user, first, second = ({"role": "user", "content": "Cards A 7"}, *map(reply, ("HIT", "STAND")))
    both = [Demonstration([user, first, user, second], replies_only=alone) for alone in (True, False)]
    data = tokenised(chat, both)
    tokens = data.tokens(0)
    assert tokens.tolist() == data.tokens(1).tolist()
    mask, other = np.split(data.loss_mask_N, [len(tokens)])
    learned = chat.tokenizer.decode(tokens[mask].tolist(), skip_special_tokens=False)
    assert learned == "HIT<|im_end|>STAND<|im_end|>"
    assert other.tolist() == [False] + [True] * (len(tokens) - 1)


def reply(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def test_an_environment_without_demonstrations_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mutes").mkdir()
    (tmp_path / "mutes" / "mute.py").write_text(
        "from dataclasses import replace\n"
        "from tasks.environments.blackjack.spec import blackjack\n"
        "SPEC = replace(blackjack(), demonstrations=None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as caught:
        make_tiny(tmp_path / "policy", SMALL, TrainingConfig(), "mutes.mute", 0)
    assert str(caught.value) == (
        'policy is "tiny", which needs an environment with demonstrations, and mutes.mute has none; allowed: a '
        "checkpoint."
    )
    assert not (tmp_path / "policy").exists()


def reply_probabilities(policy: Path, prompts: list[list[int]], replies: list[list[int]]) -> np.ndarray:
    """Probability of each reply, with its end, after each prompt: [prompts, replies]."""
    samples = [prompt + reply for prompt in prompts for reply in replies]
    mask = [[False] * len(p) + [True] * len(r) for p in prompts for r in replies]
    data = FlatSamples(np.cumsum([0, *map(len, samples)]), np.concatenate(samples), np.concatenate(mask))
    scores = Trainer(policy, TrainingConfig(), temperature=1.0, schedule_steps=1).score(data)
    sums = np.add.reduceat(scores, data.offsets_R[:-1])
    return np.exp(sums).reshape(len(prompts), len(replies))


def test_as_made_by_default_it_answers_nearly_always_and_prefers_neither_move(tmp_path: Path) -> None:
    """The slowest test here: the cold start of every run with the policy `tiny`."""
    policy = tmp_path / "tiny"
    make_tiny(policy, TinyPolicyConfig(), TrainingConfig(), "blackjack", seed=0)
    spec, chat = get_environment("blackjack"), Chat(policy)
    tasks = [spec.task("test", index) for index in evaluation_indices(0, 200)]
    first = [episode.messages[:2] for episode in play_baseline(spec, "random", tasks)]
    prompts = [chat.initial_ids(messages) for messages in first]
    replies = [[*chat.tokenizer.encode(word, add_special_tokens=False), chat.end_id] for word in ("HIT", "STAND")]
    probabilities = reply_probabilities(policy, prompts, replies)
    readable = probabilities.sum(1)
    assert readable.mean() >= 0.99
    hit = probabilities[:, 0] / readable
    assert 0.4 < hit.mean() < 0.6
    assert np.quantile(hit, 0.05) > 0.15 and np.quantile(hit, 0.95) < 0.85  # both are sampled in nearly every hand


def test_each_digit_is_a_token_where_an_environment_copies_numbers(tmp_path: Path) -> None:
    for single in (False, True):
        make_tokenizer(["PY 417+417-417", "417=?"] * 9, tmp_path / str(single), single_digits=single)
        tokens = Chat(tmp_path / str(single)).tokenizer.tokenize("417+417=?")
        assert (tokens == list("417+417=?")) == single


def test_drills_come_before_the_demonstrations_and_have_to_be_mastered(tmp_path: Path) -> None:
    drills = SMALL.replace(drill_steps=40, cold_start_learning_rate=3e-3, cold_start_steps=1)
    with pytest.raises(RuntimeError) as caught:
        make_tiny(tmp_path / "none", drills, TrainingConfig(), "calculator", 0)
    assert "did not master its drills: a loss of" in str(caught.value)
    assert "after 120 steps; allowed: tiny.max_drill_loss = 0.1. More tiny.drill_steps" in str(caught.value)
    assert not (tmp_path / "none").exists()
    # Most of what a drill says is its form, which is learned at once; the rest is chance.
    make_tiny(tmp_path / "form", drills.replace(max_drill_loss=2.5), TrainingConfig(), "calculator", 0)
    assert (tmp_path / "form" / "model.safetensors").exists()
