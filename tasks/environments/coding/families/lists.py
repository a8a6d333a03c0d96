"""Problems about lists of whole numbers."""

import random

from tasks.environments.coding.families.draft import Draft, Family, change, numbers, predicate


def filter_and_combine(rng: random.Random) -> Draft:
    kept, test = predicate(rng)
    changed, expression = change(rng)
    combined, code = rng.choice(
        [
            ("the sum of the results", "sum(found)"),
            ("the number of different results", "len(set(found))"),
            ("the largest result, or 0 if there is none", "max(found, default=0)"),
            ("the smallest result, or 0 if there is none", "min(found, default=0)"),
            ("the results in ascending order, as a list", "sorted(found)"),
            ("the results in their order, as a list", "found"),
        ]
    )
    return Draft(
        f"Keep the values that are {kept}; each of them is {changed}. Return {combined}.",
        "values: list[int]",
        "list[int]" if "as a list" in combined else "int",
        f"found = [{expression} for v in values if {test}]\nreturn {code}",
        lambda r: (numbers(r),),
        (([],),),
    )


def windows(rng: random.Random) -> Draft:
    k = rng.randint(2, 5)
    what, code = rng.choice(
        [
            ("sum", "sum(w)"),
            ("largest value", "max(w)"),
            ("smallest value", "min(w)"),
            ("largest value less the smallest", "max(w) - min(w)"),
            ("last value less the first", "w[-1] - w[0]"),
        ]
    )
    extra, test = rng.choice([("", ""), *(2 * [predicate(rng, "w[0]")])])
    which = f" that starts with a value that is {extra}" if extra else ""
    return Draft(
        f"Return a list with the {what} of each run of {k} neighbouring values{which}, from left to right.",
        "values: list[int]",
        "list[int]",
        f"found = []\nfor i in range(len(values) - {k} + 1):\n    w = values[i:i + {k}]\n"
        f"    {f'if {test}: ' if test else ''}found.append({code})\nreturn found",
        lambda r: (numbers(r),),
        (([],), ([3] * (k - 1),)),
    )


def move_some(rng: random.Random) -> Draft:
    moved, test = predicate(rng)
    place = rng.choice(["front", "end"])
    order, step = rng.choice([("keep their order", ""), ("come in reversed order", "[::-1]")])
    parts = "some + rest" if place == "front" else "rest + some"
    return Draft(
        f"Return a new list with all values that are {moved} moved to the {place}. The moved values {order}; the "
        "others keep theirs.",
        "values: list[int]",
        "list[int]",
        f"some = [v for v in values if {test}]{step}\nrest = [v for v in values if not ({test})]\nreturn {parts}",
        lambda r: (numbers(r),),
        (([],),),
    )


def by_count(rng: random.Random) -> Draft:
    k = rng.randint(1, 3)
    how, test = rng.choice(
        [
            (f"exactly {k} times", f"== {k}"),
            (f"at least {k + 1} times", f">= {k + 1}"),
            (f"at most {k} times", f"<= {k}"),
        ]
    )
    order, code = rng.choice(
        [
            ("in ascending order", "sorted(found)"),
            ("in descending order", "sorted(found, reverse=True)"),
            ("in the order in which they come first", "found"),
            ("in the order of their last places", "sorted(found, key=lambda v: values[::-1].index(v), reverse=True)"),
        ]
    )
    extra, kept = rng.choice([("", "True"), predicate(rng), predicate(rng)])
    return Draft(
        f"Return the values that come {how} in the list{f' and are {extra}' * bool(extra)}, each once, {order}.",
        "values: list[int]",
        "list[int]",
        f"found = [v for v in dict.fromkeys(values) if values.count(v) {test} and {kept}]\nreturn {code}",
        lambda r: (numbers(r, 0, 5, 12),),
        (([],),),
    )


