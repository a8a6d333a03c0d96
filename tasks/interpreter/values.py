"""Python values as JSON text that keeps their exact types, and back, without executing anything.

    None, True, 7, 1.5, "text", [1, 2]    as in JSON; NaN and Infinity as Python's json writes them
    (1, 2)                                {"tuple": [1, 2]}; likewise set, frozenset
    {"a": 1}                              {"dict": [["a", 1]]}
    b"\\x00", 2j, an int of 64 bits or more    {"bytes": "00"}, {"complex": [0.0, 2.0]}, {"int": "0x…"}

Equal values of equal types have equal texts, but for 0.0 and -0.0: members of sets and items of dicts are sorted by
their texts. A value of any other type, subclasses included, has none.
"""

import json
from typing import Any

DEPTH = 64
NODES = 200_000
_EQUAL_HASHES = 8  # more in one set or dict come from an attack on hashing, and would take quadratic time


def encode(value: Any, dumps=json.dumps) -> str:
    """The text of `value`. Raises ValueError for another type, or one that is too deep or too large."""
    return dumps(_plain(value, DEPTH, [NODES]), separators=(",", ":"))


def _plain(
    value: Any,
    depth: int,
    left: list[int],
    # Bound once, so that code that changes the builtins changes nothing here.
    type=type,
    sorted=sorted,
    ValueError=ValueError,
    dumps=json.dumps,
    str=str,
    int=int,
    bool=bool,
    float=float,
    complex=complex,
    bytes=bytes,
    list=list,
    tuple=tuple,
    dict=dict,
    set=set,
    frozenset=frozenset,
    hex=hex,
    abs=abs,
) -> Any:
    kind = type(value)
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too large")
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if depth <= 0:
        raise ValueError("too deep")
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list or kind is tuple:
        members = [_plain(member, depth - 1, left) for member in value]
        return members if kind is list else {"tuple": members}
    if kind is set or kind is frozenset:
        name = "set" if kind is set else "frozenset"
        return {name: sorted([_plain(member, depth - 1, left) for member in value], key=dumps)}
    if kind is dict:
        items = [[_plain(key, depth - 1, left), _plain(item, depth - 1, left)] for key, item in value.items()]
        return {"dict": sorted(items, key=dumps)}
    raise ValueError("a value of another type")


def decode(text: str) -> Any:
    """The value of a text that `encode` wrote; raises ValueError, in one sentence, for anything else."""
    try:
        return _value(json.loads(text), DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"what the sandbox sent as a value is none: {str(error)[:200]}.") from None


def _value(plain: Any, depth: int) -> Any:
    if plain is None or isinstance(plain, (bool, str, int, float)):
        return plain
    if depth <= 0:
        raise ValueError("too deep")
    if isinstance(plain, list):
        return [_value(member, depth - 1) for member in plain]
    ((name, inner),) = plain.items()
    if name == "int":
        return int(inner, 16)
    if name == "bytes":
        return bytes.fromhex(inner)
    if name == "complex":
        real, imaginary = inner
        return complex(float(real), float(imaginary))
    if name == "dict":
        items = [(_value(key, depth - 1), _value(item, depth - 1)) for key, item in inner]
        _check_hashes([key for key, _ in items])
        return dict(items)
    members = [_value(member, depth - 1) for member in inner]
    if name == "tuple":
        return tuple(members)
    kind = {"set": set, "frozenset": frozenset}[name]
    _check_hashes(members)
    return kind(members)


def _check_hashes(members: list[Any]) -> None:
    hashes = sorted(map(hash, members))
    if any(a == b for a, b in zip(hashes, hashes[_EQUAL_HASHES:], strict=False)):
        raise ValueError("a set whose members were chosen to have equal hashes")
