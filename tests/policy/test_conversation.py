"""What a checkpoint's chat template and its files say of turns, and which templates are refused, with a sentence."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.policy.chat import Chat, open_chat
from tasks.policy.contents import settings_digest
from tasks.policy.conversation import check_conversation, has_clock
from tasks.policy.tiny import make_tokenizer

FIRST = [{"role": "system", "content": "Answer HIT or STAND."}, {"role": "user", "content": "Cards 2 3, hard 5."}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
CLOCK = "{{ strftime_now('%d %b %Y') }}\n"
OPENS = "<think>\n{% endif %}"


def policy(folder: Path, template: str = CHATML, eos: str = "<|im_end|>", **files: dict) -> Path:
    """A tokenizer and a template; `files` are other JSON files by their names without ending."""
    folder.mkdir(parents=True)
    make_tokenizer([m["content"] for m in FIRST], folder)
    (folder / "chat_template.jinja").write_text(template)
    known = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, "eos_token": eos}))
    for name, content in {"config": {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def names(chat: Chat) -> tuple[str, list[str]]:
    """The token that ends a turn, and those that end a reply."""
    return chat.tokenizer.decode([chat.end_id]), sorted(map(chat.tokenizer.decode, chat.end_ids))


def test_the_template_says_what_ends_a_turn_and_every_named_token_ends_a_reply(tmp_path: Path) -> None:
    end, text = "<|im_end|>", "<|endoftext|>"
    assert names(Chat(policy(tmp_path / "plain"))) == (end, [end])
    assert names(Chat(policy(tmp_path / "text", eos=text))) == (end, [text, end])
    ids = {word: Chat(tmp_path / "plain").tokenizer.convert_tokens_to_ids(word) for word in (end, text)}
    for name in ("config", "generation_config"):
        listed = {name: {"eos_token_id": [ids[end], ids[text]]}}
        assert names(Chat(policy(tmp_path / name, **listed))) == (end, [text, end])
    # Nothing behind a reply, or only a line: the tokenizer's own.
    for number, behind in enumerate(("", "\n")):
        silent = policy(
            tmp_path / f"silent-{number}", CHATML.replace("<|im_end|>\n{% endfor %}", behind + "{% endfor %}")
        )
        assert names(Chat(silent)) == (end, [end])
    # Some end a reply with the token that begins the next turn.
    other = {
        "generation_config": {
            "eos_token_id": [Chat(tmp_path / "plain").tokenizer.convert_tokens_to_ids("<|im_start|>")]
        }
    }
    begins = policy(tmp_path / "begins", CHATML.replace("<|im_end|>\n{% endfor %}", "{% endfor %}"), text, **other)
    assert names(Chat(begins)) == ("<|im_start|>", [text, "<|im_start|>"])


def test_a_reply_that_another_named_token_ended_reads_without_it(tmp_path: Path) -> None:
    chat = Chat(policy(tmp_path / "p", eos="<|endoftext|>"))
    hit = chat.tokenizer.encode("HIT", add_special_tokens=False)
    for end in chat.end_ids:
        assert chat.reply_text([*hit, end]) == "HIT"
    assert chat.next_ids(FIRST, "HIT", FIRST[1:]) is not None  # behind the template's own end


@pytest.mark.parametrize("file", ["config", "generation_config"])
@pytest.mark.parametrize("named", [99_999, [2, 99_999], "2", -1, True])
def test_a_file_that_names_no_token_is_refused(tmp_path: Path, file: str, named: object) -> None:
    with pytest.raises(ValueError, match=rf'^policy is ".*", whose {file}.json has eos_token_id .*; allowed: .*ids'):
        Chat(policy(tmp_path / "p", **{file: {"eos_token_id": named}}))


def test_a_template_that_ends_turns_with_mere_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"writes '\[/TURN\]' behind a reply, which is none of its tokens; allowed: "):
        Chat(policy(tmp_path / "p", CHATML.replace("<|im_end|>", "[/TURN]")))


@pytest.mark.parametrize(
    "template",
    [
        NO_SYSTEM + CHATML,
        CHATML.replace("<|im_start|>{{", "{% if m['role'] != 'system' %}<|im_start|>{{").replace(
            "<|im_end|>\n", "<|im_end|>\n{% endif %}"
        ),
    ],
)
def test_without_a_system_role_its_text_is_at_the_head_of_the_first_message(tmp_path: Path, template: str) -> None:
    folder = policy(tmp_path / "p", template)
    check_conversation(folder, "mine", FIRST)
    assert Chat(folder).prompt(FIRST) == (
        "<|im_start|>user\nAnswer HIT or STAND.\n\nCards 2 3, hard 5.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if %}" + CHATML, "whose chat template fails ("),
        ("{{ raise_exception('Not today') }}" + CHATML, "whose chat template fails (Not today); allowed: "),
        ("{{ messages[7]['content'] }}" + CHATML, "whose chat template fails ("),
        ("{{ 1 / 0 }}" + CHATML, "whose chat template fails (division by zero)"),
        (
            CHATML.replace("{{ m['content'] }}", "{{ m['content'][:5] }}"),
            "leaves out what the system says ('Answer HIT",
        ),
        ("{% set messages = messages[:2] %}" + CHATML, "leaves out a reply"),
        ("{% set messages = messages[:3] %}" + CHATML, "leaves out what follows a reply"),
        (CHATML.partition("{% if")[0], r"does not begin the reply: it lacks '<|im_start|>assistant' at the end"),
        (CHATML.replace("{% endif %}", OPENS), "opens a thought in every prompt; allowed: rollout.thinking true"),
    ],
)
def test_a_template_that_cannot_tell_an_episode_is_refused_in_one_sentence(
    tmp_path: Path, template: str, why: str
) -> None:
    with pytest.raises(ValueError) as caught:
        check_conversation(policy(tmp_path / "p", template), "mine", FIRST)
    assert str(caught.value).startswith('policy is "mine", ') and why in str(caught.value)
    assert "\n" not in str(caught.value) and "; allowed: " in str(caught.value)


def test_the_day_of_a_run_is_what_a_clock_in_a_template_tells(tmp_path: Path) -> None:
    folder = policy(tmp_path / "p", CLOCK + CHATML)
    assert has_clock(folder) and not has_clock(policy(tmp_path / "q"))
    first, second = (open_chat(folder, day=day).prompt(FIRST) for day in ("2026-11-30", "2026-12-01"))
    assert first.startswith("30 Nov 2026\n") and second.startswith("01 Dec 2026\n")
    assert open_chat(folder, day="2026-11-30").prompt(FIRST) == first
    asks = "{% if strftime_now is defined %}{% set d = strftime_now( '%Y' ) %}{{ d }}|{% endif %}"  # as Llama 3.2 does
    assert open_chat(policy(tmp_path / "r", asks + CHATML), day="2027-01-01").prompt(FIRST).startswith("2027|")


def test_a_thought_that_the_prompt_opened_is_part_of_the_reply(tmp_path: Path) -> None:
    chat = Chat(policy(tmp_path / "p", CHATML.replace("{% endif %}", OPENS)), thinking=True)
    check_conversation(tmp_path / "p", "mine", FIRST, thinking=True)

    def said(text: str) -> str:
        return chat.reply_text([*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_id])

    assert said("16 is weak.\nHIT") == "<think>\n16 is weak.\nHIT"  # not closed: no answer
    reply = said("16 is weak.\n</think>\n\nHIT")
    assert reply == "<think>\n16 is weak.\n</think>\n\nHIT"
    # A template that tells what was said appends, one that leaves the thought out begins a new sample.
    assert (
        chat.next_ids(FIRST, reply, FIRST[1:])
        == chat.tokenizer.encode(
            "\n<|im_start|>user\nCards 2 3, hard 5.<|im_end|>\n<|im_start|>assistant\n<think>\n",
            add_special_tokens=False,
        )
        or chat.next_ids(FIRST, reply, FIRST[1:]) is None
    )


def test_whatever_file_differs_the_warm_chat_is_that_of_a_fresh_process(tmp_path: Path) -> None:
    plain = policy(tmp_path / "plain", generation_config={"eos_token_id": 2})
    seen = {settings_digest(plain)}
    changes: Sequence[tuple[str, str]] = [
        ("chat_template.jinja", "\n" + CHATML),
        ("generation_config.json", '{"eos_token_id": [2, 0]}'),
        ("config.json", '{"eos_token_id": 0}'),
        ("special_tokens_map.json", '{"eos_token": "<|endoftext|>"}'),
        ("added_tokens.json", '{"<|new|>": 900}'),
        ("tokenizer_config.json", (plain / "tokenizer_config.json").read_text().replace("<|im_end|>", "<|endoftext|>")),
        ("tokenizer.json", (plain / "tokenizer.json").read_text() + " "),
        ("merges.txt", "a b"),
        ("tokenizer.model", "x"),
        ("chat_templates/tool_use.jinja", CHATML),
    ]
    for number, (name, content) in enumerate(changes):
        folder = policy(tmp_path / str(number), generation_config={"eos_token_id": 2})
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        seen.add(settings_digest(folder))
        if name in ("chat_template.jinja", "generation_config.json", "config.json", "tokenizer_config.json"):
            open_chat(plain)
            warm, fresh = open_chat(folder), Chat(folder)
            assert (warm.end_ids, warm.prompt(FIRST)) == (fresh.end_ids, fresh.prompt(FIRST))
            assert (warm.end_ids, warm.prompt(FIRST)) != (open_chat(plain).end_ids, open_chat(plain).prompt(FIRST))
    assert len(seen) == 1 + len(changes)
    # Weights, and what a run notes beside them, are others in each version.
    for name in ("model.safetensors", "model.safetensors.index.json", "policy.json", "_metrics.json", "_history.jsonl"):
        (plain / name).write_text("{}")
    assert settings_digest(plain) in seen
