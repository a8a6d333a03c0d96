"""report.html: one valid file that asks for nothing else, and holds the numbers."""

import base64
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from tasks.config import Run
from tasks.evaluation.evaluate import Evaluation, Example
from tasks.evaluation.page import Origin, Picture, evaluation_page, framed, report_page
from tasks.policy.checkpoint import Manifest

VOID = {"meta", "img", "source", "br", "hr", "link", "input"}
PNG = b"\x89PNG\r\n\x1a\n of the test"
RUN = Run("monday", "6f9c", 3, "blackjack", "http://10.0.0.7:8000", "4be1", "http://me:secret@mlflow.internal")
PLAYER = {
    "expected_reward": -0.0361,
    "expected_reward_ci95": 0.02,
    "win_rate": 0.436,
    "push_rate": 0.092,
    "loss_rate": 0.472,
}
MESSAGES = [
    {"role": "system", "content": "Play <b>well</b> & win."},
    {"role": "user", "content": "Cards 10 6, hard 16. Dealer 10."},
    {"role": "assistant", "content": "STAND"},
]
BEFORE = Evaluation(
    policy_version=0,
    games=4096,
    expected_reward=-0.806,
    expected_reward_ci95=0.013,
    win_rate=0.09,
    win_rate_ci95=0.006,
    push_rate=0.015,
    push_rate_ci95=0.003,
    loss_rate=0.895,
    loss_rate_ci95=0.007,
    regret=0.77,
    regret_ci95=0.021,
    invalid_rate=0.0,
    invalid_rate_ci95=0.0,
    agreement=0.426,
    agreement_ci95=0.008,
    sampled_expected_reward=-0.374,
    players={"optimum": PLAYER, "always_stand": {**PLAYER, "expected_reward": -0.17}},
)
AFTER = replace(
    BEFORE,
    policy_version=2,
    expected_reward=-0.048,
    expected_reward_ci95=0.0213,
    regret=0.0114,
    examples=[
        Example("lost", -1.0, False, MESSAGES, [False]),
        Example("invalid", -1.0, True, [*MESSAGES[:2], {"role": "assistant", "content": "x" * 5000}], [None]),
    ],
)
ORIGIN = Origin(
    parameters={"policy": "/home/me/secrets/my-model", "seed": "3", "training.epochs": "4", "buffer.reuse": "1"},
    tags={"git.commit": "c0ffee" * 6 + "abcd", "git.dirty": "true", "version.torch": "2.13.0", "mlflow.user": "me"},
    started=1_796_014_266.0,
)


class Page(HTMLParser):
    """Reads a page, and complains where an element is not closed, or one is closed that is not open."""

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
    return report_page(RUN, [BEFORE, AFTER], [0, 2500], pictures, policy, origin, 1_796_014_666.0)


def test_it_is_a_whole_page() -> None:
    text = page()
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    read = Page(text)
    for needed in ("<title>", '<meta charset="utf-8">', "</html>"):
        assert text.count(needed) == 1
    assert [value for tag, name, value in read.attributes if (tag, name) == ("img", "alt")] == ["What it learned."]


def test_nothing_is_asked_of_anybody_else() -> None:
    text = page()
    addresses = [v for _, name, v in Page(text).attributes if name in ("src", "href", "srcset", "action", "poster")]
    assert addresses == [f"data:image/png;base64,{base64.b64encode(p).decode()}" for p in (PNG + b", dark", PNG)]
    assert not re.search(r"url\(|@import|<script|<link|https?:", text)


def test_nothing_private_is_told() -> None:
    text = page()
    assert not [word for word in ("/home", "secret", "10.0.0.7", "mlflow.internal", "mlflow.user") if word in text]
    assert "my-model" in text


def test_the_numbers_are_there() -> None:
    said = Page(page()).texts
    for cell in ("\u22120.048", "±0.021", "0.011 ±0.021", "43.6%", "\u22120.806 ±0.013", "2,500"):
        assert cell in said, cell
    assert "before \u22120.806" in said and "optimum \u22120.036" in said
    settings = said[said.index("default") + 1 :]
    assert settings[:3] == ["training.epochs", "4", "2"]  # buffer.reuse is as it always is
    assert settings[3] == "What made it"
    made = dict(zip(settings[4::2], settings[5::2], strict=False))
    assert made["commit"] == "c0ffee" * 6 + "abcd, with changes"
    assert made["policy"] == "version 2, SHA-256 " + "5f0c" * 16
    assert made["versions"] == "torch 2.13.0"
    assert made["seed"] == "3"
    assert made["ended"].endswith(", 6:40 later")


def test_games_are_shown_as_they_were_said() -> None:
    text = page()
    said = Page(text).texts
    assert "Play <b>well</b> & win." in said and "<b>" not in text
    assert "not the optimum's move" in said and "unreadable" in said and "as the optimum" not in said
    assert "x" * 2000 + " …" in said  # a long reply is cut


def test_without_an_answer_of_mlflow_the_rest_is_told() -> None:
    said = Page(page(origin=None)).texts
    assert "\u22120.048" in said and "version 2, SHA-256 " + "5f0c" * 16 in said and "3" in said
    assert "Settings that differ from the defaults" not in said


def test_the_page_of_one_evaluation_names_all_players() -> None:
    read = Page(evaluation_page(AFTER, [Picture("Choices.", PNG)]))
    assert [text for text in read.texts if text in ("policy", "always stand", "optimum")] == [
        "policy",
        "always stand",
        "optimum",
    ]
    assert "\u22120.170 ±0.020" in read.texts


def test_a_deck_frames_a_page_whole() -> None:
    inner = page()
    (source,) = [value for _, name, value in Page(framed(inner)).attributes if name == "srcdoc"]
    assert source == inner and unescape(framed(inner)).count("<!DOCTYPE") == 1


@pytest.mark.parametrize("reward, shown", [(1.0, "+1"), (0.0, "0"), (-0.5, "\u22120.5")])
def test_a_reward_is_shown_with_its_sign(reward: float, shown: str) -> None:
    found = replace(AFTER, examples=[Example("won", reward, False, MESSAGES, [True])])
    assert shown in Page(evaluation_page(found, [])).texts
