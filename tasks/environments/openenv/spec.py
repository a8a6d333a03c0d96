"""A server by its record, as the rest of the project sees it."""

import random
from collections.abc import Sequence
from typing import Any

from tasks.environments.interface import Demonstration, Environment, EnvironmentSpec, Metric
from tasks.environments.openenv.beginnings import Openings, by_seed, check_beginnings
from tasks.environments.openenv.record import MCP, Record, choose_action
from tasks.environments.openenv.server import action_fields, offered_tools
from tasks.policy.tool_formats import get_format
from tasks.seeds import derived_seed
from tasks.settings import require


def openenv(
    *,
    url: str,
    reset: Any = None,
    action: str = "",
    fields: Any = None,
    format: str = "tool_call",
    pattern: str = "",
    system: str = "",
    prompt: str = "",
    next_prompt: str = "",
    rewards: Any = "sum",
    turns: int | None = None,
    metrics: Sequence[str] = (),
    reward_range: Sequence[float] | None = None,
    replies: Sequence[str] = (),
    sessions: int = 8,
    openings: Any = None,
    unseeded: bool = False,
) -> EnvironmentSpec:
    """An OpenEnv server, without Python of its own.

    Args:
        url: Where it is.
        reset: Arguments of each reset, beside the seed.
        action: The action's field that takes the reply. Default: by the server's schema.
        fields: The action's other fields.
        format: How tools are called, of a server that offers some by MCP.
        pattern: A regular expression whose first group in the reply is the action.
        system: A system message.
        prompt: The user's message, with the observation's fields in braces. Default: all of them.
        next_prompt: The same for later turns. Default: as `prompt`.
        rewards: "sum" of the steps, or the "last" one.
        turns: Replies after which an episode is over. Default: the server says when.
        metrics: Fields of the observation that are numbers.
        reward_range: The lowest and the highest reward, where they are known; [0, 1] gives pass@k.
        replies: Possible replies: the baseline `random` draws from them, and `tiny` imitates it.
        sessions: Episodes that the server holds at once.
        openings: Lists of replies, from a server that ignores the seed and has one beginning: a task is an opening,
            which each episode of its group replays from the reset.
        unseeded: Accept a server whose resets do not depend on the seed alone.
    """
    record: dict[str, Any] = {"url": url, "reset": reset or {}, "fields": fields or {}, "pattern": pattern}
    record |= {"system": system, "prompt": prompt, "next_prompt": next_prompt, "rewards": rewards, "turns": turns}
    record |= {"format": get_format(format).name, "metrics": tuple(metrics)}
    Record(**record)  # is checked before the server is asked
    span = None if reward_range is None else tuple(map(float, reward_range))
    require(span is None or (len(span) == 2 and span[0] < span[1]), "option reward_range", reward_range, "[low, high]")
    require(type(sessions) is int and sessions >= 1, "option sessions", sessions, "1 or more")
    texts = isinstance(replies, Sequence) and not isinstance(replies, str) and all(isinstance(r, str) for r in replies)
    require(texts, "option replies", replies, "a list of texts")
    require(not (unseeded and openings), "option unseeded", unseeded, "false with option openings")
    chosen = None if openings is None else Openings(openings)
    task = chosen.task if chosen else by_seed
    known = action_fields(url)
    if known.keys() >= MCP and not action:
        record["tools"] = offered_tools(url)
    else:
        record["action"], record["kind"] = choose_action(known, action, record["fields"])
    whole = Record(**record)

    def local() -> Environment:
        from tasks.environments.openenv.environment import ServerEpisode

        return ServerEpisode(whole)

    def demonstrations(seed: int, count: int) -> list[Demonstration]:
        from tasks.environments.scripted import play_baseline

        tasks = [task("train", derived_seed("shown", seed, i)) for i in range(count)]
        return [Demonstration(e.messages, replies_only=False) for e in play_baseline(spec, "random", tasks, seed)]

    async def check() -> None:
        if not unseeded:
            await check_beginnings(url, local, chosen)

    spec = EnvironmentSpec(
        name="openenv",
        task=task,
        local=local,
        tools=whole.tools if get_format(format).by_template else (),
        stop=get_format(format).stop if whole.tools else (),
        metrics=(
            *([Metric("tool_calls", "tool calls", ".2f", total=True)] if whole.tools else []),
            *(Metric(name, name) for name in whole.metrics),
        ),
        reward_range=span,  # type: ignore[arg-type]
        baselines={"random": lambda environment, rng: _drawn(rng, replies)} if replies else {},
        demonstrations=demonstrations if replies else None,
        defaults={
            "rollout": {"concurrent_episodes": sessions, "environment_concurrency": sessions},
            "evaluation": {"tasks": 128},
        },
        test_tasks=len(chosen.of["test"]) if chosen else None,
        check=check,
        seeded=False,
    )
    return spec


def _drawn(rng: random.Random, replies: Sequence[str]) -> str:
    return rng.choice(replies)


SPEC = openenv
