"""Calls of tools as policies write them: read, written, and what is said of those that cannot be read."""

import pytest

from tasks.environments.interface import ToolSpec
from tasks.environments.tool_use import PYTHON
from tasks.policy.tool_formats import FORMATS, ToolCall, get_format

SEARCH = ToolSpec("search", "Finds.", {"type": "object", "properties": {"query": {"type": "string"}}})


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_writes_it_reads(name: str) -> None:
    call = ToolCall("python", {"code": "17 + 384 - 5"})
    text = FORMATS[name].render(call)
    assert FORMATS[name].parse(text, [PYTHON]) == [call]
    assert FORMATS[name].parse(f"Let me see.\n{text}\n", [PYTHON]) == [call]
    assert FORMATS[name].parse("ANSWER 396", [PYTHON]) == []
    assert FORMATS[name].parse(f"{text}\n{text}", [PYTHON]) == [call, call]


def test_code_of_several_lines_is_kept_as_it_is() -> None:
    code = 'for i in range(2):\n    print("a\\n", i)\n\nx = "é</tool>"'
    for name in ("tool_call", "python"):
        assert FORMATS[name].parse(FORMATS[name].render(ToolCall("python", {"code": code})), [PYTHON]) == [
            ToolCall("python", {"code": code})
        ]


def test_calls_are_written_as_checkpoints_write_them() -> None:
    call = ToolCall("python", {"code": "1+1"})
    texts = {name: found.render(call) for name, found in FORMATS.items()}
    assert texts == {
        "tool_call": '<tool_call>\n{"name": "python", "arguments": {"code": "1+1"}}\n</tool_call>',
        "python": "```python\n1+1\n```",
        "line": "PY 1+1",
        "bare": "1+1",
    }


@pytest.mark.parametrize(
    ("name", "reply", "error"),
    [
        ("tool_call", '<tool_call>{"name": "python", "arguments": {"code": "1"}}', "does not end with </tool_call>"),
        ("tool_call", "<tool_call>{name}</tool_call>", "is not JSON"),
        ("tool_call", "<tool_call>" + "[" * 100_000 + "</tool_call>", "is not JSON"),
        ("tool_call", "<tool_call>[1]</tool_call>", 'is not of the form {"name"'),
        ("tool_call", '<tool_call>{"name": 3}</tool_call>', 'is not of the form {"name"'),
        ("tool_call", '<tool_call>{"name": "shell"}</tool_call>', "no tool 'shell'; there is python, search"),
        ("tool_call", '<tool_call>{"name": "python"}</tool_call>', "'code' is a required property"),
        ("tool_call", '<tool_call>{"name": "python", "arguments": "1"}</tool_call>', "not of type 'object'"),
        ("tool_call", '<tool_call>{"name": "python", "arguments": {"code": 1}}</tool_call>', "not of type 'string'"),
        ("python", "```python\n1+1", "does not end with ```"),
        ("python", "```py\n1+1```", "does not end with ```"),
        ("python", "```python\n\n```", "the block is empty"),
        ("line", "PY", "nothing follows PY"),
        ("line", "PY  ", "nothing follows PY"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(name: str, reply: str, error: str) -> None:
    tools = [PYTHON, SEARCH] if name == "tool_call" else [PYTHON]
    (call,) = FORMATS[name].parse(reply, tools)
    assert error in call.error and not call.arguments and len(call.error) < 400


def test_what_only_looks_like_a_call_is_none() -> None:
    assert FORMATS["python"].parse("```js\n1\n``` and `python`", [PYTHON]) == []
    assert FORMATS["line"].parse("PYTHON 1+1\nHAPPY 1", [PYTHON]) == []
    assert FORMATS["tool_call"].parse("tool_call 1</tool_call>", [PYTHON]) == []
    for text in ("396", "-5", "no idea", "x", "17+", "a = 1+1", "(" * 5000, "1+1\0", "The sum is 17+384.", "1and 2"):
        assert FORMATS["bare"].parse(text, [PYTHON]) == []


def test_one_call_among_several_may_be_wrong() -> None:
    good = FORMATS["tool_call"].render(ToolCall("search", {"query": "x"}))
    calls = FORMATS["tool_call"].parse(f"<tool_call>?</tool_call>{good}", [PYTHON, SEARCH])
    assert [bool(call.error) for call in calls] == [True, False] and calls[1].name == "search"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r'format is "xml"; allowed: tool_call, python, line, bare\.'):
        get_format("xml")
