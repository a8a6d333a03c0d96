"""Problems about strings."""

import random

from tasks.environments.coding.families.draft import Draft, Family, ordinal, sentence, word


def shift_letters(rng: random.Random) -> Draft:
    k = rng.randint(1, 12)
    which, test = rng.choice(
        [
            ("small letter a to z", "True"),
            ("small vowel (a, e, i, o, u)", "c in 'aeiou'"),
            ("small letter that is not a vowel", "c not in 'aeiou'"),
            ("small letter at an even place (the first place is 0)", "i % 2 == 0"),
            ("small letter at an odd place (the first place is 0)", "i % 2 == 1"),
        ]
    )
    direction, sign = rng.choice([("forward", "+"), ("back", "-")])
    return Draft(
        f"Move each {which} {k} places {direction} in the alphabet, around its end. All else stays.",
        "text: str",
        "str",
        "found = ''\nfor i, c in enumerate(text):\n"
        f"    if 'a' <= c <= 'z' and {test}:\n        c = chr((ord(c) - 97 {sign} {k}) % 26 + 97)\n    found += c\n"
        "return found",
        lambda r: (sentence(r),),
        (("",),),
    )


def score_text(rng: random.Random) -> Draft:
    a, b, c = (rng.randint(-4, 9) for _ in range(3))
    digit, code = rng.choice([("as many points as it says", "int(c)"), (f"{c} points", str(c))])
    double = rng.random() < 0.5
    more = " A character equal to the one before it counts twice." if double else ""
    factor = " * (2 if i and text[i - 1] == c else 1)" if double else ""
    return Draft(
        f"Add up points: a vowel (a, e, i, o, u, small or capital) has {a} points, any other letter {b}, a digit "
        f"{digit}, all else none.{more}",
        "text: str",
        "int",
        "total = 0\nfor i, c in enumerate(text):\n"
        f"    points = {a} if c in 'aeiouAEIOU' else {b} if c.isalpha() else {code} if c.isdigit() else 0\n"
        f"    total += points{factor}\nreturn total",
        lambda r: (sentence(r),),
        (("",),),
    )


def rewrite_words(rng: random.Random) -> Draft:
    k = rng.randint(2, 5)
    kept, test = rng.choice(
        [
            (f"at least {k} characters", f"len(w) >= {k}"),
            (f"at most {k} characters", f"len(w) <= {k}"),
            ("no digit", "not any(c.isdigit() for c in w)"),
            ("a first letter that is a capital", "w[0].isupper()"),
        ]
    )
    done, code = rng.choice(
        [
            ("reversed", "w[::-1]"),
            ("in capitals", "w.upper()"),
            (f"cut to their first {k} characters", f"w[:{k}]"),
            ("with their first character moved to the end", "w[1:] + w[0]"),
        ]
    )
    order, sort = rng.choice(
        [
            ("in their order", "found"),
            ("in reversed order", "found[::-1]"),
            ("sorted by Python's order of strings", "sorted(found)"),
            ("sorted by length, of equal length in their order", "sorted(found, key=len)"),
        ]
    )
    mark = rng.choice(["-", "_", " ", ", ", "/"])
    return Draft(
        f"Split the text at blanks. Keep the words with {kept}, write them {done}, and return them {order}, joined by "
        f"{mark!r}.",
        "text: str",
        "str",
        f"found = [{code} for w in text.split() if {test}]\nreturn {mark!r}.join({sort})",
        lambda r: (sentence(r),),
        (("",),),
    )


def run_lengths(rng: random.Random) -> Draft:
    k = rng.randint(2, 4)
    form, code = rng.choice(
        [
            ("the character and the length", "c + str(n)"),
            ("the length and the character", "str(n) + c"),
            ("the character, then the length in round brackets", "c + '(' + str(n) + ')'"),
            ("the length in square brackets, then the character", "'[' + str(n) + ']' + c"),
            ("the character alone", "c"),
        ]
    )
    back = rng.random() < 0.3
    more = " Then reverse the order of the runs." if back else ""
    mark = rng.choice(["", "", "-", "|", "."])
    between = f", with {mark!r} between all runs" if mark else ""
    return Draft(
        f"Write each run of {k} or more equal characters as {form}; shorter runs stay as they are.{more} Return the "
        f"resulting text{between}.",
        "text: str",
        "str",
        "from itertools import groupby\nfound = []\nfor c, run in groupby(text):\n    n = len(list(run))\n"
        f"    found.append({code} if n >= {k} else c * n)\nreturn {mark!r}.join(found{'[::-1]' if back else ''})",
        lambda r: ("".join(c * r.randint(1, 5) for c in word(r, "abcx", 5)),),
        (("",),),
    )


