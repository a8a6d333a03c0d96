"""Problems in which rules are followed step by step."""

import random

from tasks.environments.coding.families.draft import Draft, Family, ordinal, predicate, word


def robot(rng: random.Random) -> Draft:
    step, size = rng.randint(1, 3), rng.randint(4, 9)
    edge, move = rng.choice(
        [
            (
                f"The field is {size} places wide and high, and one that leaves it comes in on the other side.",
                f"% {size}",
            ),
            (f"A step that would leave the field, {size} places wide and high, is not taken.", ""),
        ]
    )
    what, code = rng.choice(
        [
            ("its last place, as a tuple (x, y)", "(x, y)"),
            ("the number of different places it stood on, the first one included", "len(seen)"),
            ("x + y of its last place", "x + y"),
            ("how often it stood on (0, 0) after a command", "home"),
        ]
    )
    take = (
        f"x, y = (x + {step} * dx) % {size}, (y + {step} * dy) % {size}"
        if move
        else f"if 0 <= x + {step} * dx < {size} and 0 <= y + {step} * dy < {size}:\n            x, y = x + "
        f"{step} * dx, y + {step} * dy"
    )
    return Draft(
        "A robot begins at (0, 0) and faces up, where y grows; x grows to the right. L and R turn it by "
        "a quarter, F moves "
        f"it {step} {'place' if step == 1 else 'places at once'}. {edge} Return {what}.",
        "commands: str",
        "tuple[int, int]" if "tuple" in what else "int",
        "x, y, dx, dy = 0, 0, 0, 1\nseen, home = {(0, 0)}, 0\nfor c in commands:\n    if c == 'L':\n"
        "        dx, dy = -dy, dx\n    elif c == 'R':\n        dx, dy = dy, -dx\n    else:\n"
        f"        {take}\n    seen.add((x, y))\n    home += (x, y) == (0, 0)\nreturn {code}",
        lambda r: (word(r, "FFFFLR", 16),),
        (("",), ("R",), ("L" + "F" * size,)),
    )


def account(rng: random.Random) -> Draft:
    limit, fee = rng.choice([0, 10, 20, 50]), rng.randint(1, 5)
    rule, code = rng.choice(
        [
            ("is refused", "amount = 0"),
            (f"is refused and costs {fee}", f"amount = 0\n            balance -= {fee}"),
            ("is done only as far as the limit allows", f"amount = max(balance + {limit}, 0)"),
        ]
    )
    what, result = rng.choice(
        [
            ("the last balance", "balance"),
            ("the lowest balance at any time, the beginning included", "lowest"),
            ("the sum of what was taken out", "taken"),
        ]
    )
    bonus, gain = rng.choice(
        [("", ""), (f" Each 'in' of more than {10 * fee} adds {fee} more.", f" + {fee} * (amount > {10 * fee})")]
    )
    return Draft(
        "An account begins with 0. An operation is a tuple: ('in', amount) or ('out', amount). An 'out' "
        "after which the "
        f"balance would be below {-limit} {rule}.{bonus} Return {what}.",
        "operations: list[tuple[str, int]]",
        "int",
        "balance = lowest = taken = 0\nfor kind, amount in operations:\n    if kind == 'in':\n"
        f"        balance += amount{gain}\n    else:\n        if balance - amount < {-limit}:\n            {code}\n"
        "        balance -= amount\n        taken += amount\n    lowest = min(lowest, balance)\n"
        f"return {result}",
        lambda r: ([(r.choice(["in", "out"]), r.randint(1, 60)) for _ in range(r.randint(0, 8))],),
        (([],), ([("out", 5)],)),
    )


