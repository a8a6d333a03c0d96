"""report.html: one valid file without references to others, and the numbers in it."""

import base64
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from evaluation.counting import SPEC as COUNTING
from tasks.config import GrpoConfig, Run
from tasks.environments.interface import Metric
from tasks.evaluation.page import Picture, evaluation_page, framed, report_page
from tasks.evaluation.records import Evaluation, Example, Mean, Results
from tasks.evaluation.tracked import Origin
from tasks.policy.checkpoint import Manifest

VOID = {"meta", "img", "source", "br", "hr", "link", "input"}
PNG = b"\x89PNG\r\n\x1a\n of the test"
RUN = Run(
    name="monday",
    token="6f9c",
    seed=3,
    environment="counting",
    environment_url="http://10.0.0.7:8000",
    mlflow_run_id="4be1",
    tracking_uri="http://me:secret@mlflow.internal",
    given=GrpoConfig.from_dict({"training": {"epochs": 4}}),
)
MESSAGES = [
    {"role": "system", "content": "Play <b>well</b> & win."},
    {"role": "user", "content": "Cards 10 6, hard 16. Dealer 10."},
    {"role": "assistant", "content": "STAND", "reward": -1.0, "note": "the worse move", "valid": True},
]
ENDLESS = {"role": "assistant", "content": "x" * 5000, "reward": 0.0, "note": "", "valid": False}
SPEC = replace(
    COUNTING, metrics=(Metric("wins", "wins", ".1%"), Metric("regret", "regret", headline=True)), baselines={}
)
BEST = Results(
    reward=Mean(-0.0361, 0.02),
    metrics={"wins": Mean(0.436, 0.01), "regret": Mean(0.0, 0.0), "invalid": Mean(0.0, 0.0)},
)
BEFORE = Evaluation(
    reward=Mean(-0.806, 0.013),
    metrics={"wins": Mean(0.09, 0.006), "regret": Mean(0.77, 0.021), "invalid": Mean(0.0, 0.0)},
    policy_version=0,
    environment="counting",
    tasks=4096,
    seed=0,
    sampled_reward=Mean(-0.374, 0.05),
    baselines={"best": BEST, "always_stand": replace(BEST, reward=Mean(-0.17, 0.02))},
)
AFTER = replace(
    BEFORE,
    policy_version=2,
    reward=Mean(-0.048, 0.0213),
    metrics={**BEFORE.metrics, "regret": Mean(0.0114, 0.021)},
    examples=[
        Example(outcome="lost", reward=-1.0, sampled=False, messages=MESSAGES),
        Example(outcome="invalid", reward=-1.0, sampled=True, messages=[*MESSAGES[:2], ENDLESS]),
    ],
)
ORIGIN = Origin(
    parameters={"policy": "/home/me/secrets/my-model", "seed": "3"},
    tags={"git.commit": "c0ffee" * 6 + "abcd", "git.dirty": "true", "version.torch": "2.13.0", "mlflow.user": "me"},
    started=1_796_014_266.0,
)


