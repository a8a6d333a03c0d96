"""Chat templates from a grammar of real ones, and any replies: refused in a sentence before work, or told rightly."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.config import RolloutConfig
from tasks.environments.interface import EnvironmentSpec, Message, Step, Task, ToolSpec
from tasks.policy.chat import Chat
from tasks.policy.conversation import check_conversation
from tasks.policy.tiny import make_tokenizer
from tasks.policy.tool_formats import FORMATS
from tasks.rollout.engine import Completion
from tasks.rollout.episode import Player, SampledEpisode

FIRST = [{"role": "system", "content": "Answer HIT or STAND."}, {"role": "user", "content": " Cards 2 3, hard 5. "}]
FOLLOW_UPS = ["Cards 2 3 4, hard 9.", "Häßlich <b>& ünd\n\nmehr", "  spaces  "]
ENDS = ["<|im_end|>", "<|endoftext|>", "<|im_start|>"]  # the tokenizer's special tokens
RAISES = "{{ raise_exception('System role not supported') }}"


@st.composite
def templates(draw: st.DrawFn) -> str:
    """ChatML, Llama, Mistral, Zephyr and what is between them."""
    pick = lambda *choices: draw(st.sampled_from(choices))  # noqa: E731
    end = pick(*ENDS[:2], "</s>", "", *ENDS)
    content = pick("{{ m['content'] }}", "{{ m['content'] | trim }}", "{{ m.content }}")
    thought = "{{ m['content'].split('</think>')[-1].lstrip('\\n') }}"
    said = pick(content, content, thought)
    opening, closing = pick(
        ("<|im_start|>ROLE\n", "\n"),
        ("<|ROLE|>\n", "\n"),
        ("[ROLE]\n\n", ""),
        ("[INST] ", " [/INST]"),
        ("ROLE: ", "\n"),
    )
    mistral = opening == "[INST] "
    if mistral:
        user, assistant = opening + content + closing, f" {said}{end}"
        begin = ""
    else:
        user = opening.replace("ROLE", "user") + content + (end if draw(st.booleans()) else "") + closing
        begin = opening.replace("ROLE", pick("assistant", "model"))
        assistant = begin + said + end + closing
    system = pick("role", "role", "merged", "raises", "dropped")
    told = {
        "role": opening.replace("ROLE", "system") + content + closing,
        "merged": "",
        "dropped": "",
        "raises": RAISES,
    }[system]
    if system == "merged":
        first = (
            "{% if loop.index0 == 1 and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}"
        )
        user = user.replace(content, first + content)
    body = (
        f"{{% for m in messages %}}{{% if m['role'] == 'system' %}}{told}{{% elif m['role'] == 'user' %}}{user}"
        f"{{% else %}}{assistant}{{% endif %}}{{% endfor %}}"
    )
    prompts = begin + pick("", "", "<think>\n", "<think>\n\n</think>\n\n")
    generation = pick(f"{{% if add_generation_prompt %}}{prompts}{{% endif %}}", prompts, "")
    day = pick("", "", "{{ strftime_now('%d %b %Y') }}\n")
    bos = pick("", "{{ bos_token }}", "<s>")
    return bos + day + body + generation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer; each example writes its template beside it."""
    folder = tmp_path_factory.mktemp("policy")
    make_tokenizer(["Answer HIT or STAND.", "Cards 2 3, hard 5."], folder)
    known = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, "bos_token": "<|endoftext|>"}))
    (folder / "config.json").write_text("{}")
    return folder