def count_substrings(rng: random.Random) -> Draft:
    k, letter = rng.randint(2, 4), rng.choice("abc")
    what, test = rng.choice(
        [
            (f"hold {letter!r} exactly once", f"s.count({letter!r}) == 1"),
            (f"begin with {letter!r}, but do not end with it", f"s[0] == {letter!r} != s[-1]"),
            ("are palindromes", "s == s[::-1]"),
            ("have no character twice", "len(set(s)) == len(s)"),
            ("begin and end with the same character", "s[0] == s[-1]"),
            ("have their characters in ascending order, equal ones allowed", "list(s) == sorted(s)"),
            ("hold exactly two different characters", "len(set(s)) == 2"),
        ]
    )
    length, sizes = rng.choice(
        [
            (f"of exactly {k} characters", f"[{k}]"),
            (f"of {k} characters or more", f"range({k}, len(text) + 1)"),
            (f"of {k} to {k + 2} characters", f"range({k}, {k + 3})"),
        ]
    )
    distinct = rng.random() < 0.5
    found = "{text[i:i + n]" if distinct else "[text[i:i + n]"
    return Draft(
        f"Count the substrings {length} that {what}. "
        + ("Equal substrings count once." if distinct else "Equal substrings at different places count each."),
        "text: str",
        "int",
        f"found = {found} for n in {sizes} for i in range(len(text) - n + 1){'}' if distinct else ']'}\n"
        f"return sum(1 for s in found if {test})",
        lambda r: (word(r, "abc", 10),),
        (("",),),
    )


def replace_every(rng: random.Random) -> Draft:
    k = rng.randint(2, 5)
    mark = rng.choice("#*+.?")
    counted, test = rng.choice(
        [
            ("character", "True"),
            ("character that is no blank", "c != ' '"),
            ("letter", "c.isalpha()"),
            ("vowel (a, e, i, o, u, small or capital)", "c in 'aeiouAEIOU'"),
        ]
    )
    done, code = rng.choice([(f"Replace by {mark!r}", f"{mark!r}"), ("Write twice", "c * 2"), ("Leave out", "''")])
    return Draft(
        f"{done} every {ordinal(k)} {counted}: the {ordinal(k)}, the {ordinal(2 * k)} and so on, counted "
        "from the left. All else stays.",
        "text: str",
        "str",
        f"found, count = '', 0\nfor c in text:\n    if {test}:\n        count += 1\n        if count % {k} == 0:\n"
        f"            c = {code}\n    found += c\nreturn found",
        lambda r: (sentence(r),),
        (("",),),
    )


def bracket_depth(rng: random.Random) -> Draft:
    kinds = rng.sample(["()", "[]", "{}", "<>"], 4)
    pairs, others = kinds[: rng.randint(1, 3)], kinds[3:]
    bad = rng.choice([-1, -2, -9])
    what, code = rng.choice(
        [
            ("the greatest depth", "max(depths)"),
            ("the number of pairs", "sum(c in opening for c in text)"),
            ("the number of pairs that stand in no other pair", "depths[1:].count(0)"),
            ("the number of characters of other kinds that stand in no pair", "outside"),
        ]
    )
    return Draft(
        f"The brackets of the text are {' and '.join(pairs)}; all other characters are none. If each bracket is closed "
        f"by its own kind in the right order, return {what}, else {bad}.",
        "text: str",
        "int",
        f"opening, closing = {''.join(p[0] for p in pairs)!r}, {''.join(p[1] for p in pairs)!r}\n"
        "stack, depths, outside = [], [0], 0\nfor c in text:\n    if c in opening:\n        stack.append(c)\n"
        "    elif c in closing:\n        if not stack or opening.index(stack.pop()) != closing.index(c):\n"
        f"            return {bad}\n    else:\n        outside += not stack\n        continue\n"
        f"    depths.append(len(stack))\nreturn {bad} if stack else {code}",
        lambda r: (_brackets(r, pairs + others),),
        (("",), (pairs[0][1] + pairs[0][0],)),
    )


def _brackets(rng: random.Random, pairs: list[str]) -> str:
    text = ""
    for _ in range(rng.randint(0, 6)):
        pair, at = rng.choice(pairs), rng.randint(0, len(text))
        text = text[:at] + pair[0] + rng.choice(["", "a", text[at:]]) + pair[1] + rng.choice(["", "b"]) + text[at:]
        text = text[:24]
    return text


FAMILIES = (
    Family(shift_letters, 2),
    Family(score_text, 1),
    Family(rewrite_words, 1),
    Family(run_lengths, 2),
    Family(count_substrings, 2),
    Family(replace_every, 1),
    Family(bracket_depth, 3),
)
