"""What a server says of itself: the fields of an action, by its schema, and the tools that it offers by MCP."""

import functools
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tasks.environments.interface import ToolSpec

SECONDS = 8.0  # for an answer
Schema = Mapping[str, Any]


@functools.lru_cache(maxsize=16)
def action_fields(url: str) -> Mapping[str, Schema]:
    """The JSON schemas of an action's fields by name, without `metadata`.

    Raises ConnectionError where nobody answers, and ValueError for what answers and is no OpenEnv server.
    """
    found = _asked(url, "/schema")
    action = found.get("action") if isinstance(found, dict) else None
    if not isinstance(action, dict) or not isinstance(action.get("properties"), dict):
        raise ValueError(f'option url is "{url}", and what answers there is no OpenEnv server: it has no schema.')
    required = action.get("required", [])
    fields = {name: field for name, field in action["properties"].items() if name != "metadata"}
    return {name: {**field, "required": name in required} for name, field in fields.items()}


@functools.lru_cache(maxsize=16)
def offered_tools(url: str) -> tuple[ToolSpec, ...]:
    """The tools of an MCP server. Raises as `action_fields`."""
    answer = _asked(url, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    try:
        tools = answer["result"]["tools"]
        return tuple(
            ToolSpec(tool["name"], tool.get("description") or "", tool.get("inputSchema") or tool["input_schema"])
            for tool in tools
        )
    except (KeyError, TypeError):
        raise ValueError(f'option url is "{url}", and what answers there lists no tools: {answer}.') from None


def _asked(url: str, path: str, data: Any = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url.rstrip("/") + path, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise ValueError(
            f'option url is "{url}", and what answers there is no OpenEnv server: {path} gives {error.code}.'
        ) from None
    except ValueError:
        raise ValueError(
            f'option url is "{url}", and what answers there is no OpenEnv server: {path} is no JSON.'
        ) from None
    except OSError as error:
        raise ConnectionError(f'option url is "{url}", and nobody answers there: {error}.') from None
