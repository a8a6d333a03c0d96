"""Seeds derived from names and numbers: the same everywhere, and training's never those of an evaluation."""

import hashlib

HELD_OUT = 1 << 61  # environment seeds from here on are for evaluation only; training's stay below


def derived_seed(*parts: object, bits: int = 61) -> int:
    """A seed from anything printable, 0 <= seed < 2**bits, by BLAKE2b: equal parts give equal seeds."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - bits)


def training_seed(run_seed: int, iteration: int, group: int) -> int:
    """The environment seed of one group."""
    return derived_seed("deck", run_seed, iteration, group)


def held_out_seeds(evaluation_seed: int, games: int) -> list[int]:
    """The environment seeds of an evaluation."""
    return [HELD_OUT + derived_seed("held-out deck", evaluation_seed, i) for i in range(games)]


def fresh_seed(*parts: object) -> int:
    """Names decks that nobody has played: `held_out_seeds` takes it, and no evaluation's own seed is so large."""
    return (1 << 31) + derived_seed("fresh", *parts, bits=60)
