"""Policies in MLflow's model registry: every evaluated one is a version, by reference, without a copy of its weights.

    evaluate ─► register ─► version 7, alias challenger ─► promote ─► alias champion ─► models:/grpo-blackjack@champion

What a version is lies in its tags: `place`, the directory or URI of its weights, `digest`, and what the evaluation
measured. The tag `champions` of a model lists the versions that were champion, the present one last: `demote` goes back
along it.
"""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.json_records import Record
from tasks.tracking import console
from tasks.tracking.mlflow_store import check_reachable, client, one_process_at_a_time

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, CHALLENGER = "champion", "challenger"
PLACE, DIGEST, CHAMPIONS, PROMOTION = "place", "digest", "champions", "promotion"
TRIES = 5  # at registering a policy
LEFT = "_unregistered.json"
NAME = re.compile(r"models:/(?P<model>[A-Za-z0-9._-]+)(@(?P<alias>[A-Za-z0-9._-]+)|/(?P<number>[1-9][0-9]*))")
ALLOWED = "models:/NAME@champion, models:/NAME@challenger or models:/NAME/3"


@dataclass(frozen=True)
class Candidate(Record):
    """A policy to register. Example: `Candidate(model="grpo-blackjack", place="s3://bucket/policies/00032",
    digest="5f0c…", run_id="4be1…", tags={"expected_reward": "-0.048", "games": "8192", …})`."""

    model: str
    place: str  # the directory of its weights, or the URI of one
    digest: str  # that of its policy.json
    run_id: str  # of the training that made it
    tags: dict[str, str]


@dataclass(frozen=True)
class Version(Record):
    """A registered policy. Example: `Version(model="grpo-blackjack", number=7, place="/…/runs/monday/policies/00032",
    digest="5f0c…")`."""

    model: str
    number: int
    place: str
    digest: str

    @property
    def name(self) -> str:
        return f"models:/{self.model}/{self.number}"


def model_name(model: str | None, environment: str) -> str:
    """The registry's name for the policies of a run; `model` is its tracking.model."""
    return model or f"grpo-{environment}"


def register(uri: str, given: Candidate, there: Callable[[str], bool] = lambda place: Path(place).is_dir()) -> Version:
    """The version of the policy, made where there is none; the newest version of the model becomes the challenger.

    A policy has one version, however often a stage is repeated or a later run starts from it. Only where its weights
    were removed (`there` says so) and an equal policy lies elsewhere does the version move to the `place` given.

    Where another process registers at the same moment, a server may refuse one of the two: another try then does what
    is not there yet.
    """
    from mlflow.exceptions import MlflowException

    for tries_left in reversed(range(TRIES)):
        try:
            return _register(uri, given, there)
        except MlflowException:
            if not tries_left:
                raise
            time.sleep(random.SystemRandom().uniform(0.1, 0.5))  # leaves the draws of a seed alone
    raise AssertionError("the last try returns or raises")


def _register(uri: str, given: Candidate, there: Callable[[str], bool]) -> Version:
    model, condition = given.model, f" and tags.{DIGEST} = '{given.digest}'"
    with _open(uri, model, make=True) as mlflow:
        known = _search(mlflow, model, condition)
        if known and not there(known[-1].place):
            mlflow.set_model_version_tag(model, str(known[-1].number), PLACE, given.place)
        if not known:
            tags = {**given.tags, PLACE: given.place, DIGEST: given.digest}
            source = _source(uri, given.place, given.run_id)
            made = mlflow.create_model_version(model, source, given.run_id, tags=tags, await_creation_for=0)
            known = _search(mlflow, model, condition)
            if known[-1].number != int(made.version):  # on a server another process may have been first
                mlflow.delete_model_version(model, str(made.version))
        newest = _search(mlflow, model, limit=1)[0].number
        mlflow.set_registered_model_alias(model, CHALLENGER, str(newest))
        return _version(mlflow.get_model_version(model, str(known[-1].number)))


