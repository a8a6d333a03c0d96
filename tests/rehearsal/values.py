"""What is passed between the nodes of a graph: literals, and the bindings that say where an input comes from."""

from collections.abc import Iterable, Mapping
from typing import Any

from flyteidl.core.literals_pb2 import Binding, BindingData, Literal, LiteralCollection, LiteralMap, Scalar, Void
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine

BUCKET = "flyte"
NOTHING = Literal(scalar=Scalar(none_type=Void()))


def literal(given: Any) -> Literal:
    """A workflow's input as `pyflyte run --remote` sends it."""
    context, kind = FlyteContextManager.current_context(), type(given)
    return TypeEngine.to_literal(context, given, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()


def uri_of(value: Literal) -> str:
    """Where a file or a directory lies."""
    return value.scalar.blob.uri


def key_of(uri: str) -> str:
    """Its name in the bucket."""
    return uri.removeprefix(f"s3://{BUCKET}/")


def literals(given: Mapping[str, Literal]) -> LiteralMap:
    """A map of values."""
    return LiteralMap(literals=dict(given))


def bound(bindings: Iterable[Binding], results: Mapping[str, LiteralMap]) -> LiteralMap:
    """The values of a node's inputs, once the nodes that they come from have ended."""
    return literals({binding.var: value(binding.binding, results) for binding in bindings})


def value(data: BindingData, results: Mapping[str, LiteralMap]) -> Literal:
    """The value that an input is bound to: a constant of the graph, another node's output, or a collection of these."""
    kind = data.WhichOneof("value")
    if kind == "scalar":
        return Literal(scalar=data.scalar)
    if kind == "collection":
        return Literal(
            collection=LiteralCollection(literals=[value(part, results) for part in data.collection.bindings])
        )
    if kind == "map":
        return Literal(map=literals({key: value(part, results) for key, part in data.map.bindings.items()}))
    assert kind == "promise", kind
    found = results[data.promise.node_id].literals[data.promise.var]
    for step in data.promise.attr_path:  # the number of a part of a list
        found = found.collection.literals[step.int_value]
    return found
