"""The base of the records that stages write as JSON and pass to each other."""

from dataclasses import fields, replace
from typing import Any, Self

from mashumaro.mixins.json import DataClassJSONMixin


class Record(DataClassJSONMixin):
    """A frozen dataclass with `to_dict`, `from_dict`, `to_json` and `from_json`; an unknown key raises ValueError."""

    @classmethod
    def __pre_deserialize__(cls, d: dict[Any, Any]) -> dict[Any, Any]:
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := d.keys() - known:
            raise ValueError(f'{cls.__name__} has an unknown key "{min(unknown)}"; allowed: {", ".join(known)}.')
        return d

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[type-var]
