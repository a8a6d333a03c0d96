"""Values keep their exact types on their way out of the sandbox; what is no value is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.interpreter.values import decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=10,
)


def same(a: object, b: object) -> bool:
    """Equal with the types of all members."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(any(same(k, x) and same(v, y) for x, y in b.items()) for k, v in a.items())
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return a == b


@given(VALUES)
def test_a_value_comes_back_with_its_types(value: object) -> None:
    assert same(decode(encode(value)), value)


def test_texts_by_hand() -> None:
    assert encode([1, True, None, 1.0, "a"]) == '[1,true,null,1.0,"a"]'
    assert encode((1,)) == '{"tuple":[1]}'
    assert encode({"b": {3, 1}, "a": b"\x00"}) == '{"dict":[["a",{"bytes":"00"}],["b",{"set":[1,3]}]]}'
    assert encode(2**63) == '{"int":"0x8000000000000000"}'
    assert decode(encode(10**10_000)) == 10**10_000  # more digits than Python reads
    assert math.isnan(decode(encode(math.nan))) and decode(encode(-math.inf)) == -math.inf


def test_types_that_compare_equal_have_other_texts() -> None:
    assert len({encode(value) for value in (1, 1.0, True, 1 + 0j, "1", b"1", [1], (1,), {1}, frozenset({1}))}) == 10


class Always(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_what_is_no_value() -> None:
    endless: list = []
    endless.append(endless)
    deep: list = []
    for _ in range(100):
        deep = [deep]
    for value in (object(), len, Always(1), [Always(1)], {Always(1): 1}, endless, deep, [0] * 1_000_000):
        with pytest.raises(ValueError):
            encode(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{", "{}", '{"set":1}', '{"set":[[1]]}', '{"list":[1]}', '{"dict":[[1]]}', '{"complex":[1]}', '{"bytes":"x"}',
        '{"int":"7z"}', '{"int":7}', '{"tuple":[1],"set":[1]}', "[" * 100 + "]" * 100, "[" * 100_000, "9" * 5000,
    ],
)  # fmt: skip
def test_what_was_not_encoded_here_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^what the sandbox sent as a value is none: "):
        decode(text)


def test_members_that_would_take_quadratic_time_are_refused() -> None:
    equal_hashes = ",".join(str(i * (2**61 - 1)) for i in range(1, 4))
    assert len(decode(f'{{"set":[{equal_hashes}]}}')) == 3
    equal_hashes = ",".join(f'{{"int":"{hex(i * (2**61 - 1))}"}}' for i in range(1, 100))
    for text in (
        f'{{"set":[{equal_hashes}]}}',
        f'{{"dict":[{",".join(f"[{key},0]" for key in equal_hashes.split(","))}]}}',
    ):
        with pytest.raises(ValueError, match="chosen to have equal hashes"):
            decode(text)
