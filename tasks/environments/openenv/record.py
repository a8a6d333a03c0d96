"""The record of a server: how a prompt is made of an observation, an action of a reply, and a reward of the steps."""

import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from tasks.environments.interface import ToolSpec
from tasks.settings import require

MCP = {"tool_name", "arguments"}  # the fields of an action that calls a tool
Observation = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Example: `Record(url="http://127.0.0.1:8000", reset={"dataset_name": "chain_sum", "size": 1}, action="answer",
    prompt="{question}")`."""

    url: str
    reset: Mapping[str, Any] = field(default_factory=dict)  # arguments of each reset, beside the seed
    action: str = ""  # the field that takes the reply; with `tools` none does
    kind: str = "string"  # the JSON type of that field
    fields: Mapping[str, Any] = field(default_factory=dict)  # other fields of each action
    tools: tuple[ToolSpec, ...] = ()  # of an MCP server: the replies call them
    format: str = "tool_call"  # of these calls
    pattern: str = ""  # a regular expression: its first group in the reply is what the action takes
    system: str = ""
    prompt: str = ""  # a template with the observation's fields; "": all of them
    next_prompt: str = ""  # that of later turns
    rewards: Literal["sum", "last"] = "sum"
    turns: int | None = None  # after so many replies an episode is over; None: when the server says so
    metrics: tuple[str, ...] = ()  # fields of the observation that are numbers

    def __post_init__(self) -> None:
        found = urlsplit(self.url) if isinstance(self.url, str) else None
        web = found is not None and found.scheme in ("http", "https") and bool(found.hostname)
        require(web, "option url", self.url, "an address of the form http://host:port")
        require(self.rewards in ("sum", "last"), "option rewards", self.rewards, "sum, last")
        number = self.turns is None or (type(self.turns) is int and self.turns >= 1)
        require(number, "option turns", self.turns, "1 or more, or null where the server ends its episodes")
        for name in ("prompt", "next_prompt", "system", "pattern"):
            require(isinstance(getattr(self, name), str), f"option {name}", getattr(self, name), "a text")
        for name in ("prompt", "next_prompt"):
            try:
                list(string.Formatter().parse(getattr(self, name)))
            except ValueError as error:
                require(False, f"option {name}", getattr(self, name), f"a template with fields in braces ({error})")
        try:
            groups = re.compile(self.pattern).groups
        except re.error:
            groups = 0
        require(not self.pattern or groups > 0, "option pattern", self.pattern, "a regular expression with a group")
        for name in ("reset", "fields"):
            require(isinstance(getattr(self, name), Mapping), f"option {name}", getattr(self, name), "a JSON object")

    def text(self, observation: Observation, *, first: bool) -> str:
        """What the policy is told of an observation. Raises ValueError where the template names what it has not."""
        template = self.prompt if first or not self.next_prompt else self.next_prompt
        known = {name: value for name, value in observation.items() if value not in (None, "", {}, [])}
        if not template:
            known.pop("metadata", None)
            if [*map(type, known.values())] == [str]:
                return next(iter(known.values()))
            return "\n".join(f"{name}: {_shown(value)}" for name, value in known.items())
        try:
            return template.format_map({name: _Shown(value) for name, value in observation.items()})
        except (KeyError, IndexError, TypeError) as error:
            has = ", ".join(observation) or "nothing"
            raise ValueError(f"option prompt names {error}, and the server's observation has {has}.") from None

    def read(self, reply: str) -> dict[str, Any] | None:
        """The action that a reply is; None for one that cannot be read."""
        text = reply.strip()
        if self.pattern:
            found = re.search(self.pattern, reply, re.DOTALL)
            if found is None or found.group(1) is None:
                return None
            text = found.group(1).strip()
        if self.kind == "string":
            return {**self.fields, self.action: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        kinds = {"integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
        fits = isinstance(value, kinds[self.kind]) and (self.kind == "boolean" or not isinstance(value, bool))  # type: ignore[arg-type]
        return {**self.fields, self.action: value} if fits else None

    def measured(self, observation: Observation) -> dict[str, float]:
        """The observation's metrics, as far as it has them."""
        found = {name: observation.get(name) for name in self.metrics}
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


class _Shown:
    """A value in a template: `{state[board]}` reaches into it, `{question}` is its text."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: Any) -> "_Shown":
        return _Shown(self.value[key])

    def __format__(self, how: str) -> str:
        return format(self.value, how) if how else _shown(self.value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def choose_action(fields: Mapping[str, Mapping[str, Any]], given: str, others: Mapping[str, Any]) -> tuple[str, str]:
    """The field of an action that takes the reply and its JSON type: the one that is `given`, else the only one that is
    required, or the only text. Raises ValueError where the schema leaves several."""
    allowed = f"one of the action's fields: {', '.join(fields)}"
    require(not given or given in fields, "option action", given, allowed)
    for name in others:
        require(name in fields, "a field in option fields", name, f"the action's fields: {', '.join(fields)}")
    open_fields = {name: field for name, field in fields.items() if name not in others}
    required = [name for name, field in open_fields.items() if field["required"]]
    texts = [name for name, field in open_fields.items() if field.get("type") == "string"]
    choice = next((found for found in ([given] if given else [], required, texts) if len(found) == 1), None)
    if choice is None:
        require(False, "option action", given, allowed)
        raise AssertionError
    kind = fields[choice[0]].get("type", "string")
    return choice[0], kind if kind in ("integer", "number", "boolean", "array", "object") else "string"
