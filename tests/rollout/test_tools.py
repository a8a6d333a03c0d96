"""Episodes with a tool: its output is in the prompt and never in the loss, and tokens are as they were sampled."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollout.scripted_engine import ScriptedEngine
from tasks.config import RolloutConfig
from tasks.environments.catalog import get_environment
from tasks.environments.interface import Step
from tasks.environments.scripted import annotated
from tasks.environments.tool_use import Exercise, ToolOptions, ToolUse
from tasks.interpreter.interface import Execution
from tasks.policy.chat import Chat
from tasks.policy.checkpoint import write_manifest
from tasks.policy.tool_formats import FORMATS, ToolCall
from tasks.rollout.episode import SampledEpisode
from tasks.rollout.loop import EpisodeLoop
from tasks.rollout.play import TaskSchedule
from tasks.rollout.worker import rows

TEMPLATES = Path(__file__).parents[1] / "policy" / "templates"
CONFIG = RolloutConfig(max_tokens=256, max_turns=4, max_episode_tokens=4096)


@pytest.fixture
def policy(tiny_policy: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(template: str) -> Path:
        folder = tmp_path / template
        shutil.copytree(tiny_policy, folder)
        if template != "tiny":
            shutil.copy(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
        write_manifest(folder, version=0, parent="")
        return folder

    return make


def played(folder: Path, replies: Sequence[str], **options: Any) -> tuple[SampledEpisode, ScriptedEngine, Chat, Any]:
    spec = get_environment("calculator", {"numbers": 2, "maximum": 9, **options})
    chat = Chat(folder, tools=spec.tools)
    engine = ScriptedEngine(chat, lambda turn: replies[turn])
    schedule = TaskSchedule([spec.task("train", 0)], CONFIG, lambda n, turn: n, lambda e: None)
    EpisodeLoop(engine, chat, spec, "", CONFIG, 1.0).run(schedule)  # pyright: ignore[reportArgumentType]
    return schedule.episodes[0], engine, chat, spec  # type: ignore[return-value]


@pytest.mark.parametrize("template", ["Qwen2.5-Instruct", "SmolLM2-Instruct", "tiny"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("stop", [False, True])
def test_the_output_is_in_the_prompt_and_not_in_the_loss(
    policy: Callable[[str], Path], template: str, format: str, stop: bool
) -> None:
    call = FORMATS[format].render(ToolCall("python", {"code": "40+2"}))
    if stop and format != "tool_call":
        call += "\n"  # with which the call ends
    answer = "42" if format == "bare" else "ANSWER 42"
    episode, engine, chat, spec = played(policy(template), [call, answer], format=format, stop=stop)
    ((first, said), (second, answered)) = engine.seen[0]
    ((segment,)) = episode.segments
    between = second[len(first) + len(said) :]
    assert second == first + said + between  # the call's tokens as sampled, whatever a tokenizer would make of its text
    assert segment.token_ids == [*second, *answered]
    assert segment.loss_mask == [
        *[False] * len(first),
        *[True] * len(said),
        *[False] * len(between),
        *[True] * len(answered),
    ]
    assert segment.logprobs == [-0.5 * sampled for sampled in segment.loss_mask]
    text = chat.tokenizer.decode(between, skip_special_tokens=False)
    role = "<|im_start|>user\n"
    told = "<tool_response>\n42\n</tool_response>" if template == "Qwen2.5-Instruct" else "42"
    end = "<|im_end|>" if stop else ""  # a stop string came before the end of the turn, which the prompt then holds
    assert text == f"{end}\n{role}{told}<|im_end|>\n<|im_start|>assistant\n"
    assert (episode.finish_reason, episode.turns) == ("finished", 2)

    (row,) = rows(episode, spec, CONFIG, "00000-00000", 0, 0)
    call_row, tool_row = row.messages[-3:-1]
    assert call_row["tool_calls"] == [{"id": "call-1", "name": "python", "arguments": '{"code": "40+2"}'}]
    assert tool_row == {"role": "tool", "content": "42", "tool_call_id": "call-1"}
    metrics = dict(row.metrics)
    assert metrics["tool_calls"] == 1 and metrics["tool_errors"] == 0
    assert "sandbox_seconds" not in metrics  # the seed does not decide it


def test_calls_of_several_turns_are_added_up_and_a_last_one_too_many_is_truncated(
    policy: Callable[[str], Path],
) -> None:
    replies = ["PY 1+1", "PY 2+", "PY 3+1", "PY 4"]
    episode, _, _, spec = played(policy("tiny"), replies)
    assert (episode.finish_reason, episode.turns) == ("truncated", 4)
    outputs = [m["content"] for m in episode.messages if m["role"] == "tool"]
    assert outputs[0] == "2" and all(text.startswith("error: ") for text in outputs[1:])
    (row,) = rows(episode, spec, CONFIG, "00000-00000", 0, 0)
    assert dict(row.metrics)["tool_calls"] == 4 and dict(row.metrics)["tool_errors"] == 0.75
    calls = [m for m in annotated(episode) if m.get("tool_calls")]
    assert [c["tool_calls"][0]["id"] for c in calls] == ["call-1", "call-2", "call-3", "call-4"]


class Full:
    """An interpreter on a machine that has no room."""

    description = "full"

    async def open(self) -> "Full":
        return self

    async def run(self, code: str, timeout_s: float) -> Execution:
        return Execution("unavailable", error="no room")

    async def close(self) -> None: ...


def test_a_sandbox_that_is_gone_drops_the_episode(policy: Callable[[str], Path]) -> None:
    async def grade(reply: str) -> Step:
        return Step(reward=1.0, done=True)

    exercise, options = Exercise(question="1+1=?", grade=grade), ToolOptions(format="line")
    spec = dataclasses.replace(
        get_environment("calculator"), local=lambda: ToolUse(lambda task: exercise, options, Full)
    )
    chat, config = Chat(policy("tiny")), CONFIG.replace(max_error_share=1.0)
    engine = ScriptedEngine(chat, lambda turn: "PY 1")
    schedule = TaskSchedule([spec.task("train", 0)], config, lambda n, turn: n, lambda e: None)
    EpisodeLoop(engine, chat, spec, "", config, 1.0).run(schedule)  # pyright: ignore[reportArgumentType]
    episode = schedule.episodes[0]
    assert (episode.finish_reason, episode.reward, len(engine.seen[0])) == ("error", 0.0, 2)  # it was tried once more
    assert episode.error == "calculator failed in a step: the sandbox was unavailable: no room"
