"""The chain as people read it: a line a policy, under it a line for each batch that it learned from."""

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from tasks.folders import shown
from tasks.lineage.chain import PolicyLink, TrajectoryLink

DIGITS = 12  # of a digest, enough to tell policies apart
INDENT = 4


def chain_lines(chain: Sequence[PolicyLink]) -> list[Text]:
    """The whole chain, newest policy first."""
    lines, width = [], len(str(chain[0].version))
    for policy in chain:
        lines.append(
            Text.assemble(
                (f"policy {policy.version:>{width}}", "bold cyan"),
                (f"  {policy.digest[:DIGITS]}", "dim"),
                f"  {_shown(policy.place)}",
                (f"  {policy.origin}" if policy.origin else "", "green"),
                _state(policy.state),
            )
        )
        for batch in policy.batches:
            use = batch.use
            lines.append(
                Text.assemble(
                    " " * INDENT,
                    f"from {len(use.used):,} of {use.groups:,} groups ({use.games:,} games) "
                    f"that policy {use.sampled_by.version} played, age {use.age}",
                    (f"  {use.digest[:DIGITS]}", "dim"),
                    f"  {_shown(batch.place)}",
                    _state(batch.state),
                )
            )
    return lines


def trajectory_lines(found: TrajectoryLink) -> list[Text]:
    """One game: who played it on which deck, what it earned, what was said, who learned from it."""
    by, learned = found.sampled_by, ", ".join(f"policy {version}" for version in found.learned_by)
    reward = "none, it was dropped" if found.reward is None else f"{found.reward:+g}, {found.finish_reason}"
    facts = {
        "sampled by": f"policy {by.version}, {by.digest[:DIGITS]}, {_shown(by.uri)}",
        "deck seed": str(found.seed),
        "reward": reward,
        "advantage": f"{found.advantage:+g}",
        "learned by": learned or "none of these policies",
    }
    lines = [Text(f"trajectory {found.trajectory_id}", "bold cyan")]
    lines += [_fact(name, value, "dim") for name, value in facts.items()]
    return lines + [_fact(message["role"], message["content"], "green") for message in found.messages]


def _fact(name: str, value: str, style: str) -> Text:
    """What a policy sampled may hold anything: lines are indented, and no character reaches a terminal as a command."""
    legible = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)
    return Text.assemble(" " * INDENT, (f"{name:<12}", style), legible.replace("\n", "\n" + " " * (INDENT + 12)))


def _state(state: str) -> tuple[str, str]:
    return f"  ({state})" if state else "", "yellow"


def _shown(place: str) -> str:
    return place if "://" in place else shown(Path(place))
