"""Policies in MLflow's model registry: every evaluated one is a version, by reference, without a copy of its weights.

    evaluate ─► register ─► version 7, alias challenger ─► promote ─► alias champion ─► models:/grpo-arithmetic@champion

The tags of a version say what it is: `uri`, the directory or URI of its weights, `digest`, and what the evaluation
measured. The tag `champions` of a model lists the versions that were champion, the present one last: `demote` goes back
along it.
"""

import contextlib
import functools
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.folders import file_name
from tasks.json_records import Record
from tasks.tracking.mlflow_store import check_reachable, client, is_away, one_process_at_a_time, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION, CHALLENGER = "champion", "challenger"
URI, DIGEST, CHAMPIONS, PROMOTION = "uri", "digest", "champions", "promotion"
SECONDS = 5.0  # in which a write that a server refuses is tried again
NAME = re.compile(r"models:/(?P<model>[A-Za-z0-9._-]+)(@(?P<alias>[A-Za-z0-9._-]+)|/(?P<number>[1-9][0-9]*))")
ALLOWED = "models:/NAME@champion, models:/NAME@challenger or models:/NAME/3"
Write = TypeVar("Write", bound=Callable[..., Any])
Exists = Callable[[str], bool]  # whether a policy still lies at a directory or URI


@dataclass(frozen=True)
class Version(Record):
    """A policy that is registered, or is to be. Example: `Version(model="grpo-arithmetic", digest="5f0c…",
    uri="s3://bucket/policies/00032", number=7, run_id="4be1…", tags={"reward": "-0.048", "policy_version": "32", …})`.
    """

    model: str
    uri: str  # the directory of its weights, or the URI of one
    digest: str  # as in its policy.json
    number: int = 0  # in the registry
    run_id: str = ""  # of the training that made it
    tags: dict[str, str] = field(default_factory=dict)  # to register it with: "policy_version", and what was measured

    @property
    def name(self) -> str:
        return f"models:/{self.model}/{self.number}"


@dataclass(frozen=True)
class Model:
    """A model of the registry; one that is not there has no versions.

    Example: `Model("grpo-arithmetic", versions={7: Version(…), 6: Version(…)}, aliases={"champion": 6}, history=[6])`.
    """

    name: str
    versions: Mapping[int, Version] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)
    history: Sequence[int] = ()  # versions that were champion, the present one last

    @property
    def champion(self) -> Version | None:
        return self.versions.get(self.aliases.get(CHAMPION, 0))

    def version(self, number: int, given: str) -> Version:
        """A version; ValueError, which begins with what was `given`, where it is not there."""
        if not self.versions:
            none = f"the registry has no model {self.name}; allowed: a model that a run has registered"
            raise ValueError(f"{given}, and {none}.")
        if number not in self.versions:
            newest = ", ".join(map(str, sorted(self.versions)[-10:]))
            raise ValueError(f"{given}, and {self.name} has no version {number}; allowed: its versions ({newest}).")
        return self.versions[number]


def model_name(model: str | None, environment: str) -> str:
    """The registry's name for the policies of a run; `model` is its tracking.model."""
    return model or f"grpo-{file_name(environment)}"


def _retried(write: Write) -> Write:
    """Calls `write(uri, …)` again where a server refuses it, as one may while another process writes.

    Each of these functions may be repeated after a try that failed in the middle, or whose answer was lost.
    """

    @functools.wraps(write)
    def call(uri: str, *given: Any, **named: Any) -> Any:
        from mlflow.exceptions import MlflowException

        last = time.monotonic() + SECONDS
        while True:
            try:
                return write(uri, *given, **named)
            except MlflowException:
                if time.monotonic() > last or is_away(uri):
                    raise
                time.sleep(random.SystemRandom().uniform(0.1, 0.5))  # leaves the seeded generators alone

    return call  # type: ignore[return-value]


@_retried
def register(uri: str, given: Version, exists: Exists | None = None) -> Version:
    """The version of the policy, made where there is none; the model's newest policy becomes the challenger.

    A policy has one version, however often a stage is repeated or a later run starts from it. Only where its weights
    were removed, as `exists` says, and an equal policy lies elsewhere does the version move.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.utils.uri import is_local_uri

    model = given.model
    with one_process_at_a_time(uri):
        mlflow = client(uri)
        with contextlib.suppress(MlflowException):  # it is there already; any other reason shows below
            mlflow.create_registered_model(model)
        condition = f" and tags.{DIGEST} = '{given.digest}'"
        if not (same := _search(uri, model, condition)):
            tags, source = {**given.tags, URI: given.uri, DIGEST: given.digest}, given.uri
            if uri.startswith("http") and is_local_uri(source):  # a server refuses paths of other machines
                source = f"runs:/{given.run_id}/policies/{Path(source).name}"
            mlflow.create_model_version(model, source, given.run_id, tags=tags, await_creation_for=0)
            same = _search(uri, model, condition)
        *surplus, first = same  # another process may have been first, or an earlier try
        for version in surplus:
            if version.run_id == given.run_id:
                mlflow.delete_model_version(model, str(version.version))
        found = _version(first)
        if found.uri != given.uri and exists is not None and not exists(found.uri):
            mlflow.set_model_version_tag(model, str(found.number), URI, given.uri)
            found = found.replace(uri=given.uri)
        versions = _search(uri, model)
        # The newest version, unless it was registered late and its run has registered a later policy before it.
        of_run = [version for version in versions if version.run_id == versions[0].run_id]
        newest = max(of_run, key=lambda v: (int(v.tags.get("policy_version", 0)), int(v.version)))
        mlflow.set_registered_model_alias(model, CHALLENGER, str(newest.version))
        return found


def find(uri: str, policy: str) -> Version:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/NUMBER` names; ValueError, in one sentence, for none."""
    asked = NAME.fullmatch(policy)
    if asked is None:
        raise ValueError(f'policy is "{policy}"; allowed in the registry: {ALLOWED}.')
    model, alias, given = asked["model"], asked["alias"] or "", f'policy is "{policy}"'
    with _open(uri, model) as known:
        if known.versions and alias and alias not in known.aliases:
            named = ", ".join(f"models:/{model}@{name}" for name in sorted(known.aliases))
            raise ValueError(f"{given}, and no version is called so; allowed: {named or ALLOWED}.")
        return known.version(int(asked["number"] or known.aliases.get(alias, 0)), given)


