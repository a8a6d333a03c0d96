"""Conversations piece by piece are the chat template's own rendering."""

import shutil
from pathlib import Path

import pytest

from tasks.environments.interface import ToolSpec
from tasks.environments.tool_use import PYTHON
from tasks.policy.chat import Chat
from tasks.policy.tool_formats import FORMATS, ToolCall

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
    """Initial messages, replies with their end-of-turn tokens, next messages; a reply in more tokens than it needs."""
    tokens = list(chat.initial_ids(CONVERSATION[:2]))
    for i in (2, 4, 6):
        reply = CONVERSATION[i]["content"]
        tokens += [t for letter in reply for t in chat.tokenizer.encode(letter, add_special_tokens=False)]
        tokens.append(chat.end_id)
        if i < 6:
            tokens += chat.next_ids(CONVERSATION[:i], reply, CONVERSATION[i + 1 : i + 2])
    return tokens


def test_the_pieces_read_as_the_rendering_of_the_whole(chat: Chat) -> None:
    rendered = chat.tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    assert chat.tokenizer.decode(in_pieces(chat), skip_special_tokens=False) + "\n" == rendered


def test_each_piece_is_tokenised_as_the_template_writes_it(chat: Chat) -> None:
    assert chat.tokenizer.decode(chat.initial_ids(CONVERSATION[:2]), skip_special_tokens=False) == (
        "<|im_start|>system\nYou play BlackJack. Answer only HIT or STAND.<|im_end|>\n"
        "<|im_start|>user\nCards 2 3, hard 5. Dealer 10.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    piece = chat.next_ids(CONVERSATION[:2], "HIT", CONVERSATION[3:4])
    text = "\n<|im_start|>user\nCards 2 3 4, hard 9. Dealer 10.<|im_end|>\n<|im_start|>assistant\n"
    assert piece == chat.tokenizer.encode(text, add_special_tokens=False)


def test_special_tokens_are_single_tokens(chat: Chat) -> None:
    piece = chat.initial_ids(CONVERSATION[:2])
    start, end = chat.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert chat.end_id == end
    assert (piece.count(start), piece.count(end)) == (3, 2)


def test_a_reply_reads_without_its_end(chat: Chat) -> None:
    hit = chat.tokenizer.encode("HIT", add_special_tokens=False)
    assert chat.reply_text([*hit, chat.end_id]) == chat.reply_text(hit) == "HIT"
    assert chat.reply_text([]) == chat.reply_text([chat.end_id]) == ""
    # A special token within a reply is not hidden: such a reply must not read as a move.
    assert chat.reply_text([*hit, chat.end_id, chat.end_id]) == "HIT<|im_end|>"


def with_content(tiny_policy: Path, folder: Path, content: str) -> Chat:
    """The chat of a policy whose template writes a message's content as `content` says."""
    shutil.copytree(tiny_policy, folder)
    template = (folder / "chat_template.jinja").read_text()
    assert "{{ message['content'] }}" in template
    (folder / "chat_template.jinja").write_text(template.replace("{{ message['content'] }}", content))
    return Chat(folder)


@pytest.mark.parametrize(
    "content",
    [
        "{{ '...' if message['role'] == 'assistant' and not loop.last else message['content'] }}",  # forgets
        "{{ message['content'] | upper if message['role'] == 'assistant' else message['content'] }}",  # retells
    ],
)
def test_a_template_that_rewrites_earlier_turns_has_no_next_ids(
    tiny_policy: Path, tmp_path: Path, content: str
) -> None:
    chat = with_content(tiny_policy, tmp_path / "policy", content)
    chat.initial_ids(CONVERSATION[:2])
    assert chat.next_ids(CONVERSATION[:2], "hit", CONVERSATION[3:4]) is None


def test_whether_a_template_rewrites_is_asked_anew_for_each_reply_and_history(
    tiny_policy: Path, tmp_path: Path
) -> None:
    trimming = with_content(tiny_policy, tmp_path / "trims", "{{ message['content'] | trim }}")  # as Llama 3 does
    for _ in range(2):
        assert trimming.next_ids(CONVERSATION[:2], "HIT", CONVERSATION[3:4]) is not None
        assert trimming.next_ids(CONVERSATION[:2], " HIT", CONVERSATION[3:4]) is None
    # One that tells the first two turns as they were and sums up from the third on: the reply alone does not say it.
    forgetting = with_content(
        tiny_policy,
        tmp_path / "forgets",
        "{{ '...' if messages | length > 4 and loop.index == 3 else message['content'] }}",
    )
    assert forgetting.next_ids(CONVERSATION[:2], "HIT", CONVERSATION[5:6]) is not None
    assert forgetting.next_ids(CONVERSATION[:4], "HIT", CONVERSATION[5:6]) is None


def test_a_full_memory_of_pieces_changes_nothing(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {last: Chat(tiny_policy).initial_ids(CONVERSATION[:last]) for last in (2, 4, 6)}
    monkeypatch.setattr("tasks.policy.chat.MAX_PIECES", 2)
    chat = Chat(tiny_policy)
    for last in (2, 4, 6, 2, 4, 6):
        assert chat.initial_ids(CONVERSATION[:last]) == expected[last]


def test_tools_go_to_the_template_and_are_told_apart(tiny_policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy, folder)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(
        "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
        "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.name }}){% endfor %}{% endfor %}" + template
    )
    tool = ToolSpec("run", "Runs Python.", {"type": "object", "properties": {"code": {"type": "string"}}})
    chat = Chat(folder, tools=[tool])
    call = {"role": "assistant", "content": "HIT", "tool_calls": [{"id": "1", "name": "run", "arguments": "{}"}]}
    plain = [*CONVERSATION[:2], {"role": "assistant", "content": "HIT"}, CONVERSATION[3]]
    called = [*CONVERSATION[:2], call, CONVERSATION[3]]
    texts = [chat.tokenizer.decode(chat.initial_ids(messages)) for messages in (plain, called)]
    assert texts[0].startswith("[run]<|im_start|>") and texts[1].startswith("[run](run)<|im_start|>")
    assert not chat.tokenizer.decode(Chat(folder).initial_ids(plain)).startswith("[run]")


@pytest.mark.parametrize("template", ["Qwen2.5-Instruct", "Qwen3", "SmolLM2-Instruct", "tiny"])
def test_a_template_that_ignores_tools_gets_their_schemas_in_the_system_message(
    tiny_policy: Path, tmp_path: Path, template: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy, folder)
    if template != "tiny":
        shutil.copy(Path(__file__).parent / "templates" / f"{template}.jinja", folder / "chat_template.jinja")
    chat = Chat(folder, tools=[PYTHON])
    for messages in (CONVERSATION[:2], CONVERSATION[1:2]):
        text = chat.tokenizer.decode(chat.initial_ids(messages), skip_special_tokens=False)
        system, user = text.split("<|im_end|>\n<|im_start|>user\n")
        assert system.startswith("<|im_start|>system\n") and system.count(PYTHON.description) == 1
        assert "<tool_call>" in system and system.count("You play BlackJack") == (len(messages) == 2)
        assert user.startswith("Cards 2 3, hard 5. Dealer 10.")
    plain = chat.tokenizer.decode(Chat(folder).initial_ids(CONVERSATION[:2]), skip_special_tokens=False)
    assert "<tool_call>" not in plain


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("Qwen2.5-Instruct", "user\n<tool_response>\n396\n</tool_response>"),
        ("Qwen3", "user\n<tool_response>\n396\n</tool_response>"),
        ("SmolLM2-Instruct", "user\n396"),
        ("tiny", "user\n396"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_the_output_of_a_tool_follows_the_reply_that_called_it(
    tiny_policy: Path, tmp_path: Path, template: str, said: str, ended: bool
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(tiny_policy, folder)
    if template != "tiny":
        shutil.copy(Path(__file__).parent / "templates" / f"{template}.jinja", folder / "chat_template.jinja")
    chat, reply = Chat(folder, thinking=True), FORMATS["tool_call"].render(ToolCall("python", {"code": "17+384-5"}))
    if template == "Qwen3":  # it keeps the thoughts between the calls for one question
        reply = f"<think>\nA tool will do.\n</think>\n\n{reply}"
    output = {"role": "tool", "content": "396", "tool_call_id": "call-1"}
    piece = chat.next_ids(CONVERSATION[:2], reply, [output], ended=ended)
    assert piece is not None
    text = chat.tokenizer.decode(piece, skip_special_tokens=False)
    end = "" if ended else "<|im_end|>"  # which the policy did not sample where a stop string came first
    assert text == f"{end}\n<|im_start|>{said}<|im_end|>\n<|im_start|>assistant\n"
