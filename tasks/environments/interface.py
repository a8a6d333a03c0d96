"""What an environment is, to everything outside of it.

    EnvironmentSpec ── task(split, index) ──► Task ──► Environment.reset(task) ──► Step: messages, reward, done, metrics
                                                             ▲        │
                                                             │        ▼
                                              step(reply) ◄── policy ◄── messages

An environment is a folder under `tasks/environments/`, or an installed package, with a `SPEC`: an EnvironmentSpec, or a
function of keyword options that returns one. Importing it imports nothing heavy.
"""

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import matplotlib.figure

Split = Literal["train", "test"]
FinishReason = Literal["", "finished", "invalid", "truncated", "error"]

# One chat message: {"role": "user" | "assistant" | "tool" | "system", "content": text}. A message of the assistant may
# have "tool_calls", a list of {"id": …, "name": …, "arguments": JSON text}; one of a tool has "tool_call_id".
Message = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One problem, shared by all trajectories of a group: an exercise, a shuffled deck, a repository.

    Example: `Task(id="4711", split="train", seed=4711)`.
    """

    id: str  # the same problem has the same id, in training and in evaluation
    split: Split
    seed: int  # fixes all that chance decides; 0 <= seed < 2**63
    data: Mapping[str, Any] = field(default_factory=dict)  # JSON: what the environment needs beside the seed


@dataclass(frozen=True)
class Step:
    """What the environment answers to a reset or to a reply.

    Example, the end of an episode: `Step(messages=[], reward=1.0, done=True, metrics={"right_answers": 3.0})`.
    """

    messages: Sequence[Message] = ()  # what the policy is told next: system (after a reset), user or tool messages
    reward: float = 0.0  # of this step; the episode's is their sum
    done: bool = False
    valid: bool = True  # False: the reply could not be parsed
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""  # shown to people beside the reply
    tool_calls: Sequence[Mapping[str, str]] = ()  # read from the reply, as a message has them: on record beside it


@dataclass
class Episode:
    """One episode: what was said, what the environment answered, how it ended.

    Example: `Episode(task=Task("4711", "train", 4711), messages=[{"role": "system", …}, {"role": "user", …},
    {"role": "assistant", "content": "42"}], steps=[Step(…), Step(reward=1.0, done=True)], turns=1, reward=1.0,
    finish_reason="finished")`.
    """

    task: Task
    messages: list[Message] = field(default_factory=list)  # the whole conversation
    steps: list[Step] = field(default_factory=list)  # the answer to the reset, then one for each reply it was given
    turns: int = 0  # replies of the policy
    reward: float = 0.0  # the environment's own, unshaped: the sum over the steps
    finish_reason: FinishReason = ""
    error: str = ""  # why it ended as "error"


class Environment(Protocol):
    """One episode at a time. A later reset begins another one; after an error the environment is closed, not reset.

    Calls of many environments run in one event loop: what takes time is awaited, and blocking code goes to a thread
    (`asyncio.to_thread`).
    """

    async def reset(self, task: Task) -> Step:
        """Begin an episode; the first messages. Two resets with one task agree."""
        ...

    async def step(self, reply: Message) -> Step:
        """Answer the policy's reply."""
        ...

    async def close(self) -> None:
        """Give back what is held."""


@dataclass(frozen=True)
class Metric:
    """A number of an episode that people look at; its key is one of `Step.metrics`, or `score` of the spec gives it.

    Several steps of an episode that have it are averaged. Example: `Metric("right_answers", "right answers", ".1%")`.
    """

    key: str
    label: str
    format: str = ".3f"  # a format specification of a float, such as ".1%"
    headline: bool = False  # also in the console's line and on top of the report
    per: Literal["episode", "step"] = "episode"  # what its mean and its interval are taken over
    total: bool = False  # the steps of an episode are added up, not averaged
    timing: bool = False  # seconds of this machine: left out of the rows, which the seed alone decides


