"""Environments by name: a folder beside this file, an installed package's entry point, or any module with a SPEC."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tasks.environments.interface import EnvironmentSpec
from tasks.environments.mixture import is_mixture, make_mixture
from tasks.settings import require

GROUP = "flyte_grpo.environments"  # of entry points


def environment_names() -> list[str]:
    """The names of the folders here and of the installed entry points."""
    folders = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]
    return sorted({*folders, *(point.name for point in entry_points(group=GROUP))})


def get_environment(name: str, options: Mapping[str, Any] | None = None, *, thinking: bool = False) -> EnvironmentSpec:
    """The environment `name`, made with its `options`; with `thinking` its prompts ask for a thought, where it can.

    `name` is one of `environment_names`, or `package.module` of a module that has a SPEC; or several of them with their
    weights, "sums:2,words:1", where `options` has those of each by its name. Options are the parameters of the SPEC; of
    a parameter whose default is a dataclass, such as ToolOptions, its fields. Raises ValueError, in one sentence, for a
    name that is none of these, for an option that the environment does not take, and for one that it lacks.
    """
    if is_mixture(name):
        return make_mixture(name, options or {}, functools.partial(get_environment, thinking=thinking))
    source, given = _find(name), dict(options or {})
    known = {} if isinstance(source, EnvironmentSpec) else inspect.signature(source).parameters
    records = {option: known[option].default for option in known if dataclasses.is_dataclass(known[option].default)}
    fields = {field.name: option for option, record in records.items() for field in dataclasses.fields(record)}
    own = [option for option in known if option != "thinking" and option not in records]
    allowed = [*own, *(field for field in fields if field not in own)]
    for key in given:
        options_are = ", ".join(allowed) or f"none, {name} has no options"
        require(key in allowed, "an option of the environment", key, options_are)
    if missing := [
        option for option in own if known[option].default is inspect.Parameter.empty and option not in given
    ]:
        raise ValueError(f"environment {name} lacks {' and '.join(missing)} in rollout.environment_options.")
    for option, record in records.items():
        chosen = {key: given.pop(key) for key in list(given) if key not in own and fields[key] == option}
        given[option] = dataclasses.replace(record, **chosen)
    if "thinking" in known:
        given["thinking"] = thinking
    return source if isinstance(source, EnvironmentSpec) else source(**given)


def _find(name: str) -> Any:
    """What the environment has as SPEC: a spec, or a function that makes one of its options."""
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
