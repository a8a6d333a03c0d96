"""Problems of reasoning-gym: the same each time, never shared by training and test, paid only where they are right."""

import asyncio
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from openenv.cli._validation import validate_running_environment

from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment
from tasks.environments.interface import Step, Task
from tasks.environments.maths import spec as maths
from tasks.environments.maths.datasets import ALLOWED, NUMBERS, REFUSED, SIMULATED, TEXTS
from tasks.environments.maths.items import Item, Items
from tasks.environments.maths.scoring import answer, is_right, number
from tasks.environments.scripted import play_baseline
from tasks.seeds import derived_seed

ROOT = Path(__file__).parents[2]
JUNK = [
    "banana",
    "0",
    "1",
    "yes",
    "no",
    "True",
    "None",
    "[]",
    "{}",
    "-",
    "a",
    "\n",
    "I do not know.",
    "0/0",
    "\\frac{1}{0}",
]
ALL_ITEMS = """
import hashlib, json, warnings
warnings.filterwarnings("ignore")
from tasks.environments.maths.datasets import ALLOWED
from tasks.environments.maths.items import Items
items = Items(None, {})
print(json.dumps({name: items.make(name, 5).id for name in sorted(ALLOWED)}))
"""


def item(name: str, right: str) -> Item:
    return Item(name, 0, "?", right, {}, None)


def right(of: Item, given: str) -> bool:
    return asyncio.run(is_right(of, given))


def test_every_data_set_of_the_library_is_known() -> None:
    from reasoning_gym.factory import DATASETS

    assert ALLOWED | set(REFUSED) == set(DATASETS)
    assert len(NUMBERS) + len(TEXTS) + len(SIMULATED) + len(REFUSED) == len(DATASETS)
    assert {"game_of_life_halting", "prime_factorization", "word_ladder", "composite"} <= set(REFUSED)


def test_every_allowed_data_set_is_deterministic_and_pays_for_nothing_but_the_answer() -> None:
    # Two other processes, in which sets and dicts of strings have other orders.
    command = [sys.executable, "-c", ALL_ITEMS]
    others = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    items = Items(None, {})
    found = {name: items.make(name, 5) for name in sorted(ALLOWED)}

    async def paid(given: Callable[[Item], list[str]]) -> list[tuple[str, str]]:
        return [(name, text) for name, of in found.items() for text in given(of) if await is_right(of, text)]

    def junk(of: Item) -> list[str]:
        return [
            *(text for text in JUNK if number(text) != number(of.answer) or number(text) is None),
            f"{of.answer} or 2",
        ]

    wrong = [(name, text) for name, text in asyncio.run(paid(junk)) if text.split() != found[name].answer.split()]
    assert wrong == []
    assert {name for name, _ in asyncio.run(paid(lambda of: [of.answer]))} == ALLOWED
    here = {name: of.id for name, of in found.items()}
    assert [json.loads(other.communicate()[0]) for other in others] == [here, here]


def test_neighbouring_seeds_and_splits_share_no_item() -> None:
    # Of small numbers, so that one problem comes up many times.
    small = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
    spec = get_environment("maths", {"datasets": ["chain_sum"], "parameters": small})
    train, test = ({spec.task(split, index).id for index in range(400)} for split in ("train", "test"))  # type: ignore
    assert len(train) > 40 and len(test) > 40 and not train & test
    items = Items(None, {})
    assert len({items.make("chain_sum", seed).id for seed in range(100)}) == 100
    assert spec.task("train", 7) == spec.task("train", 7)
    assert spec.task("train", 7) != get_environment("maths", {"seed": 1}).task("train", 7)


def test_numbers_are_compared_by_value() -> None:
    half, many = item("dice", "1/2"), item("products", "1234")
    assert all(
        right(half, given) for given in ("1/2", "0.5", "2 / 4", "$\\frac{1}{2}$", "\\frac{2}{4}", "\\boxed{0.5}")
    )
    assert all(right(many, given) for given in ("1234", " 1,234 ", "1234.0", "+1234", "\\(1234 \\cdot 1\\)"))
    nothing = (
        "",
        "1235",
        "12,34",
        "1234 1235",
        "the answer is 1234",
        "1e3",
        "0x4d2",
        "1234\\text{ or }1235",
        "1234,1235",
    )
    assert not any(right(many, given) for given in nothing)
    code = "__import__('os').system('touch /tmp/evaluated')"
    assert not any(right(many, given) for given in (code, f"\\({code}\\)", f"\\frac{{{code}}}{{1}}", "9" * 10**6))
    assert not right(half, "\\frac{1}{2} $ $ \\frac{1}{3}") and not right(half, "\\{0.5, 1\\}")
    assert not right(item("products", "0.1234567"), "\\frac{1234566}{10000000}")


def test_texts_are_compared_by_their_words() -> None:
    of = item("spell_backward", "olleH")
    assert right(of, " olleH\n") and not any(right(of, given) for given in ("olleh", "olleH olleH", "ol leH"))
    assert right(item("spiral_matrix", "1 2 3"), "1  2\n3") and not right(item("spiral_matrix", "1 2 3"), "1 2 3 4")
    # A fraction that is to be simplified has one right form.
    assert not right(item("fraction_simplification", "1/2"), "2/4")


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("<answer>7</answer>", "7"),
        ("<answer>6</answer> no, <answer> 7 </answer>.", "7"),
        ("<think><answer>6</answer></think><answer>7</answer>", "7"),
        ("<answer>6 <answer>7</answer>", "7"),
        ("<answer></answer>", ""),
        ("7", None),
        ("<answer>7", None),
        ("<think><answer>7</answer></think>", None),
    ],
)
def test_where_the_answer_stands(reply: str, found: str | None) -> None:
    assert answer(reply) == found


