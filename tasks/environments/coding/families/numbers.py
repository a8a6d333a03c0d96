"""Problems about whole numbers."""

import random

from tasks.environments.coding.families.draft import Draft, Family, numbers, predicate


def digit_values(rng: random.Random) -> Draft:
    base = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10])
    kept, test = rng.choice([("", "True"), *(3 * [predicate(rng, "d")])])
    what, code = rng.choice(
        [
            ("the sum", "sum(found)"),
            ("the product (1 if there are none)", "prod(found)"),
            ("the number", "len(found)"),
            ("the number of different ones", "len(set(found))"),
            ("the largest (0 if there are none)", "max(found, default=0)"),
            ("the sum of the squares", "sum(d * d for d in found)"),
        ]
    )
    return Draft(
        f"Write n, which is not negative, in base {base}. Return {what} of its "
        f"digits{f' that are {kept}' * bool(kept)}. "
        "The digits of 0 are one 0.",
        "n: int",
        "int",
        f"from math import prod\nfound, left = [], n\nwhile True:\n    found.append(left % {base})\n"
        f"    left //= {base}\n"
        f"    if left == 0:\n        break\nfound = [d for d in found if {test}]\nreturn {code}",
        lambda r: (r.randrange(10 ** r.randint(1, 7)),),
        ((0,), (base,)),
    )


def divisors(rng: random.Random) -> Draft:
    kept, test = predicate(rng, "d")
    own = rng.random() < 0.5
    what, code = rng.choice(
        [
            ("the sum of", "sum(found)"),
            ("the number of", "len(found)"),
            ("the largest, or 0 if there is none, of", "max(found, default=0)"),
            ("in ascending order a list of", "found"),
        ]
    )
    return Draft(
        f"Return {what} the positive divisors of n that are {kept}. n is at least 1 and "
        f"{'counts' if own else 'does not count'} "
        "among them.",
        "n: int",
        "list[int]" if "list" in what else "int",
        f"found = [d for d in range(1, n {'+ 1' if own else ''}) if n % d == 0 and {test}]\nreturn {code}",
        lambda r: (
            r.choice([12, 24, 36, 60, 72, 90, 120, 210, 240, 360, 420, 504]) if r.random() < 0.5 else r.randint(1, 400),
        ),
        ((1,), (2,)),
    )


def primes_between(rng: random.Random) -> Draft:
    m = rng.randint(3, 12)
    r = rng.choice([r for r in range(1, m)])
    which, test = rng.choice(
        [
            (f"that are {r} modulo {m}", f"p % {m} == {r}"),
            (f"whose last decimal digit is at most {r % 9 + 1}", f"p % 10 <= {r % 9 + 1}"),
            (f"whose decimal digits add up to at least {m}", f"sum(map(int, str(p))) >= {m}"),
            (f"to which {2 * m} is added to get another prime", f"prime(p + {2 * m})"),
        ]
    )
    what, code = rng.choice(
        [
            ("the number of primes", "len(found)"),
            ("the sum of the primes", "sum(found)"),
            ("in ascending order a list of the primes", "found"),
            ("the largest, or 0 if there is none, of the primes", "max(found, default=0)"),
        ]
    )
    return Draft(
        f"Return {what} from low to high, both included, {which}.",
        "low: int, high: int",
        "list[int]" if "list" in what else "int",
        "def prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n"
        f"found = [p for p in range(low, high + 1) if prime(p) and {test}]\nreturn {code}",
        lambda r: (low := r.randint(0, 300), low + r.randint(0, 120)),
        ((0, 1), (2, 2), (20, 10)),
    )


def write_in_base(rng: random.Random) -> Draft:
    base = rng.randint(2, 16)
    k = rng.randint(2, 4)
    mark = rng.choice(["-", "_", " ", "."])
    order = rng.choice(["first", "last"])
    minus = rng.choice(["-", "~", "n"])
    group = (
        f"text = text[::-1]\nparts = [text[i:i + {k}] for i in range(0, len(text), {k})]\n"
        f"text = {mark!r}.join(parts)[::-1]"
    )
    turn = "text = text[::-1]\n" if order == "first" else ""
    first = "lowest" if order == "first" else "highest"
    return Draft(
        f"Write n in base {base} with the digits 0 to 9 and a to f, the {first} digit first. Put {mark!r} between "
        f"groups of {k} digits, counted from the right end of what is written. A negative n has {minus!r} before all "
        "else.",
        "n: int",
        "str",
        f"text, left = '', abs(n)\nwhile left or not text:\n    text = '0123456789abcdef'[left % {base}] + text\n"
        f"    left //= {base}\n{turn}{group}\nreturn ({minus!r} if n < 0 else '') + text",
        lambda r: (r.randint(-5000, 200000),),
        ((0,), (-1,), (base**k,)),
    )


