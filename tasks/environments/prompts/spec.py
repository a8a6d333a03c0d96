"""A user's own data as the rest of the project sees it."""

import random
from collections.abc import Sequence
from typing import Any

from tasks.environments.interface import Demonstration, Environment, EnvironmentSpec, Metric, Split, Task
from tasks.environments.prompts.data import Line, Row, check_apart, messages_of, read_lines, refuse, row_id, split_rows
from tasks.environments.prompts.rewards import read_rewards
from tasks.seeds import derived_seed
from tasks.settings import require

TRIED = "0"  # a reply


def prompts(
    *,
    data: str,
    reward: Any,
    prompt: str = "prompt",
    system: str = "",
    test_data: str = "",
    test_share: float = 0.1,
    reward_range: Sequence[float] | None = None,
    answer: str = "",
    processes: int = 0,
) -> EnvironmentSpec:
    """Prompts of a JSONL file, and the functions by which replies are rewarded.

    Args:
        data: Path or URI of the file.
        reward: `package.module:function`, a list of such, or their weights by name.
        prompt: The column with the prompt, a text or messages.
        system: A system message for prompts that have none.
        test_data: A file of test prompts. Default: a share of `data`.
        test_share: That share.
        reward_range: The lowest and the highest reward, where they are known; [0, 1] gives pass@k.
        answer: A column with a right reply, which `tiny` learns the form of replies from.
        processes: In which plain functions are called; 0 calls them in threads.
    """
    rewards = read_rewards(reward)
    is_share = isinstance(test_share, (int, float)) and 0 < test_share < 1
    require(is_share, "option test_share", test_share, "more than 0, less than 1")
    require(type(processes) is int and processes >= 0, "option processes", processes, "0 or more")
    span = None if reward_range is None else tuple(map(float, reward_range))
    require(span is None or (len(span) == 2 and span[0] < span[1]), "option reward_range", reward_range, "[low, high]")
    lines = read_lines("data", data, prompt)
    files: list[tuple[str, str, Sequence[Line]]] = [("data", data, lines)]
    if test_data:
        files.append(("test_data", test_data, read_lines("test_data", test_data, prompt)))
        check_apart(lines, files[1][2], prompt)
        train, test = ([line.row for line in of] for _, _, of in files)
        require(len(test) > 1, "the number of rows of option test_data", len(test), "2 or more")
    else:
        train, test = split_rows(lines, prompt, test_share)
    columns = set.intersection(*(set(line.row) for _, _, of in files for line in of))
    for one in rewards:
        one.check_columns(columns)
    for option, path, of in files if answer else ():
        for number, row in of:
            if not isinstance(row.get(answer), str):
                refuse(option, path, f'whose line {number} has no text in the column "{answer}"')
    rows: dict[Split, list[Row]] = {"train": train, "test": list({row_id(row): row for row in test}.values())}

    def task(split: Split, index: int) -> Task:
        row = rows[split][index % len(rows[split])]
        return Task(id=f"{row_id(row):016x}", split=split, seed=row_id(row), data={"row": row})

    def local() -> Environment:
        from tasks.environments.prompts.environment import Prompt

        return Prompt(prompt, system, rewards, processes)

    def demonstrations(seed: int, count: int) -> list[Demonstration]:
        """Each prompt with the answer of any: they show what replies look like, not which are right."""
        rng, shown = random.Random(derived_seed("shown", seed)), []
        for _ in range(count):
            asked, other = rng.choice(train), rng.choice(train)
            reply = {"role": "assistant", "content": other[answer]}
            shown.append(Demonstration([*messages_of(asked, prompt, system), reply], replies_only=False))
        return shown

    async def check() -> None:
        """Each function is called once, for the first row."""
        for one in rewards:
            try:
                await one(train[0][prompt], TRIED, train[0], processes)
            except Exception as error:
                told = f'{type(error).__name__}: {error}, for the first row and the reply "{TRIED}"'
                raise ValueError(f"option reward has {one.reference}, which raised {told}.") from error

    return EnvironmentSpec(
        name="prompts",
        task=task,
        local=local,
        metrics=tuple(Metric(one.name, one.name, headline=len(rewards) > 1) for one in rewards),
        reward_range=span,  # type: ignore[arg-type]
        test_tasks=len(rows["test"]),
        demonstrations=demonstrations if answer else None,
        check=check,
    )


SPEC = prompts