def cells(rng: random.Random) -> Draft:
    rule = [rng.randint(0, 1) for _ in range(3)]
    keep = rng.choice([True, False])
    edge, wrap = rng.choice(
        [("Beyond both ends all are 0.", False), ("The last one and the first one are neighbours.", True)]
    )
    alive = [n for n in range(3) if rule[n]] or [rng.randint(0, 2)]
    names = " or ".join(map(str, alive))
    when = f"it is {'0' if keep else '1'}" if rng.random() < 0.5 else ""
    condition = f" and cell == {0 if keep else 1}" if when else ""
    neighbours = (
        "row[i - 1] + row[(i + 1) % n]" if wrap else "(row[i - 1] if i else 0) + (row[i + 1] if i + 1 < n else 0)"
    )
    what, code, kind = rng.choice(
        [
            ("the row", "row", "list[int]"),
            ("how many are 1", "sum(row)", "int"),
            ("the places of the 1s", "[i for i in range(n) if row[i]]", "list[int]"),
        ]
    )
    return Draft(
        "A row of at least three cells, each 0 or 1, is changed step by step, all at once: a cell "
        "becomes 1 if exactly "
        f"{names} of its two neighbours {'is' if names == '1' else 'are'} "
        f"1{f' and {when}' if when else ''}, else 0. {edge} "
        f"Return {what} after so many steps.",
        "row: list[int], steps: int",
        kind,
        f"n = len(row)\nfor _ in range(steps):\n    row = [int({neighbours} in {tuple(alive)}{condition}) "
        "for i, cell in "
        f"enumerate(row)]\nreturn {code}",
        lambda r: ([r.randint(0, 1) for _ in range(r.randint(3, 9))], r.randint(0, 5)),
        (([0, 1, 0], 0), ([0, 1, 0], 1)),
    )


def circle(rng: random.Random) -> Draft:
    k, left = rng.randint(2, 7), rng.randint(1, 3)
    direction = rng.random() < 0.4
    what, code = rng.choice(
        [
            ("those who are left, in ascending order, as a list", "sorted(people)"),
            ("the sum of those who are left", "sum(people)"),
            ("those who left, in that order, as a list", "out"),
            ("the last one who left, or 0 if nobody did", "out[-1] if out else 0"),
        ]
    )
    turn = " After each one who leaves the direction changes." if direction else ""
    return Draft(
        "The people 1 to n stand in a circle. Counting begins with 1 at person 1 and goes on upwards; "
        f"the {ordinal(k)} leaves, and "
        f"counting begins anew with the next one, until {left} or fewer are left.{turn} Return {what}.",
        "n: int",
        "list[int]" if "as a list" in what else "int",
        f"people, out, at, step = list(range(1, n + 1)), [], 0, 1\nwhile len(people) > {left}:\n"
        f"    at = (at + step * {k - 1}) % len(people)\n    out.append(people.pop(at))\n"
        + ("    step = -step\n    if step < 0:\n        at -= 1\n" if direction else "")
        + f"return {code}",
        lambda r: (r.randint(1, 25),),
        ((1,), (2,), (3,)),
    )


