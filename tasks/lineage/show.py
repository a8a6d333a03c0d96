"""The chain as people read it: a line a policy, and under it a line for each batch that it learned from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from tasks.folders import display_path
from tasks.lineage.records import BatchUse, PolicyLineage

DIGITS = 12  # of a digest, enough to tell policies apart
INDENT = 4


def chain_lines(chain: Sequence[PolicyLineage]) -> list[Text]:
    """The whole chain, newest policy first."""
    lines, width = [], len(str(chain[0].version))
    for policy in chain:
        lines.append(_line((f"policy {policy.version:>{width}}", "bold cyan"), policy, policy.origin))
        for batch in policy.batches:
            used = f"from {len(batch.used):,} of {batch.groups:,} groups ({batch.episodes:,} episodes)"
            said = f"{' ' * INDENT}{used} that policy {batch.sampled_by.version} sampled, age {batch.age}"
            lines.append(_line((said, ""), batch))
    return lines


def _line(said: tuple[str, str], link: PolicyLineage | BatchUse, origin: str = "") -> Text:
    state = f"({link.state})" if link.state else ""
    parts = [said, (link.digest[:DIGITS], "dim"), (_shown(link.uri), ""), (origin, "green"), (state, "yellow")]
    return Text("  ").join(Text(text, style) for text, style in parts if text)


def trajectory_lines(found: Mapping[str, Any]) -> list[Text]:
    """One trajectory: its task and reward, the policies that sampled it and learned from it, the conversation."""
    by, reward = found["sampled_by"], found["reward"]
    facts = {
        "sampled by": f"policy {by['version']}, {by['digest'][:DIGITS]}, {_shown(by['uri'])}",
        "task": f"{found['task_id']}, seed {found['seed']}",
        "reward": "none, it was dropped" if reward is None else f"{reward:+g}, {found['finish_reason']}",
        "advantage": f"{found['advantage']:+g}",
        "learned by": ", ".join(f"policy {version}" for version in found["learned_by"]) or "none of these policies",
    }
    lines = [Text(f"trajectory {found['trajectory_id']}", "bold cyan")]
    lines += [_fact(name, value, "dim") for name, value in facts.items()]
    for message in found["messages"]:
        calls = [f"{call['name']} {call['arguments']}" for call in message.get("tool_calls") or ()]
        lines.append(_fact(message["role"], "\n".join(filter(None, [message["content"], *calls])), "green"))
    return lines


def _fact(name: str, value: str, style: str) -> Text:
    """An indented fact. What a policy sampled may hold anything: no character may control the terminal."""
    legible = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)
    return Text.assemble(" " * INDENT, (f"{name:<12}", style), legible.replace("\n", "\n" + " " * (INDENT + 12)))


def _shown(uri: str) -> str:
    return uri if "://" in uri else display_path(Path(uri))
