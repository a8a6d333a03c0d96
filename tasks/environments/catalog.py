"""Environments by name: a folder beside this file, an installed package's entry point, or any module with a SPEC."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tasks.config import require
from tasks.environments.interface import EnvironmentSpec

GROUP = "flyte_grpo.environments"  # of entry points


def environment_names() -> list[str]:
    """The names of the folders here and of the installed entry points."""
    folders = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]
    return sorted({*folders, *(point.name for point in entry_points(group=GROUP))})


def get_environment(name: str, options: Mapping[str, Any] | None = None, *, thinking: bool = False) -> EnvironmentSpec:
    """The environment `name`, made with its `options`; with `thinking` its prompts ask for a thought, where it can.

    `name` is one of `environment_names`, or `package.module` of a module that has a SPEC. Raises ValueError, in one
    sentence, for a name that is none of these, and for an option that the environment does not take.
    """
    source = _source(name)
    if isinstance(source, EnvironmentSpec):
        known: list[str] = []
    else:
        known = list(inspect.signature(source).parameters)
    given = dict(options or {})
    for key in given:
        allowed = ", ".join(key for key in known if key != "thinking") or f"none, {name} has no options"
        require(key in known and key != "thinking", "an option of the environment", key, allowed)
    if thinking and "thinking" in known:
        given["thinking"] = True
    return source if isinstance(source, EnvironmentSpec) else source(**given)


def _source(name: str) -> Any:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    allowed = f"{', '.join(environment_names())}, or package.module of a module with a SPEC"
    require(all(part.isidentifier() for part in name.split(".")), "environment", name, allowed)
    for module in (f"{__package__}.{name}", name):
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the environment is there, and lacks a package of its own
        else:
            if hasattr(found, "SPEC"):
                return found.SPEC
    raise ValueError(f'environment is "{name}"; allowed: {allowed}.')
