"""What the README and docs/ say is so: commands exist and take their inputs, links and names resolve, queries run on a
real run and give the numbers that plain Python finds in its rows."""

import functools
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from flytekit.clis.sdk_in_container import pyflyte

from tasks.config import DEFAULT_ENVIRONMENT, GrpoConfig
from tasks.environments.catalog import GROUP, get_environment
from tasks.records import ADVANTAGE, MESSAGE, REFERENCE, SAMPLE, read_batch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES, PAGE_LINES = 130, 150
CHECKED = {"", "sh", "python", "toml"}  # languages of blocks; "" is output, or a drawing
BLOCK = re.compile(
    r"^(?:<!-- listing of (?P<listing>\S+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
Row = dict[str, Any]


class Block(NamedTuple):
    """A fenced block."""

    page: str
    language: str
    text: str
    listing: str | None  # the file that it shows


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages, of these languages or of any."""
    found = [
        Block(page.name, match["language"], match["text"], match["listing"])
        for page in PAGES
        for match in BLOCK.finditer(page.read_text())
    ]
    return [block for block in found if not languages or block.language in languages]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return BLOCK.sub("", page.read_text())


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block as words: joined where a line ends in a backslash or within quotes."""
    line = ""
    for part in block.text.splitlines():
        line += part
        if line.endswith("\\"):
            line = line[:-1]
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # the quotation goes on
            line += "\n"
            continue
        line = ""
        while "&&" in words:
            yield words[: words.index("&&")]
            words = words[words.index("&&") + 1 :]
        if words:
            yield words[:-1] if words[-1] == "&" else words
    assert not line, f"{block.page}: a command does not end: {line}"


COMMANDS = [(block.page, words) for block in blocks("sh") for words in commands(block)]


def check_pyflyte(words: Sequence[str]) -> None:
    """Parse the line as pyflyte itself does, inputs and settings included, and go no further."""
    command: click.Command = pyflyte.main
    context, rest = None, [word for word in words if word != "--remote"]  # click makes records of a local run's inputs
    try:
        while True:
            context = command.make_context(command.name, rest, parent=context)
            if not isinstance(command, click.Group):
                break
            _, found, rest = command.resolve_command(context, [*context.protected_args, *context.args])
            assert found is not None, rest
            command = found
    except click.exceptions.Exit:  # of --help
        return
    environment, config = context.params.get("environment"), context.params.get("config")
    if config is not None:  # None: the defaults
        rollout = config.rollout if isinstance(config, GrpoConfig) else config
        spec = get_environment(environment or DEFAULT_ENVIRONMENT, rollout.environment_options)
        config.resolved(spec.defaults)
    elif environment is not None:
        get_environment(environment)


def check_make(words: Sequence[str]) -> None:
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_python(words: Sequence[str]) -> None:
    """The module is there, and has the options."""
    assert words[0] == "-m"
    spec = importlib.util.find_spec(words[1])
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))


