"""Conversations piece by piece are the chat template's own rendering."""

import shutil
from pathlib import Path

import pytest

from tasks.policy.chat import Chat

CONVERSATION = [
    {"role": "system", "content": "You play BlackJack. Answer only HIT or STAND."},
    {"role": "user", "content": "Cards 2 3, hard 5. Dealer 10."},
    {"role": "assistant", "content": "HIT"},
    {"role": "user", "content": "Cards 2 3 4, hard 9. Dealer 10."},
    {"role": "assistant", "content": " hit"},
    {"role": "user", "content": "Cards 2 3 4 K, hard 19. Dealer 10."},
    {"role": "assistant", "content": "STAND"},
]


@pytest.fixture(scope="module")
def chat(tiny_policy: Path) -> Chat:
    return Chat(tiny_policy)


def in_pieces(chat: Chat) -> list[int]:
    """Opening, replies with their end-of-turn tokens, follow-ups; a reply in more tokens than it needs."""
    tokens = list(chat.opening(CONVERSATION[:2]))
    for i in (2, 4, 6):
        reply = CONVERSATION[i]["content"]
        tokens += [t for letter in reply for t in chat.tokenizer.encode(letter, add_special_tokens=False)]
        tokens.append(chat.end_id)
        if i < 6:
            tokens += chat.follow_up(CONVERSATION[:i], reply, CONVERSATION[i + 1 : i + 2])
    return tokens


def test_the_pieces_read_as_the_rendering_of_the_whole(chat: Chat) -> None:
    rendered = chat.tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    assert chat.tokenizer.decode(in_pieces(chat), skip_special_tokens=False) + "\n" == rendered


def test_each_piece_is_tokenised_as_the_template_writes_it(chat: Chat) -> None:
    assert chat.tokenizer.decode(chat.opening(CONVERSATION[:2]), skip_special_tokens=False) == (
        "<|im_start|>system\nYou play BlackJack. Answer only HIT or STAND.<|im_end|>\n"
        "<|im_start|>user\nCards 2 3, hard 5. Dealer 10.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    follow_up = chat.follow_up(CONVERSATION[:2], "HIT", CONVERSATION[3:4])
    text = "\n<|im_start|>user\nCards 2 3 4, hard 9. Dealer 10.<|im_end|>\n<|im_start|>assistant\n"
    assert follow_up == chat.tokenizer.encode(text, add_special_tokens=False)


def test_special_tokens_are_single_tokens(chat: Chat) -> None:
    opening = chat.opening(CONVERSATION[:2])
    start, end = chat.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert chat.end_id == end
    assert (opening.count(start), opening.count(end)) == (3, 2)


def test_a_reply_reads_without_its_end(chat: Chat) -> None:
    hit = chat.tokenizer.encode("HIT", add_special_tokens=False)
    assert chat.reply([*hit, chat.end_id]) == chat.reply(hit) == "HIT"
    assert chat.reply([]) == chat.reply([chat.end_id]) == ""
    # A special token within a reply is not hidden: such a reply must not read as a move.
    assert chat.reply([*hit, chat.end_id, chat.end_id]) == "HIT<|im_end|>"


@pytest.mark.parametrize(
    "content",
    [
        "{{ '...' if message['role'] == 'assistant' and not loop.last else message['content'] }}",  # forgets
        "{{ message['content'] | upper if message['role'] == 'assistant' else message['content'] }}",  # retells
    ],
)
def test_a_template_that_rewrites_earlier_turns_is_refused(tiny_policy: Path, tmp_path: Path, content: str) -> None:
    folder = shutil.copytree(tiny_policy, tmp_path / "policy")
    template = (folder / "chat_template.jinja").read_text()
    assert "{{ message['content'] }}" in template
    (folder / "chat_template.jinja").write_text(template.replace("{{ message['content'] }}", content))
    chat = Chat(folder)
    chat.opening(CONVERSATION[:2])
    with pytest.raises(ValueError, match=r"^policy has a chat template that rewrites earlier turns; allowed: one "):
        chat.follow_up(CONVERSATION[:2], "hit", CONVERSATION[3:4])
