"""The base of all records that a workflow takes as input: pydantic models whose errors are one sentence each.

A record remembers which of its fields were given, and its JSON holds only those, also after Flyte has carried it.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_serializer

LARGEST = 10**9  # of counts that have no bound of their own


def require(condition: bool, name: str, given: object, allowed: str) -> None:
    """Raise ValueError in the one form that every complaint about an input has."""
    if not condition:
        raise ValueError(refusal(name, given, allowed))


def refusal(name: str, given: object, allowed: str) -> str:
    """That form: `rollout.groups is 0; allowed: 1 or more.`"""
    shown = f'"{given}"' if isinstance(given, str) else given
    return f"{name} is {shown}; allowed: {allowed}."


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes`, also those of nested mappings."""
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        result[key] = merged(base[key], value) if nested else value
    return result


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"training": {"epochs": 4}}` is `{"training.epochs": 4}`."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


class Settings(BaseModel):
    """A frozen record that refuses unknown keys; bad values are a ValueError with one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    section: ClassVar[str] = ""  # in sentences: the path to the record, before the name of a field
    source: ClassVar[str] = "config"  # in sentences: what has an unknown key

    def __init_subclass__(cls, section: str = "", source: str = "config", **options: Any):
        super().__init_subclass__(**options)
        cls.section, cls.source = section, source

    if not TYPE_CHECKING:  # a type checker knows the fields as parameters

        def __init__(self, /, **values: Any):
            with _one_sentence(type(self)):
                super().__init__(**values)

        __init__.__pydantic_base_init__ = True  # nested records are made without it: their errors have whole paths

    @classmethod
    def model_validate(cls, obj: Any, **_: Any) -> Self:
        with _one_sentence(cls):
            return super().model_validate(obj)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **_: Any) -> Self:
        return cls.model_validate(json.loads(json_data))

    from_dict = model_validate
    from_json = model_validate_json

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, given: Any, info: ValidationInfo) -> Any:
        """Accept numbers as other programs write them: Flyte's console sends 3.0 for 3, YAML reads 1e-6 as text."""
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = [getattr(one, "__origin__", one) for one in (kind, *get_args(kind))]  # Annotated[int, …] is of int
        if int in kinds and isinstance(given, float) and given.is_integer():
            return int(given)
        if float in kinds and isinstance(given, str):
            try:
                return float(given)
            except ValueError:
                return given
        return given

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """What was given, as JSON: the inverse of `from_dict`."""
        given = {name: value for name, value in self if name in self.model_fields_set}
        records = {name: value.to_dict() for name, value in given.items() if isinstance(value, Settings)}
        return {name: value for name, value in (given | records).items() if name not in records or value}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def whole(self) -> dict[str, Any]:
        """Every field, given or not, as JSON."""
        return {name: value.whole() if isinstance(value, Settings) else value for name, value in self}

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new record."""
        return self.model_validate({name: value for name, value in self if name in self.model_fields_set} | changes)

    def __hash__(self) -> int:
        return hash(json.dumps(self.whole(), sort_keys=True))

    def rule(self, name: str, holds: bool, allowed: str, *others: str) -> None:
        """Require a rule between the field `name` and `others`, once all were given, and so always once resolved."""
        if self.model_fields_set.issuperset((name, *others)):
            require(holds, f"{self.section}.{name}", getattr(self, name), allowed)


@contextmanager
def _one_sentence(record: type[Settings]) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ValueError(_sentence(record, error)) from None


def _sentence(record: type[Settings], error: ValidationError) -> str:
    """The first of pydantic's errors."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":  # a `require` in one of the records
        return str(first.get("ctx", {})["error"])
    owner: Any = record
    path = [str(part) for part in first["loc"]]
    for depth, part in enumerate(path[:-1], 1):
        inner = owner.model_fields[part].annotation
        if not hasattr(inner, "model_fields"):  # within the values of a plain mapping
            path = path[:depth]
            break
        owner = inner
    if first["type"] in ("extra_forbidden", "invalid_key"):
        known = list(owner.model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f' (did you mean "{near[0]}"?)' if near else ""
        return f'{record.source} has an unknown key "{".".join(path)}"{hint}; allowed: {", ".join(known)}.'
    name = ".".join([*filter(None, [record.section]), *path]) or record.source
    if first["type"] == "missing":
        return f"{name} is missing."
    schema = owner.model_json_schema()["properties"][path[-1]] if path else {}
    return refusal(name, first["input"], _allowed(schema, first["type"]))


KINDS = {"integer": "a whole number", "number": "a number", "string": "a word", "boolean": "true or false"}


def _allowed(schema: Mapping[str, Any], error: str) -> str:
    """What a field may be, by its JSON schema; a constraint that it cannot tell has its words there, as "allowed"."""
    schema = next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"{', '.join(others)} or {last}"
    if error == "finite_number":
        return "a finite number"
    if error.endswith("_type"):
        return KINDS.get(schema.get("type", ""), "a JSON object")
    if "allowed" in schema:
        return schema["allowed"]
    low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if above is not None:
        return f"more than {above:g}" + ("" if high is None else f", at most {high:g}")
    unbounded = high is None or (high == LARGEST and error == "greater_than_equal")
    return f"{low:g} or more" if unbounded else f"{low:g} to {high:.0f}"
