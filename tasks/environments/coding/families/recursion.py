"""Problems of a recursive kind: nested lists, trees, choices."""

import random
from typing import Any

from tasks.environments.coding.families.draft import Draft, Family, numbers, predicate


def nested_lists(rng: random.Random) -> Draft:
    kept, test = predicate(rng)
    what, code, start = rng.choice(
        [
            ("the sum of {}, each multiplied by its depth", "v * depth", 0),
            ("the number of {}", "1", 0),
            ("the sum of {}", "v", 0),
            ("the sum of the depths of {}", "depth", 0),
        ]
    )
    base = rng.choice([0, 1, 2])
    limit = rng.choice([0, 0, 2, 3])
    deeper = f" Lists deeper than depth {limit + base - 1} are skipped." if limit else ""
    cut = f"            if depth - {base} + 1 < {limit}:\n    " if limit else ""
    return Draft(
        "The list holds whole numbers and lists of the same kind. Return "
        f"{what.format(f'the numbers that are {kept}')}. "
        f"The numbers of the outermost list have depth {base}, and each list within adds one.{deeper}",
        "values: list",
        "int",
        f"def walk(items, depth):\n    total = {start}\n    for v in items:\n        if isinstance(v, list):\n"
        f"{cut}            total += walk(v, depth + 1)\n        elif {test}:\n            total += {code}\n"
        f"    return total\nreturn walk(values, {base})",
        lambda r: (_nested(r, 0),),
        (([],), ([[[]]],)),
    )


def _nested(rng: random.Random, depth: int) -> list[Any]:
    chance = 0.5 if depth < 3 else 0
    return [
        _nested(rng, depth + 1) if rng.random() < chance else rng.randint(-9, 15)
        for _ in range(rng.randint(1 - (depth > 0), 4))
    ]


def flatten_to(rng: random.Random) -> Draft:
    k = rng.randint(1, 3)
    kept, test = predicate(rng)
    back = rng.random() < 0.5
    levels = "1 level" if k == 1 else f"{k} levels"
    return Draft(
        f"The list holds whole numbers and lists of the same kind. Flatten it by {levels}: a list in the "
        "outermost one is "
        f"replaced by what it holds, {k} times over. Then leave out the numbers, at any depth, that are {kept}"
        + (", and reverse the order of the outermost list." if back else "."),
        "values: list",
        "list",
        "def flat(items, k):\n    found = []\n    for v in items:\n"
        "        if isinstance(v, list) and k:\n            found += flat(v, k - 1)\n        else:\n"
        "            found.append(v)\n    return found\n"
        f"def drop(items):\n    return [drop(v) if isinstance(v, list) else v for v in items "
        f"if isinstance(v, list) or not ({test})]\n"
        f"return drop(flat(values, {k})){'[::-1]' if back else ''}",
        lambda r: (_nested(r, 0),),
        (([],), ([[[[1, 2], 3]]],)),
    )


def collatz_like(rng: random.Random) -> Draft:
    a, b, d = rng.randint(2, 5), rng.randint(1, 7), rng.randint(2, 3)
    m = rng.choice([101, 251, 503, 997])
    what, code = rng.choice(
        [
            ("how many different numbers come up, n itself included", "len(seen)"),
            ("the largest number that comes up, n itself included", "max(seen)"),
            ("the first number that comes up for the second time", "n"),
            ("the sum of the different numbers that come up, n itself included", "sum(seen)"),
        ]
    )
    return Draft(
        f"From n go on to n // {d} if n is divisible by {d}, else to ({a} * n + {b}) modulo {m}, until a "
        "number comes up "
        f"for the second time. Return {what}.",
        "n: int",
        "int",
        "seen = set()\nwhile n not in seen:\n    seen.add(n)\n"
        f"    n = n // {d} if n % {d} == 0 else ({a} * n + {b}) % {m}\nreturn {code}",
        lambda r: (r.randint(1, 400),),
        ((0,), (1,)),
    )


def grid_paths(rng: random.Random) -> Draft:
    moves, steps = rng.choice(
        [
            ("right or down", [(0, 1), (1, 0)]),
            ("right, down or diagonally right and down", [(0, 1), (1, 0), (1, 1)]),
            ("right, down, or two places right", [(0, 1), (1, 0), (0, 2)]),
            ("right, down, or two places down", [(0, 1), (1, 0), (2, 0)]),
        ]
    )
    wall, star = rng.choice("#x@%"), rng.choice("*o$+")
    what, code, none = rng.choice(
        [
            ("the number of ways", "sum", 0),
            (f"the largest number of '{star}' that one way can meet, the start and the end included", "max", -1),
            (f"the smallest number of '{star}' that one way can meet, the start and the end included", "min", -1),
        ]
    )
    add = "" if code == "sum" else f" + (rows[i][j] == '{star}')"
    first = "1" if code == "sum" else f"int(rows[i][j] == '{star}')"
    return Draft(
        f"The rows make a grid of '.', '{star}' and '{wall}'. One goes from the upper left to the lower "
        "right place by moves "
        f"{moves}, and may stand on no '{wall}'. Return {what}. If there is no way, return {none}.",
        "rows: list[str]",
        "int",
        "from functools import cache\n@cache\ndef ways(i, j):\n"
        f"    if i < 0 or j < 0 or rows[i][j] == '{wall}':\n        return None\n"
        f"    if i == j == 0:\n        return {first}\n"
        f"    before = [ways(i - a, j - b) for a, b in {steps}]\n"
        f"    before = [w for w in before if w is not None]\n    return {code}(before){add} if before else None\n"
        f"found = ways(len(rows) - 1, len(rows[0]) - 1)\nreturn {none} if found is None else found",
        lambda r: (_grid(r, wall, star),),
        (([".."],), ([wall],), ([star],)),
    )