def count_pairs(rng: random.Random) -> Draft:
    k = rng.randint(2, 7)
    r = rng.randrange(k)
    what, test = rng.choice(
        [
            (f"whose sum is {r} modulo {k}", f"(a + b) % {k} == {r}"),
            (f"whose values differ by exactly {k}", f"abs(a - b) == {k}"),
            (f"whose product is less than {5 * k}", f"a * b < {5 * k}"),
            (f"of which the first value is larger than the second by at least {k}", f"a - b >= {k}"),
        ]
    )
    apart = rng.randint(1, 3)
    where = f" and j - i is at least {apart}" if apart > 1 else ""
    return Draft(
        f"Count the pairs of places i < j {what}{where}. The first value is the one at i.",
        "values: list[int]",
        "int",
        f"n = len(values)\npairs = [(values[i], values[j]) for i in range(n) for j in range(i + {apart}, n)]\n"
        f"return sum(1 for a, b in pairs if {test})",
        lambda r: (numbers(r),),
        (([],),),
    )


def interleave(rng: random.Random) -> Draft:
    k, m = rng.sample(range(1, 5), 2)
    rest, stop = rng.choice(
        [
            ("When one list has none left, the rest of the other follows.", "first or second"),
            ("Stop as soon as one list has none left.", "first and second"),
        ]
    )
    back = rng.random() < 0.5
    order = " in reversed order" if back else ""
    changed, expression = change(rng)
    return Draft(
        f"Take {k} values from the first list, then {m} from the second{order}, and so on in turn; take fewer where "
        f"there are fewer. {rest} Each value from the second list is {changed}. Return the list of the values taken.",
        "first: list[int], second: list[int]",
        "list[int]",
        f"found = []\nfirst, second = list(first), list(second)\nwhile {stop}:\n"
        f"    found += first[:{k}]\n    first = first[{k}:]\n"
        f"    found += [{expression} for v in second[:{m}]{'[::-1]' if back else ''}]\n    second = "
        f"second[{m}:]\nreturn found",
        lambda r: (numbers(r), numbers(r)),
        (([], []), ([1, 2, 3], []), ([], [4, 5])),
    )


def running(rng: random.Random) -> Draft:
    m = rng.randint(7, 30)
    what, code, start = rng.choice(
        [
            ("sum", "total + v", "0"),
            (f"product modulo {m}", f"total * v % {m}", "1"),
            ("sum of squares", "total + v * v", "0"),
            ("alternating difference (the new value less the old result)", "v - total", "0"),
        ]
    )
    reset, test = predicate(rng)
    return Draft(
        f"Return the list of the running {what}, one result a value. It begins with {start}. Before a value that is "
        f"{reset} it is set back to {start}.",
        "values: list[int]",
        "list[int]",
        f"found, total = [], {start}\nfor v in values:\n    if {test}:\n        total = {start}\n"
        f"    total = {code}\n    found.append(total)\nreturn found",
        lambda r: (numbers(r),),
        (([],),),
    )


def ranked(rng: random.Random) -> Draft:
    k = rng.randint(2, 5)
    which, reverse = rng.choice([("largest", True), ("smallest", False)])
    m, c = rng.randint(4, 9), rng.randint(1, 9)
    key, code = rng.choice(
        [
            ("", "v"),
            (" by absolute value", "abs(v)"),
            (f" by remainder modulo {m}", f"v % {m}"),
            (f" by distance to {c}", f"abs(v - {c})"),
        ]
    )
    distinct = rng.random() < 0.5
    source = "dict.fromkeys(values)" if distinct else "values"
    sign = "-" if reverse else ""
    return Draft(
        f"Return the {k} {which} {'different ' if distinct else ''}values{key}, the {which} first; of equal rank the "
        f"one that comes earlier in the list is first. If there are fewer than {k}, return all of them.",
        "values: list[int]",
        "list[int]",
        f"return sorted({source}, key=lambda v: {sign}({code}))[:{k}]",
        lambda r: (numbers(r),),
        (([],), ([4],)),
    )


FAMILIES = (
    Family(filter_and_combine, 1),
    Family(windows, 2),
    Family(move_some, 1),
    Family(by_count, 2),
    Family(count_pairs, 2),
    Family(interleave, 2),
    Family(running, 2),
    Family(ranked, 2),
)
