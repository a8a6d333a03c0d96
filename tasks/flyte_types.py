"""How settings travel through Flyte: as JSON of what was given, of a type without a schema.

flytekit's own type of a pydantic model is its JSON schema, and again that of every record in it: 30 kB, in each task of
a workflow, which a cluster keeps in one object of about 1 MB; in `pyflyte run --help`; and in the form that Flyte's
console makes of it, which would give every default. The records check themselves.
"""

from flytekit.core.constants import CACHE_KEY_METADATA, MESSAGEPACK, SERIALIZATION_FORMAT
from flytekit.core.type_engine import TypeEngine, TypeTransformer
from flytekit.extras.pydantic_transformer.transformer import PydanticTransformer
from flytekit.models.annotation import TypeAnnotation
from flytekit.models.types import LiteralType, SimpleType

from tasks.settings import Settings


class SettingsTransformer(PydanticTransformer):
    """For all records of tasks/config.py."""

    def __init__(self) -> None:
        TypeTransformer.__init__(self, "Settings", Settings, enable_type_assertions=False)

    def get_literal_type(self, t: type[Settings]) -> LiteralType:
        """A struct, which the cache takes for what it is packed as."""
        packed = TypeAnnotation({CACHE_KEY_METADATA: {SERIALIZATION_FORMAT: MESSAGEPACK}})
        return LiteralType(simple=SimpleType.STRUCT, annotation=packed)


TypeEngine.register(SettingsTransformer())
