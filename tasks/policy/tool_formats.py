"""How a policy writes the calls of tools, as data: each format reads calls from a reply and writes one.

    tool_call   <tool_call>\\n{"name": "python", "arguments": {"code": "17+384-5"}}\\n</tool_call>
    python      ```python\\n17+384-5\\n```
    line        PY 17+384-5
    bare        17+384-5

A call that cannot be read is a call with an `error`, one sentence that the policy can learn from. Nothing here is
trusted: what a call holds is the policy's text.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.environments.interface import ToolSpec
from tasks.settings import require


@dataclass(frozen=True)
class ToolCall:
    """A call as it was read from a reply. Example: `ToolCall("python", {"code": "17+384-5"})`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # why it cannot be made


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls. All but `tool_call` write only a string: the first parameter of the only tool."""

    name: str
    parse: Callable[[str, Sequence[ToolSpec]], list[ToolCall]]  # the calls in a reply, in their order
    render: Callable[[ToolCall], str]
    explain: Callable[[Sequence[ToolSpec]], str]  # for the system message
    stop: tuple[str, ...]  # strings with which a call ends, for replies of one call
    by_template: bool = False  # the chat template is given the tools, and explains them itself


def get_format(name: str) -> ToolFormat:
    """The format of that name. Raises ValueError for an unknown one."""
    require(name in FORMATS, "format", name, ", ".join(FORMATS))
    return FORMATS[name]


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: JSON's escapes can spell half a surrogate pair."""
    return all(not "\ud800" <= character <= "\udfff" for character in text)


def _parse_json(reply: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    pieces = reply.split("<tool_call>")[1:]
    return [_read_json(piece, tools) for piece in pieces]


def _read_json(piece: str, tools: Sequence[ToolSpec]) -> ToolCall:
    text, closed, _ = piece.partition("</tool_call>")
    if not closed:
        return ToolCall("", error="the call does not end with </tool_call>")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", error=f"the call is not JSON: {error}")
    if not is_unicode(json.dumps(found, ensure_ascii=False)):
        return ToolCall("", error="the call has half a surrogate pair (\\ud800 to \\udfff), which is no text")
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return ToolCall("", error='the call is not of the form {"name": ..., "arguments": {...}}')
    name, arguments = found["name"], found.get("arguments", {})
    known = {tool.name: tool for tool in tools}
    if name not in known:
        return ToolCall(name, error=f"there is no tool {name!r}; there is {', '.join(known)}")
    if wrong := _wrong(arguments, known[name].parameters):
        return ToolCall(name, error=f"the arguments of {name} do not fit: {wrong}")
    return ToolCall(name, arguments)


def _wrong(arguments: Any, schema: Mapping[str, Any]) -> str:
    from jsonschema import Draft202012Validator

    found = next(iter(Draft202012Validator(dict(schema)).iter_errors(arguments)), None)
    return found.message[:200] if found else ""


def _render_json(call: ToolCall) -> str:
    text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _explain_json(tools: Sequence[ToolSpec]) -> str:
    schemas = "\n".join(json.dumps(tool.to_json(), ensure_ascii=False) for tool in tools)
    form = '<tool_call>\n{"name": "the tool", "arguments": {"its parameter": "a value"}}\n</tool_call>'
    return f"You can use these tools, given as JSON schemas:\n{schemas}\nTo call a tool, write:\n{form}"


_FENCE = re.compile(r"^```(?:python|py)[ \t]*\n(.*?)(?:^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


def _parse_fenced(reply: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    return [_fenced(match, tools) for match in _FENCE.finditer(reply)]


def _fenced(match: re.Match[str], tools: Sequence[ToolSpec]) -> ToolCall:
    name, parameter = _only(tools)
    if not match.group(0).rstrip().endswith("\n```"):
        return ToolCall(name, error="the block does not end with ```")
    if not match.group(1).strip():
        return ToolCall(name, error="the block is empty")
    return ToolCall(name, {parameter: match.group(1).removesuffix("\n")})


def _render_fenced(call: ToolCall) -> str:
    return f"```python\n{_text(call)}\n```"


def _explain_fenced(tools: Sequence[ToolSpec]) -> str:
    return f"{tools[0].description} To use it, write a block:\n```python\nthe code\n```"


MARK = "PY"  # with which a line that is to be run begins


def _parse_lines(reply: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    name, parameter = _only(tools)
    found = []
    for line in reply.splitlines():
        mark, _, code = line.strip().partition(" ")
        if mark == MARK:
            code = code.strip()
            error = "" if code else f"nothing follows {MARK}"
            found.append(ToolCall(name, {parameter: code} if code else {}, error))
    return found


def _render_line(call: ToolCall) -> str:
    return f"{MARK} {_text(call)}"


def _explain_line(tools: Sequence[ToolSpec]) -> str:
    return f"{tools[0].description} To use it, write a line: {MARK}, a space and the expression."


def _parse_bare(reply: str, tools: Sequence[ToolSpec]) -> list[ToolCall]:
    name, parameter = _only(tools)
    lines = (line.strip() for line in reply.splitlines())
    return [ToolCall(name, {parameter: line}) for line in lines if _computes(line)]


def _computes(line: str) -> bool:
    """Whether a line is a Python expression with an operator or a call: `17+384`, and neither `-5` nor `no idea`."""
    try:
        with warnings.catch_warnings(action="ignore"):  # such as that of "1and 2", which is the policy's
            return isinstance(ast.parse(line, mode="eval").body, ast.BinOp | ast.Call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _explain_bare(tools: Sequence[ToolSpec]) -> str:
    return f"{tools[0].description} To use it, write a line with the expression alone."


def _only(tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """The name and the parameter of the tool that a format without names calls."""
    (tool,) = tools
    return tool.name, next(iter(tool.parameters["properties"]))


def _text(call: ToolCall) -> str:
    (text,) = call.arguments.values()
    return text


FORMATS = {
    found.name: found
    for found in (
        ToolFormat("tool_call", _parse_json, _render_json, _explain_json, ("</tool_call>",), by_template=True),
        ToolFormat("python", _parse_fenced, _render_fenced, _explain_fenced, ("\n```\n",)),
        ToolFormat("line", _parse_lines, _render_line, _explain_line, ("\n",)),
        ToolFormat("bare", _parse_bare, _text, _explain_bare, ("\n",)),
    )
}
