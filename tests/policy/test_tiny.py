"""The policy made on the spot: the same bytes each time, and a fair start for learning."""

from pathlib import Path

import numpy as np

from tasks.config import TinyPolicyConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.policy.chat import Chat
from tasks.policy.tiny import make_tokenizer, make_weights
from tasks.seeds import held_out_seeds
from tasks.training.cold_start import make_tiny, scripted_conversations, tokenised
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


def test_the_cold_start_imitates_whole_conversations_but_their_first_token(tiny_policy: Path) -> None:
    kind, chat = get_environment("blackjack"), Chat(tiny_policy)
    conversations = scripted_conversations(kind, "random", list(range(40)))
    data = tokenised(chat, conversations)
    assert len(data) == 40
    for messages, first, last in zip(conversations, data.offsets_R, data.offsets_R[1:], strict=False):
        text = chat.tokenizer.decode(data.token_ids_N[first:last].tolist(), skip_special_tokens=False)
        assert text + "\n" == chat.tokenizer.apply_chat_template(messages, tokenize=False)
        assert data.loss_mask_N[first:last].tolist() == [False] + [True] * (last - first - 1)
    replies = [m["content"] for messages in conversations for m in messages if m["role"] == "assistant"]
    assert 0.3 < replies.count("HIT") / len(replies) < 0.7
    assert set(replies) == {"HIT", "STAND"}


def reply_probabilities(policy: Path, openings: list[list[int]], replies: list[list[int]]) -> np.ndarray:
    """Probability of each reply, with its end, after each opening: [openings, replies]."""
    whole = [opening + reply for opening in openings for reply in replies]
    mask = [[False] * len(o) + [True] * len(r) for o in openings for r in replies]
    data = FlatSamples(np.cumsum([0, *map(len, whole)]), np.concatenate(whole), np.concatenate(mask))
    scores = Trainer(policy, TrainingConfig(), temperature=1.0, schedule_steps=1).score(data)
    sums = np.add.reduceat(scores, data.offsets_R[:-1])
    return np.exp(sums).reshape(len(openings), len(replies))


def test_as_made_by_default_it_answers_nearly_always_and_prefers_neither_move(tmp_path: Path) -> None:
    """The slowest test here: the cold start that every run of the policy `tiny` begins with."""
    policy = tmp_path / "tiny"
    make_tiny(policy, TinyPolicyConfig(), TrainingConfig(), "blackjack", seed=0)
    kind, chat = get_environment("blackjack"), Chat(policy)
    observations = kind.open_local().reset(held_out_seeds(0, 200))
    openings = [chat.opening(kind.agent.opening(o)) for o in observations]
    replies = [[*chat.tokenizer.encode(word, add_special_tokens=False), chat.end_id] for word in ("HIT", "STAND")]
    probabilities = reply_probabilities(policy, openings, replies)
    readable = probabilities.sum(1)
    assert readable.mean() >= 0.99
    hit = probabilities[:, 0] / readable
    assert 0.4 < hit.mean() < 0.6
    assert np.quantile(hit, 0.05) > 0.15 and np.quantile(hit, 0.95) < 0.85  # in hardly a hand is a move out of reach