def _grid(rng: random.Random, wall: str, star: str) -> list[str]:
    width = rng.randint(1, 5)
    return ["".join(rng.choices("." + star + wall, [5, 3, 1], k=width)) for _ in range(rng.randint(1, 5))]


def change_money(rng: random.Random) -> Draft:
    coins = sorted(rng.sample(range(2, 16), rng.randint(2, 4)))
    most = rng.randint(2, 5)
    what, code = rng.choice(
        [
            ("the smallest number of coins, or -1 if it cannot be done", "min(map(sum, found), default=-1)"),
            ("the number of ways, without regard to order", "len(found)"),
            ("the largest number of coins, or -1 if it cannot be done", "max(map(sum, found), default=-1)"),
        ]
    )
    return Draft(
        f"An amount is paid with coins of {', '.join(map(str, coins))}, at most {most} of each. Return {what}.",
        "amount: int",
        "int",
        f"from itertools import product\ncoins = {coins}\nfound = [counts for counts in product(range({most + 1}), "
        "repeat=len(coins))\n         if sum(n * c for n, c in zip(counts, coins)) == amount]\n"
        f"return {code}",
        lambda r: (r.randint(1, most * sum(coins) + 2),),
        ((0,), (1,)),
    )


def tree(rng: random.Random) -> Draft:
    kept, test = predicate(rng)
    what, body = rng.choice(
        [
            ("the sum of all values that are {}", "(v if {} else 0) + walk(a) + walk(b)"),
            (
                "how many leaves (nodes without children) have a value that is {}",
                "(a is b is None and {}) + walk(a) + walk(b)",
            ),
            ("how many nodes on one way down from the root can at most be {}", "({}) + max(walk(a), walk(b))"),
            (
                "how many nodes with exactly one child have a value that is {}",
                "((a is None) != (b is None) and {}) + walk(a) + walk(b)",
            ),
            ("how many nodes lie below a node that is {}, or are {} themselves", ""),
        ]
    )
    shape = "A tree is None, or a tuple (value, left, right) of a whole number and two trees."
    code = (
        "def walk(t):\n    if t is None:\n        return 0\n    v, a, b = t\n"
        f"    return {body.format(f'({test})')}\nreturn walk(tree)"
    )
    if not body:
        code = (
            "def walk(t, below):\n    if t is None:\n        return 0\n    v, a, b = t\n"
            f"    below = below or {test}\n    return below + walk(a, below) + walk(b, below)\nreturn walk(tree, False)"
        )
    return Draft(
        f"{shape} Return {what.replace('{}', kept)}.",
        "tree: tuple | None",
        "int",
        code,
        lambda r: (_tree(r, 4),),
        ((None,), ((3, None, None),)),
    )


def _tree(rng: random.Random, depth: int) -> tuple[Any, ...] | None:
    if depth == 0 or rng.random() < 0.2:
        return None
    return rng.randint(-9, 15), _tree(rng, depth - 1), _tree(rng, depth - 1)


def count_choices(rng: random.Random) -> Draft:
    m, k = rng.randint(2, 6), rng.randint(1, 3)
    r = rng.randrange(m)
    what, test = rng.choice(
        [
            ("sum is equal to target", "sum(c) == target"),
            (f"sum less target is {r} modulo {m}", f"(sum(c) - target) % {m} == {r}"),
            ("sum is less than target", "sum(c) < target"),
            ("largest value less smallest value is at most target", "max(c) - min(c) <= target"),
        ]
    )
    size, sizes = rng.choice(
        [
            (f"exactly {k + 1}", f"[{k + 1}]"),
            (f"at least {k}", f"range({k}, len(values) + 1)"),
            (f"1 to {k + 1}", f"range(1, {k + 2})"),
        ]
    )
    return Draft(
        f"In how many ways can one choose {size} places of the list such that, of the values there, the {what}? Equal "
        "values at different places count as different.",
        "values: list[int], target: int",
        "int",
        f"from itertools import combinations\nreturn sum(1 for n in {sizes} for c in combinations(values, "
        f"n) if {test})",
        lambda r: (numbers(r, -3, 9, 7), r.randint(-2, 14)),
        (([], 0),),
    )


FAMILIES = (
    Family(nested_lists, 2),
    Family(flatten_to, 3),
    Family(collatz_like, 2),
    Family(grid_paths, 3),
    Family(change_money, 3),
    Family(tree, 3),
    Family(count_choices, 2),
)