def fold(rng: random.Random) -> Draft:
    k = rng.randint(2, 9)
    what, code, start = rng.choice(
        [
            ("the greatest common divisor of the result and the value", "gcd(result, abs(v))", 0),
            ("the least common multiple of the result and the value", "lcm(result, v)", 1),
            (f"{k} times the result plus the value", f"{k} * result + v", 0),
            ("the bitwise exclusive or of the result and the value", "result ^ v", k),
            ("the absolute difference of the result and the value", "abs(result - v)", k),
            (f"the sum of result and value, modulo {97 + k}", f"(result + v) % {97 + k}", k),
        ]
    )
    skipped, test = predicate(rng)
    return Draft(
        f"Begin with the result {start}. For each value from left to right that is not 0 and not {skipped}, the new "
        f"result is {what}. Return the last result.",
        "values: list[int]",
        "int",
        f"from math import gcd, lcm\nresult = {start}\nfor v in values:\n    if v == 0 or {test}:\n        continue\n"
        f"    result = {code}\nreturn result",
        lambda r: (numbers(r, -12, 30),),
        (([],), ([0],)),
    )


def recurrence(rng: random.Random) -> Draft:
    p, q, c = rng.randint(1, 4), rng.randint(1, 4), rng.randint(0, 5)
    a, b, m = rng.randint(0, 4), rng.randint(1, 5), rng.choice([97, 101, 1000, 1009, 10007])
    plus = f" + {c}" if c else ""
    return Draft(
        f"A sequence begins with a(0) = {a}, a(1) = {b}. From there on a(n) = ({p} * a(n-1) + {q} * "
        f"a(n-2){plus}) modulo "
        f"{m}. Return a(n), for n up to 10000.",
        "n: int",
        "int",
        f"a, b = {a}, {b}\nfor _ in range(n):\n    a, b = b, ({p} * b + {q} * a + {c}) % {m}\nreturn a",
        lambda r: (r.choice([r.randint(2, 40), r.randint(100, 3000)]),),
        ((0,), (1,), (2,)),
    )


def nearest(rng: random.Random) -> Draft:
    wanted, test = rng.choice(
        [
            ("perfect square", "round(x ** 0.5) ** 2 == x"),
            ("power of two", "x > 0 and x & (x - 1) == 0"),
            ("number whose decimal digits are a palindrome", "str(x) == str(x)[::-1]"),
            *(
                (f"number whose decimal digits add up to a multiple of {k}", f"sum(map(int, str(x))) % {k} == 0")
                for k in range(3, 12)
            ),
            *((f"number that is {k - 2} modulo {5 * k}", f"x % {5 * k} == {k - 2}") for k in range(3, 12)),
            *((f"number with {k} set bits in binary", f"bin(x).count('1') == {k}") for k in (2, 3, 4)),
        ]
    )
    tie, order = rng.choice([("smaller", "(n - d, n + d)"), ("larger", "(n + d, n - d)")])
    what, result = rng.choice([("it", "x"), ("its distance to n", "d")])
    strict = rng.random() < 0.5
    return Draft(
        f"Find the {wanted} nearest to n that is not negative{' and not n itself' * strict}; of two "
        f"equally near the {tie}. "
        f"Return {what}. n is from 0 to 10000.",
        "n: int",
        "int",
        f"for d in range({int(strict)}, 20000):\n    for x in {order}:\n        if x >= 0 and {test}:\n"
        f"            return {result}",
        lambda r: (r.randint(0, 10 ** r.randint(1, 4)),),
        ((0,), (1,), (16,)),
    )


FAMILIES = (
    Family(digit_values, 1),
    Family(divisors, 1),
    Family(primes_between, 2),
    Family(write_in_base, 3),
    Family(fold, 2),
    Family(recurrence, 1),
    Family(nearest, 2),
)
