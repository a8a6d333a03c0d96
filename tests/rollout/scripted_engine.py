"""Stands in for the engine, and thus for the policy: says what a test wants."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tasks.policy.chat import Chat
from tasks.rollout.engine import Completion


class ScriptedEngine:
    """Says `say(turn)` in each episode, which the seed of its replies names; letter by letter, in more tokens than
    than the tokenizer would take for the text."""

    def __init__(self, chat: Chat, say: Callable[[int], str]):
        self.chat, self.say = chat, say
        self.seen: dict[int, list[tuple[list[int], list[int]]]] = defaultdict(list)  # by episode: prompt, reply
        self.answers: dict[str, Completion] = {}

    def add(self, prompt: Sequence[int], *, seed: int, stop: Sequence[str] = (), **_: Any) -> str:
        text = self.say(len(self.seen[seed]))
        ids = [t for letter in text for t in self.chat.tokenizer.encode(letter, add_special_tokens=False)]
        if not any(text.endswith(end) for end in stop):
            ids.append(self.chat.end_id)
        self.seen[seed].append((list(prompt), ids))
        request = f"{seed}-{len(self.seen[seed])}"
        self.answers[request] = Completion(ids, [-0.5] * len(ids), truncated=False)
        return request

    @property
    def busy(self) -> bool:
        return bool(self.answers)

    def step(self) -> list[tuple[str, Completion]]:
        answers, self.answers = self.answers, {}
        return list(answers.items())

    def abort(self, requests: Any) -> None:
        assert not list(requests)
