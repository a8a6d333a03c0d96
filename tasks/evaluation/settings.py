"""How a run was started, as MLflow keeps it, and which of its settings are not the defaults."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.config import GrpoConfig, Run
from tasks.environments.interface import EnvironmentSpec
from tasks.tracking.mlflow_store import client


@dataclass(frozen=True)
class Origin:
    """What a run was made with: parameters and tags as MLflow keeps them, and when it was created (seconds since
    1970).

    Example: `Origin({"policy": "tiny", "training.epochs": "4"}, {"git.commit": "9c0f…", "version.torch": "2.13.0"},
    1796014266.0)`.
    """

    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    started: float


def origin_of(run: Run) -> Origin | None:
    """None when MLflow does not answer: a report can do without."""
    try:
        known = client(run.tracking_uri).get_run(run.mlflow_run_id)
    except Exception:  # of whatever kind: there was no answer
        return None
    return Origin(known.data.params, known.data.tags, known.info.start_time / 1000)


def default_settings(spec: EnvironmentSpec) -> dict[str, Any]:
    """Every setting as it is where nobody gives any."""
    return GrpoConfig().to_dict()


def changed_settings(run: Run, origin: Origin) -> dict[str, Any]:
    """The settings that are not the defaults, nested as `--config` takes them."""
    return _changed(GrpoConfig().to_dict(), origin.parameters)


def _changed(defaults: Mapping[str, Any], parameters: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, default in defaults.items():
        given = parameters.get(f"{prefix}{name}", str(default))
        if isinstance(default, dict):
            if nested := _changed(default, parameters, f"{prefix}{name}."):
                changed[name] = nested
        elif given != str(default):
            plain = json.loads if default is None else type(default)  # None: a number
            changed[name] = given == "True" if isinstance(default, bool) else plain(given)
    return changed


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"training": {"epochs": 4}}` is `{"training.epochs": 4}`."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