class Page(HTMLParser):
    """Reads a page, and fails where an element is not closed, or one is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and data.strip():
            self.texts.append(data.strip())


def page(origin: Origin | None = ORIGIN) -> str:
    pictures = [Picture("What it learned.", PNG, PNG + b", dark")]
    policy = Manifest(2, "5f0c" * 16, "b2a1" * 16)
    return report_page(RUN, SPEC, [BEFORE, AFTER], [0, 2500], pictures, policy, origin, 1_796_014_666.0)


def test_it_is_a_whole_page() -> None:
    text = page()
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    read = Page(text)
    for needed in ("<title>", '<meta charset="utf-8">', "</html>"):
        assert text.count(needed) == 1
    assert [value for tag, name, value in read.attributes if (tag, name) == ("img", "alt")] == ["What it learned."]


def test_it_says_what_a_cold_start_taught() -> None:
    spec, taught = replace(SPEC, cold_start="tiny had imitated random counting."), "tiny had imitated random counting."
    policy = Manifest(2, "5f0c" * 16, "b2a1" * 16)
    for start, shown in (("tiny", True), ("/models/mine", False)):
        text = report_page(RUN.replace(policy=start), spec, [BEFORE, AFTER], [0, 2500], [], policy, None, 0.0)
        assert (taught in text) == shown


def test_it_refers_to_nothing_outside() -> None:
    text = page()
    addresses = [v for _, name, v in Page(text).attributes if name in ("src", "href", "srcset", "action", "poster")]
    assert addresses == [f"data:image/png;base64,{base64.b64encode(p).decode()}" for p in (PNG + b", dark", PNG)]
    assert not re.search(r"url\(|@import|<script|<link|https?:", text)


def test_it_tells_nothing_private() -> None:
    text = page()
    assert not [word for word in ("/home", "secret", "10.0.0.7", "mlflow.internal", "mlflow.user") if word in text]
    assert "my-model" in text


def test_the_numbers_are_there() -> None:
    said = Page(page()).texts
    for cell in ("\u22120.048", "±0.021", "0.011 ±0.021", "43.6%", "\u22120.806 ±0.013", "2,500", "always stand"):
        assert cell in said, cell
    # A card for the reward and one for each headline: now, before, and what the first baseline has.
    first = said.index("expected reward")
    cards = ["expected reward", "\u22120.048", "±0.021", "before \u22120.806", "best \u22120.036"]
    cards += ["regret", "0.011", "±0.021", "before 0.770", "best 0.000"]
    assert said[first : first + len(cards)] == cards
    assert said[first + len(cards)] == "In numbers"
    settings = said[said.index("default") + 1 :]
    assert settings[:3] == ["training.epochs", "4", "1"]
    assert settings[3] == "What made it"
    made = dict(zip(settings[4::2], settings[5::2], strict=False))
    assert made["commit"] == "c0ffee" * 6 + "abcd, with changes"
    assert made["policy"] == "version 2, SHA-256 " + "5f0c" * 16
    assert made["versions"] == "torch 2.13.0"
    assert made["seed"] == "3"
    assert made["ended"].endswith(", 6:40 later")


def test_every_evaluation_has_a_row() -> None:
    said = Page(page()).texts
    names = ["policy", "episodes played", "expected reward", "sampled, not greedy", "wins", "regret", "invalid replies"]
    begin = said.index("Evaluations") + 1
    assert said[begin : begin + 9] == [*names, "0", "0"]
    assert said[begin + 14 : begin + 17] == ["2", "2,500", "\u22120.048 ±0.021"]


def test_episodes_are_shown_as_they_went() -> None:
    text = page()
    said = Page(text).texts
    assert "Play <b>well</b> & win." in said and "<b>" not in text
    assert "the worse move  \u22121" in said  # the note, and the reward of the step
    assert "invalid" in said and '<p class="judged bad">invalid</p>' in text
    assert "x" * 2000 + " …" in said  # a long reply is cut


def test_tool_calls_results_and_errors_are_shown() -> None:
    call = {"id": "1", "name": "python", "arguments": '{"code": "1+1"}'}
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    failed = Example(outcome="error", reward=0.0, sampled=False, messages=messages, error="the sandbox went away")
    said = Page(evaluation_page(SPEC, replace(AFTER, examples=[failed]), [])).texts
    shown = said[said.index("1+1?") :]
    assert shown == ["1+1?", 'python({"code": "1+1"})', "2", "the sandbox went away"]


def test_without_an_answer_of_mlflow_the_rest_is_told() -> None:
    said = Page(page(origin=None)).texts
    assert "\u22120.048" in said and "version 2, SHA-256 " + "5f0c" * 16 in said and "3" in said
    assert said[said.index("default") + 1 :][:3] == ["training.epochs", "4", "1"]


def test_an_environment_without_metrics_baselines_and_figures_has_a_page_without_empty_parts() -> None:
    bare = replace(BEFORE, metrics={"invalid": Mean(0.0, 0.0)}, baselines={})
    plain = RUN.replace(given=GrpoConfig())
    text = report_page(
        plain, COUNTING, [bare, bare], [0, 10], [], Manifest(2, "5f0c" * 16, "b2a1" * 16), None, 1_796_014_666.0
    )
    said = Page(text).texts
    assert said.count("expected reward") == 3  # its card, its row, and its column in the table of evaluations
    assert [word for word in ("Pictures", "Episodes", "best", "wins", "setting") if word in said] == []
    assert "before \u22120.806</small>" in text and "<td></td>" not in text and "None" not in said


def test_the_page_of_one_evaluation_names_all_baselines() -> None:
    read = Page(evaluation_page(SPEC, AFTER, [Picture("Choices.", PNG)]))
    names = ("policy", "always stand", "best")
    assert [text for text in read.texts if text in names] == ["policy", "best", "always stand"]
    assert "\u22120.170 ±0.020" in read.texts


def test_a_deck_frames_a_page_whole() -> None:
    inner = page()
    (source,) = [value for _, name, value in Page(framed(inner)).attributes if name == "srcdoc"]
    assert source == inner and unescape(framed(inner)).count("<!DOCTYPE") == 1


@pytest.mark.parametrize("reward, shown", [(1.0, "+1"), (0.0, "0"), (-0.5, "\u22120.5")])
def test_a_reward_is_shown_with_its_sign(reward: float, shown: str) -> None:
    found = replace(AFTER, examples=[Example(outcome="won", reward=reward, sampled=False, messages=MESSAGES[:2])])
    assert shown in Page(evaluation_page(SPEC, found, [])).texts
