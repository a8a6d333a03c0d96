import subprocess
import sys
from pathlib import Path

import pytest

from tasks.environments.catalog import ENVIRONMENT_NAMES, get_environment

ROOT = Path(__file__).parents[2]


def test_every_name_is_an_environment() -> None:
    for name in ENVIRONMENT_NAMES:
        kind = get_environment(name)
        assert kind.name == name
        assert list(kind.players) == ["optimum", "random", "always_stand"]
        games = kind.open_local()
        observation = games.reset([3])[0]
        assert kind.situation(observation)[0] in kind.rows and kind.situation(observation)[1] in kind.columns
        assert kind.agent.read(kind.best_moves()[kind.situation(observation)], observation) is not None


def test_the_agent_lets_replies_think_where_that_is_wanted() -> None:
    observation = get_environment("blackjack").open_local().reset([3])[0]
    thought = "Hm.\nSTAND"
    assert get_environment("blackjack").agent.read(thought, observation) is None
    assert get_environment("blackjack", thinking=True).agent.read(thought, observation) is not None


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=r'^environment is "poker"; allowed: blackjack\.$'):
        get_environment("poker")


def test_the_catalog_is_cheap_to_import() -> None:
    code = (
        "import sys, tasks.environments.catalog; "
        "print([m for m in ('openenv', 'pyspiel', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