def test_an_episode_with_the_interpreter() -> None:
    async def play(*replies: str) -> list[Step]:
        spec = get_environment("maths", {"datasets": {"products": 2, "gcd": 1}})
        environment = spec.make()
        steps = [await environment.reset(spec.task("train", 3))]
        for reply in replies:
            steps.append(await environment.step({"role": "assistant", "content": reply}))
        await environment.close()
        return steps

    spec = get_environment("maths")
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'
    first, called, last = asyncio.run(play(call, "<answer>banana</answer>"))
    assert "between <answer> and </answer>" in first.messages[0]["content"]
    assert (called.messages[0]["content"], called.metrics["tool_calls"], last.reward) == ("42", 1.0, 0.0)
    assert not asyncio.run(play("42"))[-1].valid
    tasks = [spec.task("test", index) for index in range(12)]
    known, nothing = (play_baseline(spec, name, tasks) for name in ("known_answer", "no_answer"))
    assert [episode.reward for episode in known] == [1.0] * 12 and {spec.outcome(e) for e in known} == {"solved"}
    assert [episode.reward for episode in nothing] == [0.0] * 12 and {spec.outcome(e) for e in nothing} == {"wrong"}
    assert spec.reward_range == (0, 1) and set(spec.parts(tasks[0])) <= set(maths.DEFAULT_DATASETS)


def test_solved_examples_are_other_training_problems_of_the_data_set() -> None:
    spec = get_environment("maths", {"datasets": "gcd", "difficulty": 0, "tool": False, "examples": 3})
    shown_first = Items(0, {}).find("gcd", "train", derived_seed("example", "gcd", 0))
    itself = Task(id=shown_first.id, split="train", seed=shown_first.seed, data={"dataset": "gcd"})
    for task in (spec.task("train", 5), spec.task("test", 5), itself):
        (episode,) = play_baseline(spec, "known_answer", [task])
        system, *shown, question, reply = (message["content"] for message in episode.messages)
        assert "between <answer> and </answer>" in system and len(shown) == 6 and question not in shown
        for asked, answered in zip([*shown[::2], question], [*shown[1::2], reply], strict=True):
            numbers = [int(n) for n in re.findall(r"\d+", asked)]
            assert answered == f"<answer>{math.gcd(*numbers)}</answer>"


def test_weights_and_difficulty() -> None:
    spec = get_environment("maths", {"datasets": {"gcd": 9, "lcm": 1}, "difficulty": 0, "tool": False})
    count = sum(spec.task("train", index).data["dataset"] == "gcd" for index in range(200))
    assert 160 < count < 198  # 180 expected, deviation 4
    easy, hard = (
        get_environment("maths", {"datasets": "chain_sum", "difficulty": level}).task("train", 0) for level in (0, 3)
    )
    assert easy.id != hard.id
    check_environment(spec, "", timeout_s=60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"datasets": "poker"}, 'datasets is "poker"; allowed: ab, acre, '),
        (
            {"datasets": ["gcd", "word_ladder"]},
            'datasets has "word_ladder"; allowed: another one, for its items change',
        ),
        (
            {"datasets": "game_of_life_halting"},
            'datasets has "game_of_life_halting"; allowed: another one, for its scorer',
        ),
        ({"datasets": []}, "datasets is []; allowed: names of data sets."),
        ({"datasets": {"gcd": -1}}, "the weight of gcd is -1; allowed: a number above 0."),
        ({"datasets": {"gcd": True}}, "the weight of gcd is True; allowed: a number above 0."),
        ({"difficulty": -1}, "difficulty is -1; allowed: a level from 0, or none."),
        (
            {"datasets": "gsm_symbolic", "difficulty": 1},
            'difficulty is 1, and "gsm_symbolic" has no levels; allowed: none.',
        ),
        ({"parameters": {"lcm": {}}}, 'parameters is "lcm"; allowed: the chosen data sets, chain_sum'),
        ({"parameters": {"gcd": {"seed": 3}}}, 'parameters of "gcd" have "seed"; allowed: '),
        ({"examples": 9}, "examples is 9; allowed: 0 to 8."),
        ({"seed": "x"}, 'seed is "x"; allowed: a whole number, 0 or more.'),
        ({"format": "xml"}, 'format is "xml"; allowed: tool_call'),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_environment("maths", options)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r'^maths needs the packages reasoning-gym and math-verify: pip install "flyte-'
    ):
        get_environment("maths")


def test_as_an_openenv_server(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    spec = get_environment("maths")
    tasks: list[Task] = [spec.task("train", index) for index in range(4)]

    async def play(url: str) -> list[float]:
        async def one(task: Task) -> float:
            here: Any = spec.make()
            await here.reset(task)
            environment = spec.make(url)
            await environment.reset(task)
            reply = {"role": "assistant", "content": f"<answer>{here.item.answer}</answer>"}
            step = await environment.step(reply)
            await environment.close()
            return step.reward

        return list(await asyncio.gather(*map(one, tasks)))

    with openenv_server(name="maths") as url:
        assert asyncio.run(play(url)) == [1.0] * 4
        assert validate_running_environment(url)["passed"]