def stack_machine(rng: random.Random) -> Draft:
    ops = {
        "ADD": (
            "replaces the two topmost values by their sum",
            2,
            "b, a = stack.pop(), stack.pop()\n        stack.append(a + b)",
        ),
        "SUB": (
            "replaces the two topmost values by the lower less the topmost",
            2,
            "b, a = stack.pop(), stack.pop()\n        stack.append(a - b)",
        ),
        "MUL": (
            "replaces the two topmost values by their product",
            2,
            "b, a = stack.pop(), stack.pop()\n        stack.append(a * b)",
        ),
        "DUP": ("puts the topmost value on top once more", 1, "stack.append(stack[-1])"),
        "SWAP": ("exchanges the two topmost values", 2, "stack[-1], stack[-2] = stack[-2], stack[-1]"),
        "NEG": ("changes the sign of the topmost value", 1, "stack[-1] = -stack[-1]"),
        "POP": ("takes the topmost value away", 1, "stack.pop()"),
    }
    chosen = rng.sample(list(ops), 4)
    rule, code = rng.choice([("is skipped", "continue"), ("ends the program", "break")])
    what, result, kind = rng.choice(
        [
            ("the stack, the topmost last", "stack", "list[int]"),
            ("the topmost value, or 0 if there is none", "stack[-1] if stack else 0", "int"),
            ("the sum of the stack", "sum(stack)", "int"),
        ]
    )
    body = "stack = []\nfor t in program.split():\n    needs = " + repr({n: ops[n][1] for n in chosen}) + ".get(t, 0)\n"
    body += f"    if len(stack) < needs:\n        {code}\n"
    for i, n in enumerate(chosen):
        body += f"    {'elif' if i else 'if'} t == {n!r}:\n        {ops[n][2]}\n"
    body += f"    else:\n        stack.append(int(t))\nreturn {result}"
    return Draft(
        "A program of words runs on a stack that is empty at first. A whole number is put on top. "
        + " ".join(f"{n} {ops[n][0]}." for n in chosen)
        + f" A word that finds too few values on the stack {rule}. Return {what}.",
        "program: str",
        kind,
        body,
        lambda r: (" ".join(r.choice([str(r.randint(-3, 9)), r.choice(chosen)]) for _ in range(r.randint(0, 10))),),
        (("",), (chosen[0],)),
    )


def lift(rng: random.Random) -> Draft:
    up, down, stop = (rng.randint(1, 5) for _ in range(3))
    start = rng.randint(0, 4)
    what, code = rng.choice(
        [
            ("how long it takes", "time"),
            ("the longest time without a stop", "longest"),
            ("how many floors it moves upwards in all", "floors"),
        ]
    )
    skip, test = rng.choice([("", "False"), *(2 * [predicate(rng, "f")])])
    more = f" Calls from floors that are {skip} are left out." if skip else ""
    return Draft(
        f"A lift begins on floor {start} and goes to the floors in the order given. A floor upwards takes "
        f"{up} s, downwards "
        f"{down} s, and each stop {stop} s; a call from the floor it is on costs the stop only.{more} Return {what}.",
        "floors_called: list[int]",
        "int",
        f"at, time, longest, floors = {start}, 0, 0, 0\nfor f in floors_called:\n    if {test}:\n        continue\n"
        f"    ride = {up} * (f - at) if f > at else {down} * (at - f)\n    time += ride + {stop}\n"
        f"    longest = max(longest, ride)\n    floors += max(f - at, 0)\n    at = f\nreturn {code}",
        lambda r: ([r.randint(-2, 12) for _ in range(r.randint(0, 7))],),
        (([],), ([start],)),
    )


def cooldown(rng: random.Random) -> Draft:
    k, cost = rng.randint(3, 7), rng.randint(1, 3)
    special = rng.choice("ABC")
    what, code = rng.choice(
        [
            ("when the last one ends (0 if there is none)", "time"),
            ("how many seconds nothing runs", "idle"),
            ("when each one begins, as a list", "begins"),
        ]
    )
    return Draft(
        "Jobs, each a capital letter, run in the order given, from second 0 on and one at a time. Each "
        f"takes {cost} s, but "
        f"{special} takes {cost + 2} s. Between the end of a job and the beginning of the next one of the "
        "same letter there "
        f"are at least {k} s; while a job waits, nothing runs. Return {what}.",
        "jobs: str",
        "list[int]" if "list" in what else "int",
        "time, idle, ends, begins = 0, 0, {}, []\nfor j in jobs:\n"
        f"    begin = max(time, ends[j] + {k}) if j in ends else time\n    idle += begin - time\n"
        "    begins.append(begin)\n"
        f"    time = ends[j] = begin + ({cost + 2} if j == {special!r} else {cost})\nreturn {code}",
        lambda r: (word(r, "ABCD", 9),),
        (("",), ("AA",)),
    )


FAMILIES = (
    Family(robot, 2),
    Family(account, 2),
    Family(cells, 3),
    Family(circle, 3),
    Family(stack_machine, 3),
    Family(lift, 2),
    Family(cooldown, 2),
)