def champion(uri: str, model: str) -> Version | None:
    """The version in use, None where there is none yet."""
    with _open(uri, model) as known:
        return known.champion


def uris_in_use(uri: str, model: str) -> set[str]:
    """Where the versions lie that an alias names, or that `demote` would give `champion` back to."""
    with _open(uri, model) as known:
        numbers = {*known.aliases.values(), *known.history[-2:]}
        return {known.versions[number].uri for number in numbers if number in known.versions}


def promote(uri: str, model: str, number: int, why: str, *, over: str | None = None) -> tuple[bool, str]:
    """Make version `number` the champion; whether it is now, and the sentence that says so, for `note`.

    `over` is the digest of the policy that it was found to be better than: when another policy has become champion
    since, that one stays. Two processes that promote over one SQLite file wait for each other; a server cannot compare
    and set in one request, so that a champion of the last few milliseconds may be overlooked.

    Raises ValueError for a model or a version that is not there.
    """
    with _open(uri, model) as known:
        known.version(number, f"version is {number}")
        present, history = known.champion, list(known.history)
        if present and present.number != number and over is not None and present.digest != over:
            stays = f"version {present.number} of {model} stays champion, it became so meanwhile"
            return False, f"{stays}: version {number} was compared with another policy ({why})"
        # A present champion that the history lacks has its alias from elsewhere.
        for champion in (present.number if present else number, number):
            if history[-1:] != [champion]:
                history.append(champion)
        _write_champions(uri, model, history)
        before = f"in the place of version {history[-2]}" if len(history) > 1 else "the first one"
        return True, f"version {number} of {model} is champion, {before}: {why}"


@_retried
def note(uri: str, model: str, number: int, sentence: str, *, run_id: str = "", **numbers: float) -> None:
    """Tag a version, and the run that made it, with what was decided about it; the version also with the numbers."""
    with _open(uri, model):
        dated = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {sentence}"
        tags = {name: str(value) if isinstance(value, int) else f"{value:.6g}" for name, value in numbers.items()}
        for key, value in {PROMOTION: dated, **tags}.items():
            client(uri).set_model_version_tag(model, str(number), key, value)
        if run_id:
            client(uri).set_tag(run_id, PROMOTION, sentence)


def demote(uri: str, model: str) -> tuple[int, str]:
    """Give the alias `champion` back to the version that had it before, or to none; which version lost it, and the
    sentence that says so, for `note`.

    Raises ValueError for a model without a champion.
    """
    with _open(uri, model) as known:
        present = known.champion
        if present is None:
            raise ValueError(f'model is "{model}", which has no champion; allowed: a model that has one.')
        history = [number for number in known.history if number in known.versions]
        while history[-1:] == [present.number]:
            history.pop()
        _write_champions(uri, model, history)
        if not history:
            return present.number, f"{model} has no champion, version {present.number} was its first"
        back = f"version {history[-1]} of {model} is champion again, version {present.number} is not any more"
        return present.number, back


@contextlib.contextmanager
def _open(uri: str, model: str) -> Iterator[Model]:
    """The model as it is. The block has a SQLite file to itself; one that is not there is not made."""
    database = sqlite_file(uri)
    if database is not None and not database.is_file():
        yield Model(model)
        return
    check_reachable(uri)
    with one_process_at_a_time(uri):
        found = client(uri).search_registered_models(f"name = '{model}'", max_results=1)
        versions = {version.number: version for version in map(_version, _search(uri, model))}
        aliases = {name: int(number) for known in found for name, number in known.aliases.items()}
        history = [int(number) for known in found for number in known.tags.get(CHAMPIONS, "").split()]
        yield Model(model, versions, aliases, history)


def _search(uri: str, model: str, condition: str = "") -> "list[ModelVersion]":
    """Versions, the newest first."""
    return list(client(uri).search_model_versions(f"name = '{model}'{condition}", 10_000, ["version_number DESC"]))


def _version(found: "ModelVersion") -> Version:
    tags = found.tags  # a version that was made by hand has none of ours
    uri, digest = tags.get(URI) or found.source or "", tags.get(DIGEST, "")
    return Version(model=found.name, number=int(found.version), uri=uri, digest=digest)


@_retried
def _write_champions(uri: str, model: str, history: list[int]) -> None:
    """Keep the versions that were champion; the last of them is it, where there is one."""
    mlflow = client(uri)
    mlflow.set_registered_model_tag(model, CHAMPIONS, " ".join(map(str, history[-1000:])))
    if history:
        mlflow.set_registered_model_alias(model, CHAMPION, str(history[-1]))
    else:
        mlflow.delete_registered_model_alias(model, CHAMPION)
