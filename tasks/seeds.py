"""Seeds derived from names and numbers: the same everywhere."""

import hashlib
import random

BITS = 61  # of the index of a task


def derived_seed(*parts: object, bits: int = BITS) -> int:
    """A seed from anything printable, 0 <= seed < 2**bits, by BLAKE2b: equal parts give equal seeds."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - bits)


def training_index(run_seed: int, iteration: int, group: int) -> int:
    """The index of the training task of one group."""
    return derived_seed("task", run_seed, iteration, group)


def evaluation_indices(seed: int, count: int, available: int | None = None) -> list[int]:
    """The indices of the test tasks of an evaluation; each at most once where only so many are `available`."""
    if available is None:
        return [derived_seed("test task", seed, i) for i in range(count)]
    return random.Random(derived_seed("test order", seed)).sample(range(available), min(count, available))


def fresh_seed(*parts: object) -> int:
    """Names test tasks that no evaluation has used: no evaluation's own seed is so large."""
    return (1 << 31) + derived_seed("fresh", *parts, bits=60)