class Scripted:
    """An environment with a follow-up for each reply; it keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def reset(self, task: Task) -> Step:
        return Step(FIRST)

    async def step(self, reply: Message) -> Step:
        self.heard.append(reply["content"])
        done = len(self.heard) > len(FOLLOW_UPS)
        return Step([] if done else [{"role": "user", "content": FOLLOW_UPS[len(self.heard) - 1]}], 0.25, done)

    async def close(self) -> None: ...


SPEC = EnvironmentSpec(name="scripted", task=lambda split, index: Task("1", split, index), local=Scripted)


def played(chat: Chat, replies: Sequence[Sequence[int]]) -> tuple[SampledEpisode, Scripted, list[list[int]]]:
    """An episode in which the policy samples these tokens, and the prompts that it saw."""
    prompts: list[list[int]] = []

    async def sample(prompt: Sequence[int], seed: int, most: int) -> Completion:
        prompts.append(list(prompt))
        ids = list(replies[len(prompts) - 1])
        return Completion(ids, [-0.5 - i / 64 for i in range(len(ids))], truncated=False)

    config = RolloutConfig(groups=2, max_groups=2, group_size=2, max_tokens=64, max_turns=8, max_episode_tokens=100_000)
    environment, episode = Scripted(), SampledEpisode(SPEC.task("train", 1))

    async def play() -> None:
        await Player(chat, SPEC, config, sample, asyncio.Semaphore(1)).play(episode, environment, lambda turn: turn)

    asyncio.run(play())
    return episode, environment, prompts


PIECES = ["HIT", "<think>", "</think>", "\n", "ANSWER ", " ", "é", "\ufffd", "[/INST]", "assistant", "<tool_call>{"]
token_ids = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(max_size=8),
    st.lists(st.integers(0, 260), min_size=0, max_size=8),  # any tokens, special ones and halves of letters too
)


@settings(max_examples=120)
@given(
    template=templates(),
    replies=st.lists(token_ids, min_size=4, max_size=4),
    end=st.integers(0, 5),
    thinking=st.booleans(),
)
def test_a_template_is_refused_or_every_sample_is_what_was_seen_and_said(
    folder: Path, template: str, replies: list[str | list[int]], end: int, thinking: bool
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    try:
        taken = check_conversation(folder, "mine", FIRST, thinking=thinking)
    except ValueError as error:
        said = str(error)
        assert said.startswith('policy is "mine", ') and "; allowed: " in said and "\n" not in said
        return
    chat = Chat(folder, thinking, day="2026-11-30")
    first = chat.initial_ids(FIRST)
    assert len(first) == taken
    prompt = chat.tokenizer.decode(first, skip_special_tokens=False)
    assert "Answer HIT or STAND." in prompt and "Cards 2 3, hard 5." in prompt
    assert "strftime" not in prompt and ("30 Nov 2026" in prompt) == ("strftime" in template)
    special = set(chat.tokenizer.all_special_ids)
    sampled = []
    for reply in replies:
        ids = chat.tokenizer.encode(reply, add_special_tokens=False) if isinstance(reply, str) else reply
        ids = [one for one in ids if one not in chat.end_ids]  # the engine stops there
        sampled.append([*ids, chat.end_ids[end % len(chat.end_ids)]])
    episode, environment, prompts = played(chat, sampled)
    assert episode.finish_reason == "finished" and episode.turns == 4
    # What the environment heard is what was sampled, behind what the prompt had opened.
    for ids, heard in zip(sampled, environment.heard, strict=True):
        assert heard == chat.opened + chat.tokenizer.decode(ids[:-1], skip_special_tokens=False)
    # Each reply is in one sample, behind the prompt that it was sampled for; the mask covers these tokens and no other.
    calls = list(zip(prompts, sampled, strict=True))
    for segment in episode.segments:
        spoken = [False] * len(segment.token_ids)
        while calls and segment.token_ids[: len(calls[0][0]) + len(calls[0][1])] == calls[0][0] + calls[0][1]:
            seen, ids = calls.pop(0)
            spoken[len(seen) : len(seen) + len(ids)] = [True] * len(ids)
        assert segment.loss_mask == spoken
        assert [value != 0 for value in segment.logprobs] == spoken
    assert calls == []
    # Each prompt reads as the template tells the conversation until then.
    for turn, seen in enumerate(prompts):
        messages = episode.messages[: 2 + 2 * turn]
        told = chat.prompt(messages)
        if all(_is_text(chat, ids) for ids in sampled[:turn]) and not special & {i for s in sampled for i in s[:-1]}:
            assert chat.tokenizer.decode(seen, skip_special_tokens=False) == told


def _is_text(chat: Chat, ids: list[int]) -> bool:
    """Whether tokens are whole letters: half of one is shown as a mark, of which no token comes back."""
    return "\ufffd" not in chat.tokenizer.decode(ids)


TOOL = ToolSpec("run", "Runs it.", {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]})
LONE = '<tool_call>{"name": "run", "arguments": {"code": "print(\'\\\\ud800\')"}}</tool_call>'
WRITTEN = ["<tool_call>", "</tool_call>", "```python\n", "\n```", "```", "PY ", "\n", '{"name": "run"', "{", "}", ", "]
WRITTEN += ['"arguments": ', '{"code": "1"}', '"\\ud800"', "</think>", "NaN", "1e999", "[" * 2000, "\x0b", "\u2028"]


@pytest.mark.parametrize("name", FORMATS)
@given(reply=st.lists(st.sampled_from(WRITTEN) | st.text(max_size=5), max_size=12).map("".join))
def test_any_reply_is_calls_that_can_be_made_or_says_why_not(name: str, reply: str) -> None:
    for call in FORMATS[name].parse(reply, [TOOL]):
        if not call.error:
            assert call.name == "run" and isinstance(call.arguments["code"], str)
            call.arguments["code"].encode()
        call.error.encode()
        json.dumps([call.name, dict(call.arguments)], ensure_ascii=False).encode()


def test_half_a_surrogate_pair_in_a_call_is_told_to_the_policy() -> None:
    (call,) = FORMATS["tool_call"].parse(LONE.replace("\\\\", "\\"), [TOOL])
    assert call.error == "the call has half a surrogate pair (\\ud800 to \\udfff), which is no text"
