import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.environments.catalog import environment_names, get_environment
from tasks.environments.interface import EnvironmentSpec
from tasks.environments.scripted import play_baseline
from tasks.environments.tool_use import TOOL_METRICS

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "tasks" / "environments"
OF_TOOLS = {metric.key for metric in TOOL_METRICS}  # of calls, which a baseline may not make
NEED_OPTIONS = {"prompts", "openenv"}  # their tests are in files of their own


def test_every_name_is_an_environment_that_can_be_played() -> None:
    assert {"blackjack", *NEED_OPTIONS} <= set(environment_names())
    for name in set(environment_names()) - NEED_OPTIONS:
        spec = get_environment(name)
        assert spec.name == name
        tasks = [spec.task("train", index) for index in range(20)]
        assert tasks == [spec.task("train", index) for index in range(20)]
        assert not {task.id for task in tasks} & {spec.task("test", index).id for index in range(20)}
        for baseline in spec.baselines:
            episodes = play_baseline(spec, baseline, tasks)
            assert all(episode.finish_reason == "finished" for episode in episodes)
            assert {metric.key for metric in spec.metrics} - OF_TOOLS <= {
                *(key for e in episodes for step in e.steps for key in step.metrics),
                *spec.score(episodes[0]),
            }


def test_an_environment_is_a_folder_an_entry_point_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "somebodys" / "game.py").write_text("from traffic_lights import SPEC\n")
    info = tmp_path / "somebodys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[flyte_grpo.environments]\nlights = somebodys.game:SPEC\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "lights" in environment_names()
    assert get_environment("lights") is get_environment("somebodys.game")
    with pytest.raises(
        ValueError, match=r'^environment is "poker"; allowed: blackjack, .*lights, .*or package.module of'
    ):
        get_environment("poker")


@pytest.mark.parametrize("name", ["poker", "", "a b", "tasks.nothing", "os.path", "../blackjack"])
def test_an_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match=f'^environment is "{re.escape(name)}"; allowed: blackjack'):
        get_environment(name)


def test_an_environment_that_lacks_a_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        get_environment("needy")


def test_options_are_those_of_the_environment() -> None:
    with pytest.raises(
        ValueError, match=r"^an option of the environment is \"decks\"; allowed: none, blackjack has no"
    ):
        get_environment("blackjack", {"decks": 2})


def test_thinking_goes_to_the_environments_that_know_it() -> None:
    async def reward(spec: EnvironmentSpec) -> bool:
        environment = spec.make()
        await environment.reset(spec.task("train", 3))
        return (await environment.step({"role": "assistant", "content": "Hm.\nSTAND"})).valid

    assert not asyncio.run(reward(get_environment("blackjack")))
    assert asyncio.run(reward(get_environment("blackjack", thinking=True)))


def test_the_catalog_is_cheap_to_import() -> None:
    code = (
        f"import sys; from tasks.environments.catalog import *; names = set(environment_names()) - {NEED_OPTIONS}; "
        "[get_environment(name) for name in names]; "
        "print([m for m in ('openenv', 'pyspiel', 'numpy', 'torch', 'vllm', 'mlflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def names_of(folder: Path) -> set[str]:
    """An environment's own words: its name, its baselines and its metrics."""
    if folder.name in NEED_OPTIONS:  # what they have is in a user's hand, and their names are plain English
        return {f"environments.{folder.name}"}
    spec = get_environment(folder.name)
    plain_english = {"random", "lost", "exact", "success"}  # a random number, a lost pod; what several count
    return {folder.name, *spec.baselines, *(metric.key for metric in spec.metrics)} - plain_english - OF_TOOLS


@pytest.mark.parametrize("folder", [p for p in ENVIRONMENTS.iterdir() if (p / "__init__.py").is_file()])
def test_nothing_outside_its_folder_knows_an_environment(folder: Path) -> None:
    words = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names_of(folder))))})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for top in ("tasks", "workflows")
        for path in sorted((ROOT / top).rglob("*.py"))
        if not path.is_relative_to(folder)
        for line in path.read_text().splitlines()
        if words.search(line)
        and not line.startswith("DEFAULT_ENVIRONMENT = ")  # what the workflows' input is by default
    ]
    assert found == []
