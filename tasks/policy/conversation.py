"""Whether a checkpoint's chat template can tell the conversations of an environment, before any work."""

from collections.abc import Sequence
from pathlib import Path

from tasks.environments.interface import Message, ToolSpec
from tasks.policy import refuse
from tasks.policy.chat import Chat

REPLY, FOLLOW_UP = "The reply is 4711.", "And what is said next?"


def check_conversation(
    folder: Path, name: str, first: Sequence[Message], *, thinking: bool = False, tools: Sequence[ToolSpec] = ()
) -> int:
    """Render the first prompt of an episode, a reply and a further question with the template of the policy `name`;
    returns the tokens of the prompt.

    Raises ValueError, in one sentence, where the template fails or loses what the environment said, or where the policy
    would not know that it is its turn.
    """
    try:
        chat = Chat(folder, thinking, tools)
        prompt = chat.prompt(first)
        told = chat.prompt([*first, {"role": "assistant", "content": REPLY}], generation=False)
        longer = chat.prompt([*first, {"role": "assistant", "content": REPLY}, {"role": "user", "content": FOLLOW_UP}])
    except ValueError as error:
        raise ValueError(str(error).replace(str(folder), name)) from None
    for message in first:
        for line in filter(None, map(str.strip, message["content"].splitlines())):
            if line not in prompt:
                why = f", whose chat template leaves out what the {message['role']} says ({line[:40]!r})"
                refuse(name, why, "a template that tells every message")
    if REPLY not in told or REPLY not in longer:
        refuse(name, ", whose chat template leaves out a reply", "a template that tells every message")
    if FOLLOW_UP not in longer:
        refuse(name, ", whose chat template leaves out what follows a reply", "a template that tells every message")
    if told.startswith(prompt) and (missing := told[len(prompt) :].partition(REPLY)[0].strip()):
        why = f", whose chat template does not begin the reply: it lacks {missing!r} at the end of a prompt"
        refuse(name, why, "a template that heeds add_generation_prompt")
    if chat.opened and not thinking:
        why = ", whose chat template opens a thought in every prompt"
        refuse(name, why, "rollout.thinking true with this policy")
    return len(chat.initial_ids(first))


def has_clock(folder: Path) -> bool:
    """Whether the chat template in a folder asks for the time."""
    files = (folder / name for name in ("chat_template.jinja", "tokenizer_config.json"))
    return any("strftime_now" in file.read_text() for file in files if file.is_file())
