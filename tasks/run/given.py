"""Settings as they are given to a command: JSON, or the path of a JSON or YAML file. What cannot be read is one
sentence that names the file and the place in it."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

ALLOWED = "settings as JSON, or the path of a JSON or YAML file"


def read_given(given: str, name: str = "config") -> Any:
    """What is given as the input `name`. Raises ValueError where it is neither JSON nor a file that holds settings."""
    text, shown, kind = given, f"{name} is {_short(given)}", "JSON"
    if not given.lstrip().startswith(("{", "[")):
        path = Path(given)
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            with contextlib.suppress(ValueError):
                return json.loads(given)  # a number, or null: the records say what they are
            missing = isinstance(error, FileNotFoundError)
            why = "is no file" if missing else f"cannot be read ({getattr(error, 'strerror', None) or error})"
            raise ValueError(f"{shown}, which {why}; allowed: {ALLOWED}.") from None
        kind = "YAML" if path.suffix in (".yaml", ".yml") else "JSON"
    try:
        return yaml.load(text, _Loader) if kind == "YAML" else json.loads(text, object_pairs_hook=_once)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        why = f"is no YAML ({error.problem}{at})"
    except json.JSONDecodeError as error:
        why = f"is no JSON ({error.msg}, line {error.lineno} column {error.colno})"
    except (yaml.YAMLError, RecursionError) as error:
        why = f"is no {kind} ({' '.join(str(error).split())})"
    except KeyError as error:
        why = f"has the key {error} twice"
    raise ValueError(f"{shown}, which {why}; allowed: {ALLOWED}.")


def _short(given: str) -> str:
    return json.dumps(given if len(given) <= 80 else f"{given[:80]}…", ensure_ascii=False)


def _once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A mapping; KeyError for a key that would silently take the place of another one."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


class _Loader(yaml.SafeLoader):
    """PyYAML's, which takes the last of two values of a key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        _once((key.value, None) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge")
        return super().construct_mapping(node, deep)