def register_or_leave(uri: str, given: Candidate, folder: Path, there: Callable[[str], bool]) -> None:
    """Register; what MLflow cannot take now is left in `folder`, beside a stage's result, for `register_left`."""
    from mlflow.exceptions import MlflowException

    try:
        register(uri, given, there)
    except (MlflowException, OSError) as error:  # a training does not end for a server that is away
        (folder / LEFT).write_text(json.dumps(given.to_dict(), indent=1) + "\n")
        console.stage(f"{given.model} has no version of this policy yet: {_first_line(error)}")


def register_left(uri: str, folders: Sequence[Path], there: Callable[[str], bool]) -> None:
    """Register what `register_or_leave` left in the folders; says it where MLflow cannot take that either."""
    from mlflow.exceptions import MlflowException

    left = [Candidate.from_json((folder / LEFT).read_text()) for folder in folders if (folder / LEFT).is_file()]
    for number, candidate in enumerate(left):
        try:
            register(uri, candidate, there)
        except (MlflowException, OSError) as error:
            places = ", ".join(missing.place for missing in left[number:])
            console.stage(f"{candidate.model} lacks versions of {places}: {_first_line(error)}")
            return


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def find(uri: str, policy: str) -> Version:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/NUMBER` names; ValueError, in one sentence, for none."""
    asked = NAME.fullmatch(policy)
    if asked is None:
        raise ValueError(f'policy is "{policy}"; allowed in the registry: {ALLOWED}.')
    model, alias = asked["model"], asked["alias"]
    with _open(uri, model, asked=policy) as mlflow:
        aliases = mlflow.get_registered_model(model).aliases
        if alias is not None and alias not in aliases:
            named = ", ".join(f"models:/{model}@{name}" for name in sorted(aliases))
            raise ValueError(f'policy is "{policy}", and no version is called so; allowed: {named or ALLOWED}.')
        number = int(aliases[alias]) if alias is not None else int(asked["number"])
        return _get(mlflow, model, number, f'policy is "{policy}"')


def champion(uri: str, model: str) -> Version | None:
    """The version in use, None where there is none yet."""
    if not _is_there(uri):
        return None
    with _open(uri) as mlflow:
        return _champion(mlflow, model)


def promote(uri: str, model: str, number: int, why: str, *, over: str | None = None) -> tuple[bool, str]:
    """Make version `number` the champion; whether it is now, and the sentence that says so, for `note`.

    `over` is the digest of the policy that it was found to be better than: when another one is champion by now, that
    stays. Two processes that promote over one SQLite file wait for each other; on a server, which cannot compare and
    set in one request, a champion of the last few milliseconds may be overlooked.

    Raises ValueError for a model or a version that is not there.
    """
    with _open(uri, model) as mlflow:
        _get(mlflow, model, number, f"version is {number}")
        present, history = _champion(mlflow, model), _history(mlflow, model)
        if present and present.number != number and over is not None and present.digest != over:
            left = f"version {present.number} of {model} stays champion, it became so meanwhile"
            return False, f"{left}: version {number} was compared with another policy ({why})"
        if present and history[-1:] != [present.number]:
            history.append(present.number)  # an alias that was set elsewhere
        if history[-1:] != [number]:
            history.append(number)
        _write_history(mlflow, model, history)
        mlflow.set_registered_model_alias(model, CHAMPION, str(number))
        before = f"in the place of version {history[-2]}" if len(history) > 1 else "the first one"
        return True, f"version {number} of {model} is champion, {before}: {why}"


def note(uri: str, model: str, number: int, sentence: str, *, run_id: str = "", **numbers: float) -> None:
    """Tag a version, and the run that made it, with what was decided about it, and the version with the numbers why."""
    with _open(uri, model) as mlflow:
        dated = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {sentence}"
        tags = {name: str(value) if isinstance(value, int) else f"{value:.6g}" for name, value in numbers.items()}
        for key, value in {PROMOTION: dated, **tags}.items():
            mlflow.set_model_version_tag(model, str(number), key, value)
        if run_id:
            mlflow.set_tag(run_id, PROMOTION, sentence)


def demote(uri: str, model: str) -> tuple[int, str]:
    """Give the alias `champion` back to the version that had it before, or to none; which version lost it, and the
    sentence that says so, for `note`.

    Raises ValueError for a model that is not there or has no champion.
    """
    with _open(uri, model) as mlflow:
        present = _champion(mlflow, model)
        if present is None:
            raise ValueError(f'model is "{model}", which has no champion; allowed: a model that has one.')
        there = {version.number for version in _search(mlflow, model)}
        history = [n for n in _history(mlflow, model) if n in there]
        while history and history[-1] == present.number:
            history.pop()
        if history:
            mlflow.set_registered_model_alias(model, CHAMPION, str(history[-1]))
            sentence = f"version {history[-1]} of {model} is champion again, version {present.number} is not any more"
        else:
            mlflow.delete_registered_model_alias(model, CHAMPION)
            sentence = f"{model} has no champion, version {present.number} was its first"
        _write_history(mlflow, model, history)
        return present.number, sentence


@contextlib.contextmanager
def _open(uri: str, model: str = "", *, make: bool = False, asked: str = "") -> Iterator["MlflowClient"]:
    """The client, with a SQLite file to itself; `model` is there, or made, or ValueError says that it is not."""
    from mlflow.exceptions import MlflowException

    found = False
    if _is_there(uri) or make:
        if not make:  # a person waits for the answer; a stage of a training knows that there was one
            check_reachable(uri)
        with one_process_at_a_time(uri):
            mlflow = client(uri)
            found = not model or bool(mlflow.search_registered_models(f"name = '{model}'", max_results=1))
            if make and not found:
                with contextlib.suppress(
                    MlflowException
                ):  # another process was first, or what follows says what is wrong
                    mlflow.create_registered_model(model)
                found = True
            if found:
                yield mlflow
    if not found:
        given = f'policy is "{asked}"' if asked else f'model is "{model}"'
        raise ValueError(f"{given}, and the registry has no model {model}; allowed: a model that a run has registered.")


def _is_there(uri: str) -> bool:
    """Whether there is a store that could hold anything: who only asks makes no SQLite file."""
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).is_file()


def _version(found: Any) -> Version:
    tags = found.tags  # a version that somebody made by hand has none of ours
    return Version(found.name, int(found.version), tags.get(PLACE, found.source), tags.get(DIGEST, ""))


def _search(mlflow: "MlflowClient", model: str, condition: str = "", limit: int = 10_000) -> list[Version]:
    """Versions, the newest first."""
    asked = f"name = '{model}'{condition}"
    return [_version(v) for v in mlflow.search_model_versions(asked, limit, ["version_number DESC"])]


def _get(mlflow: "MlflowClient", model: str, number: int, given: str) -> Version:
    there = _search(mlflow, model)
    found = [version for version in there if version.number == number]
    if not found:
        shown = ", ".join(str(version.number) for version in reversed(there[:10])) or "none yet"
        raise ValueError(f"{given}, and {model} has no version {number}; allowed: its versions ({shown}).")
    return found[0]


def _champion(mlflow: "MlflowClient", model: str) -> Version | None:
    found = mlflow.search_registered_models(f"name = '{model}'", max_results=1)
    number = found[0].aliases.get(CHAMPION) if found else None
    return _version(mlflow.get_model_version(model, str(number))) if number is not None else None


def _history(mlflow: "MlflowClient", model: str) -> list[int]:
    return [int(number) for number in mlflow.get_registered_model(model).tags.get(CHAMPIONS, "").split()]


def _write_history(mlflow: "MlflowClient", model: str, history: list[int]) -> None:
    mlflow.set_registered_model_tag(model, CHAMPIONS, " ".join(map(str, history[-1000:])))


def _source(uri: str, place: str, run_id: str) -> str:
    """`place`; but a server refuses the paths of other machines, and gets the run that made the policy."""
    from mlflow.utils.uri import is_local_uri

    if uri.startswith("http") and is_local_uri(place):
        return f"runs:/{run_id}/policies/{Path(place).name}"
    return place