@dataclass(frozen=True)
class ToolSpec:
    """A tool that the policy may call, as the chat template shows it. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True)
class Demonstration:
    """A conversation for the cold start of the policy `tiny` to imitate."""

    messages: Sequence[Message]
    replies_only: bool = True  # False: the prompts are learned too, which teaches a newborn policy to tell them apart


@dataclass(frozen=True)
class Figure:
    """A picture of an environment's own, drawn from the `details` of an evaluation.

    `draw(details, title, theme)` takes what `EnvironmentSpec.details` gave and a `tasks.evaluation.pictures.Theme`.
    """

    name: str  # of its file
    caption: str
    draw: Callable[[Any, str, Any], "matplotlib.figure.Figure"]


# A scripted policy to compare with: a reply in the present state of an environment of this process.
Baseline = Callable[[Any, random.Random], str]


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """One environment: its tasks, how it is opened, and how people see it. All from `metrics` on is optional."""

    name: str
    task: Callable[[Split, int], Task]  # any index from 0 to 2**61; a test task is never a training task
    local: Callable[[], Environment]  # opened in this process
    remote: Callable[[str], Environment] | None = None  # given the URL of a server; None: tasks.environments.client
    partial_format: Callable[[str], bool] | None = None  # whether an unreadable reply begins as a readable one
    metrics: tuple[Metric, ...] = ()
    outcome: Callable[[Episode], str] = attrgetter("finish_reason")  # "solved", …: for traces and distributions
    # Names that results are broken down by: a family, a difficulty.
    parts: Callable[[Task], Sequence[str]] = lambda task: ()
    tools: tuple[ToolSpec, ...] = ()
    stop: tuple[str, ...] = ()  # strings that end a reply, as the end of a turn does
    reward_range: tuple[float, float] | None = None  # (0, 1): evaluations give pass@1 and pass@k, solved is 1
    truncated_reward: float = 0.0  # added to the reward of an episode that a limit ended
    test_tasks: int | None = None  # how many test tasks there are, indices 0 to this - 1; None: no end of them
    score: Callable[[Episode], Mapping[str, float]] = lambda episode: {}  # metrics of a whole episode
    baselines: Mapping[str, Baseline] = field(default_factory=dict)  # the first is the one shown beside the policy
    details: Callable[[Sequence[Episode]], Any] | None = None  # JSON for the figures, kept in evaluation.json
    figures: tuple[Figure, ...] = ()
    # Further keys of summary.json, of the first and the last Evaluation and the number of episodes of the training.
    summary: Callable[[Any, Any, int], Mapping[str, Any]] | None = None
    demonstrations: Callable[[int, int], Sequence[Demonstration]] | None = None  # (seed, count), for `tiny`
    cold_start: str = ""  # one sentence, for the report: what `tiny` learns from them before it is trained
    drills: Callable[[int, int], Sequence[Demonstration]] | None = None  # what `tiny` has to master before, likewise
    single_digits: bool = False  # the tokenizer of `tiny` makes each digit a token
    defaults: Mapping[str, Any] = field(default_factory=dict)  # settings, nested as `--config` takes them
    check: Callable[[], Coroutine[Any, Any, None]] | None = (
        None  # raises ValueError, before any work, for what cannot be used
    )
    seeded: bool = True  # False: `check` compares two resets with one task, or their user accepts that they differ
    comparison_tasks: int = 4096  # test tasks of a comparison before a promotion

    member: Callable[[Task], "EnvironmentSpec"] | None = None  # of a mixture: the environment that a task is of

    def of(self, task: Task) -> "EnvironmentSpec":
        """What says how an episode of this task is played: of a mixture the task's environment, else this one."""
        return self.member(task) if self.member else self

    def make(self, url: str = "") -> Environment:
        """The environment in this process, or on the OpenEnv server at `url`."""
        if not url:
            return self.local()
        if self.remote:
            return self.remote(url)
        from tasks.environments.client import RemoteEnvironment  # openenv takes seconds to import

        return RemoteEnvironment(url)