def check_kubectl(words: Sequence[str]) -> None:
    assert (ROOT / words[words.index("-f") + 1]).is_file()


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "pyflyte": check_pyflyte,
    "make": check_make,
    "python": check_python,
    "kubectl": check_kubectl,
    "export": lambda words: None,
    "git": lambda words: None,
    "cd": lambda words: None,
    ".": lambda words: None,
}


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page}-{words[0]}" for page, words in COMMANDS])
def test_a_command_exists_and_takes_its_inputs(page: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    while "=" in words[0]:
        words = words[1:]
    assert words[0] in CHECKS, f"{page}: nothing checks {words[0]}"
    CHECKS[words[0]](words[1:])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("pyflyte run workflows/grpo.py grpo --sed 1", "--sed"),
        ("pyflyte run workflows/grpo.py ppo", "ppo"),
        ("""pyflyte run workflows/grpo.py grpo --config '{"rollout": {"gruops": 1}}'""", "gruops"),
        ("pyflyte run workflows/grpo.py grpo --environment poker", "poker"),
        ("make nothing", "nothing"),
        ("python -m tasks.environments.serve blackjack --prot 1", ""),
        ("kubectl apply -f images/nothing.yaml", ""),
    ],
)
def test_a_wrong_command_is_found(line: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    first, *rest = shlex.split(line)
    with pytest.raises((AssertionError, ValueError, AttributeError, click.ClickException)) as caught:
        CHECKS[first](rest)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short_and_its_links_lead_somewhere(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= (README_LINES if page.name == "README.md" else PAGE_LINES)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(file), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], target


def test_every_page_is_linked_from_the_readme() -> None:
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(re.findall(r"\]\(([^)#]+)", PAGES[0].read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_files_that_are_named_are_there(page: Path) -> None:
    names = re.findall(r"`([^`\n]+)`", prose(page))
    sections = set(GrpoConfig().whole())
    for name in names:
        section, _, field = name.partition(".")
        if section in sections and re.fullmatch(r"[a-z_.]+", field):
            functools.reduce(getattr, field.split("."), getattr(GrpoConfig(), section))
        if re.match(r"(tasks|workflows|tests|images|docs)/[\w./-]+$", name):
            assert (ROOT / name).exists(), name


def test_metrics_that_are_named_are_measured(reference_run: Path) -> None:
    measured = {
        name
        for path in reference_run.rglob("_metrics.json")
        for name in re.findall(r'"([a-z_]+/\w+)":', path.read_text())
    }
    sources = "".join(path.read_text() for path in (ROOT / "tasks").rglob("*.py"))
    kinds = {name.split("/")[0] for name in measured}
    for page in PAGES:
        for name in re.findall(r"`([a-z_]+/[a-z_0-9]+)`", prose(page)):
            if name.split("/")[0] in kinds and not (ROOT / name).exists():
                assert name in measured or f'"{name}"' in sources or name == "eval/pass_at_1", f"{page.name}: {name}"


def test_blocks_are_of_a_kind_that_is_checked() -> None:
    assert {block.language for block in blocks()} == CHECKED
    assert [block.page for block in blocks("python") if not block.listing] == ["trajectories.md"] * 4


def test_a_listing_is_the_file() -> None:
    listings = [block for block in blocks() if block.listing]
    assert [(block.page, block.listing) for block in listings] == [
        ("environments.md", "tests/traffic_lights/__init__.py"),
        ("own-data.md", "tests/odd_even/__init__.py"),
    ]
    for block in listings:
        assert block.text == (ROOT / block.listing).read_text()


def test_the_entry_point_is_of_our_group() -> None:
    (block,) = blocks("toml")
    ((name, target),) = tomllib.loads(block.text)["project"]["entry-points"][GROUP].items()
    module, _, attribute = target.partition(":")
    assert name and hasattr(importlib.import_module(module), attribute)


def test_the_table_of_columns_is_the_schema() -> None:
    (table,) = re.findall(r"^\| column .*?\n\n", prose(ROOT / "docs" / "trajectories.md"), re.M | re.S)
    named = [name for line in table.strip().splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert Counter(named) == Counter([*SAMPLE.names, REFERENCE.name, ADVANTAGE.name])
    assert all(f"`{field.name}`" in table for field in MESSAGE)


# The queries of docs/trajectories.md


@pytest.fixture
def rows(reference_run: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Every episode of the run; the present folder is the one in which it was started."""
    monkeypatch.chdir(reference_run.parents[1])
    batches = sorted((reference_run / "trajectories").iterdir())
    return [row for batch in batches for row in read_batch(batch).to_pylist()]


def run(number: int) -> dict[str, Any]:
    """What a query leaves, with this run's name in it."""
    block = [block for block in blocks("python") if not block.listing][number]
    assert "runs/monday/" in block.text
    names: dict[str, Any] = {}
    exec(compile(block.text.replace("runs/monday/", "runs/reference/"), block.page, "exec"), names)
    return names


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def by(rows: list[Row], key: Callable[[Row], object]) -> dict[Any, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def test_pandas_how_each_version_played(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    found = run(0)["versions"]
    flat = {group for group, of in by(rows, lambda r: r["group_id"]).items() if len({r["reward"] for r in of}) == 1}
    assert list(found.index) == [0, 1]
    for version, played in by(rows, lambda r: r["policy_version"]).items():
        assert found.loc[version, "raw_reward"] == pytest.approx(mean(r["raw_reward"] for r in played))
        assert found.loc[version, "invalid"] == mean(r["invalid"] for r in played)
        assert found.loc[version, "dropped"] == mean(r["group_id"] in flat for r in played)
        assert 0 < found.loc[version, "dropped"] < 1
    assert "dropped" in capsys.readouterr().out


def test_pyarrow_what_did_not_end_by_the_rules(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    names = run(1)
    wanted = [r for r in rows if r["policy_version"] == 0 and r["finish_reason"] != "finished"]
    keys = ("trajectory_id", "finish_reason", "messages")
    assert names["rows"] == [{key: row[key] for key in keys} for row in wanted] != []
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(wanted)
    for line, row in zip(shown, wanted, strict=True):
        assert line.startswith(f"{row['trajectory_id']} {row['finish_reason']} 'Cards ")
        assert line.endswith(repr(row["messages"][-1]["content"]))
    opened = [fragment.path for fragment in names["episodes"].get_fragments(names["unfinished"])]
    assert opened == ["runs/reference/trajectories/00000/policy_version=00000/part-00000.arrow"]


def test_duckdb_what_was_learned_hand_by_hand(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    query = run(2)["hands"]
    hands = by(rows, lambda r: r["messages"][1]["content"].split(", ")[1])
    assert query.columns == ["hand", "episodes", "hit_first", "hit_then", "reward_first", "reward_then"]
    found = query.fetchall()
    assert [(hand, count) for hand, count, *_ in found] == sorted(
        ((hand, len(played)) for hand, played in hands.items()), key=lambda pair: (-pair[1], pair[0])
    )
    for hand, _, *numbers in found:
        halves = [[r for r in hands[hand] if r["policy_version"] == v] for v in (0, 1)]
        hits = [mean(r["messages"][2]["content"].upper() == "HIT" for r in half) for half in halves]
        assert numbers == pytest.approx([*hits, *(mean(r["raw_reward"] for r in half) for half in halves)])
    assert {number for _, _, *numbers in found for number in numbers} > {None, 0.5}  # not all are the same
    assert found[0][0] in capsys.readouterr().out


def test_duckdb_outcomes_of_each_version(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    query = run(3)["outcomes"]
    assert query.columns == ["policy_version", "outcome", "episodes", "reward", "turns", "agreement"]
    found = query.fetchall()
    played = by(rows, lambda r: (r["policy_version"], r["outcome"]))
    assert [(version, outcome) for version, outcome, *_ in found] == sorted(
        played, key=lambda pair: (pair[0], -len(played[pair]), pair[1])
    )
    for version, outcome, *numbers in found:
        of = played[version, outcome]
        agreement = mean(value for r in of for name, value in r["metrics"] if name == "agreement")
        expected = [len(of), mean(r["raw_reward"] for r in of), mean(r["turns"] for r in of), agreement]
        assert numbers == pytest.approx(expected)
    assert {"won", "lost"} <= {outcome for _, outcome in played}
    assert "agreement" in capsys.readouterr().out
