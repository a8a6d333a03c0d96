"""Who becomes champion, over a real SQLite file: differences made by hand, and the nights of a schedule."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tasks.config import GrpoConfig, Run
from tasks.evaluation.compare import Comparison, paired
from tasks.promotion.retraining import begin, decide, night_seed
from tasks.tracking import registry
from tasks.tracking.mlflow_store import client, experiment

MODEL = "grpo-blackjack"
NIGHT = datetime(2026, 11, 30, 2, tzinfo=UTC)


def registered(uri: str, digest: str) -> registry.Version:
    return registry.register(uri, registry.Version(MODEL, f"/{digest}", digest), lambda place: True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run and three versions, of the policies aa, bb and cc."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    for digest in ("aa", "bb", "cc"):
        registered(uri, digest)
    run_id = client(uri).create_run(experiment(uri)).info.run_id
    return Run(
        name="monday",
        token="6f9c",
        seed=night_seed(NIGHT),
        environment="blackjack",
        environment_url="",
        mlflow_run_id=run_id,
        tracking_uri=uri,
    )


def compared(policy: str, other: str, *, won: int, lost: int) -> Comparison:
    """100 tasks that the other one loses; `won` of them the policy wins, and `lost` are the other way round."""
    other_rewards = [1.0] * lost + [-1.0] * (100 - lost)
    rewards = [-1.0] * lost + [1.0] * won + [-1.0] * (100 - lost - won)
    by_task = [{str(task): reward for task, reward in enumerate(of)} for of in (rewards, other_rewards)]
    return Comparison(policy, other, seed=5, **paired(*by_task))  # type: ignore[arg-type]


def number(run: Run) -> int:
    found = registry.champion(run.tracking_uri, MODEL)
    return found.number if found else 0


def test_what_is_surely_better_becomes_champion_and_what_is_not_does_not(run: Run) -> None:
    def decided(digest: str, other: str, **tasks: int) -> dict[str, Any]:
        version = registered(run.tracking_uri, digest)
        return decide(run, version, compared(digest, other, **tasks))

    # The first one: mean 0.04, deviation 0.28, half-width 0.055.
    refused = decided("bb", "aa", won=2, lost=0)
    assert not refused["promoted"] and number(run) == 0
    assert refused["why"] == (
        f"{MODEL} has no champion yet, version 2 is not surely better than what it was trained from: "
        "+0.0400 ±0.0552 an episode on 100 tasks (better on 2, worse on 0, the same on 98)"
    )
    # Mean 0.2, deviation 0.60, half-width 0.118.
    first = decided("bb", "aa", won=10, lost=0)
    assert first["promoted"] and number(run) == 2
    assert first["why"].startswith(f"version 2 of {MODEL} is champion, the first one: +0.2000 ±0.118")
    # Mean 0.12, deviation 0.82, half-width 0.162: more tasks won than lost, and no proof.
    stays = decided("cc", "bb", won=12, lost=6)
    assert not stays["promoted"] and number(run) == 2
    assert stays["why"].startswith(
        f"version 2 of {MODEL} stays champion, version 3 is not surely better than it: +0.12"
    )
    worse = decided("cc", "bb", won=0, lost=10)
    assert not worse["promoted"] and number(run) == 2 and "-0.2000" in worse["why"]
    second = decided("cc", "bb", won=20, lost=1)
    assert second["promoted"] and number(run) == 3
    assert decided("cc", "bb", won=20, lost=1) == second  # a stage that is repeated says the same
    assert (second["model"], second["version"], second["tasks"], second["seed"]) == (MODEL, 3, 100, 5)

    tags = client(run.tracking_uri).get_model_version(MODEL, "3").tags
    assert tags["promotion"].endswith(second["why"])
    assert (tags["comparison.difference"], tags["comparison.tasks"]) == ("0.38", "100")
    assert client(run.tracking_uri).get_run(run.mlflow_run_id).data.tags["promotion"] == second["why"]


def test_better_than_a_champion_of_yesterday_is_not_enough(run: Run) -> None:
    registry.promote(run.tracking_uri, MODEL, 2, "meanwhile")
    found = decide(run, registry.find(run.tracking_uri, f"models:/{MODEL}/3"), compared("cc", "aa", won=30, lost=0))
    assert not found["promoted"] and number(run) == 2
    assert found["why"].startswith(
        f"version 2 of {MODEL} stays champion, it became so meanwhile: version 3 was compared"
    )
    assert client(run.tracking_uri).get_run(run.mlflow_run_id).data.tags["promotion"] == found["why"]


def test_better_than_a_champion_that_was_demoted_meanwhile_is_not_enough(run: Run) -> None:
    for version in (1, 2):
        registry.promote(run.tracking_uri, MODEL, version, "")
    registry.demote(run.tracking_uri, MODEL)  # while version 3 was trained from version 2
    found = decide(run, registry.find(run.tracking_uri, f"models:/{MODEL}/3"), compared("cc", "bb", won=30, lost=0))
    assert not found["promoted"] and number(run) == 1
    assert found["why"].startswith(f"version 1 of {MODEL} stays champion, it became so meanwhile")


def test_each_night_has_its_own_seed_and_begins_with_the_champion(run: Run) -> None:
    def began(name: str, start: datetime | None) -> tuple[str, str, int]:
        return begin(name, start, "tiny", "blackjack", 100, GrpoConfig())

    assert began("", NIGHT) == ("retraining-20261130-020000", "tiny", 1796004000)  # seconds since 1970
    registry.promote(run.tracking_uri, MODEL, 2, "")
    assert began("", NIGHT + timedelta(days=1)) == ("retraining-20261201-020000", f"models:/{MODEL}/2", 1796090400)
    elsewhere = NIGHT.astimezone(timezone(timedelta(hours=-7)))
    assert began("", elsewhere) == began("", NIGHT) == began("", NIGHT.replace(tzinfo=None))
    now = datetime.now(UTC).timestamp()
    assert now - 1 <= began("a", None)[2] <= now + 5
    other = GrpoConfig.from_dict({"tracking": {"model": "another"}})
    assert begin("a", NIGHT, "tiny", "blackjack", 100, other)[1] == "tiny"
    with pytest.raises(ValueError, match="tasks is 1; allowed: 2 or more"):
        begin("a", NIGHT, "tiny", "blackjack", 1, GrpoConfig())


def test_a_night_that_comes_too_late_is_skipped_with_a_sentence(run: Run) -> None:
    def began(hours: float, allowed: float) -> tuple[str, str, int]:
        start = datetime.now(UTC) - timedelta(hours=hours)
        return begin("", start, "tiny", "blackjack", 100, GrpoConfig(), allowed)

    assert began(11.9, 12)[1] == "tiny" == began(300, 0)[1]
    with pytest.raises(ValueError) as caught:
        began(26, 12)
    found = re.fullmatch(
        r"the night of \d{4}-\d\d-\d\d \d\d:\d\d UTC is skipped, it was due 26\.0 hours ago; "
        r"allowed: max_delay_hours = 12\.",
        str(caught.value),
    )
    assert found, str(caught.value)
    with pytest.raises(ValueError, match="max_delay_hours is -1; allowed: 0 or more"):
        began(0, -1)


def test_a_night_that_was_interrupted_goes_on_as_it_began(run: Run) -> None:
    Path("runs/monday").mkdir(parents=True)
    inputs = {"policy": "tiny", "seed": 1796004000}
    Path("runs/monday/run.json").write_text(json.dumps({"inputs": inputs}))
    registry.promote(run.tracking_uri, MODEL, 2, "")
    for start in (None, NIGHT):
        assert begin("monday", start, "tiny", "blackjack", 100, GrpoConfig()) == ("monday", "tiny", 1796004000)
    # Another start is another run; the name is refused where the run is opened.
    assert begin("monday", NIGHT + timedelta(days=1), "tiny", "blackjack", 100, GrpoConfig())[2] == 1796090400
