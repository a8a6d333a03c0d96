"""The README's queries, run as pasted on a real run; the numbers again in plain Python over its rows."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tasks.records import read_batch

README = Path(__file__).parents[2] / "README.md"
Row = dict[str, object]


@pytest.fixture
def rows(reference_run: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Every game of the run; the present folder is the one in which it was started."""
    monkeypatch.chdir(reference_run.parents[1])
    batches = sorted((reference_run / "trajectories").iterdir())
    return [row for batch in batches for row in read_batch(batch).to_pylist()]


def run(library: str) -> dict[str, object]:
    """What the block of the README that comes after "With <library>" leaves, with this run's name in it."""
    (section,) = re.findall(r"^## Reading a run's trajectories\n(.*?)^## ", README.read_text(), re.M | re.S)
    (block,) = re.findall(rf"^[^`]*\bWith\s{library}\b.*?^```python\n(.*?)^```", section, re.M | re.S)
    assert "runs/monday/" in block
    names: dict[str, object] = {}
    exec(compile(block.replace("runs/monday/", "runs/reference/"), library, "exec"), names)
    return names


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def by(rows: list[Row], key: Callable[[Row], object]) -> dict[object, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def test_pandas_how_each_version_played(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    found = run("pandas")["versions"]
    flat = {group for group, of in by(rows, lambda r: r["group_id"]).items() if len({r["reward"] for r in of}) == 1}
    assert list(found.index) == [0, 1]
    for version, played in by(rows, lambda r: r["policy_version"]).items():
        assert found.loc[version, "reward"] == pytest.approx(mean(r["reward"] for r in played))
        assert found.loc[version, "invalid"] == mean(r["invalid"] for r in played)
        assert found.loc[version, "dropped"] == mean(r["group_id"] in flat for r in played)
        assert 0 < found.loc[version, "dropped"] < 1
    assert "dropped" in capsys.readouterr().out


def test_pyarrow_what_did_not_end_by_the_rules(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    names = run("pyarrow")
    wanted = [r for r in rows if r["policy_version"] == 0 and r["finish_reason"] != "finished"]
    keys = ("trajectory_id", "finish_reason", "messages")
    assert names["rows"] == [{key: row[key] for key in keys} for row in wanted] != []
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(wanted)
    for line, row in zip(shown, wanted, strict=True):
        assert line.startswith(f"{row['trajectory_id']} {row['finish_reason']} 'Cards ")
        assert line.endswith(repr(row["messages"][-1]["content"]))
    opened = [fragment.path for fragment in names["games"].get_fragments(names["ended"])]
    assert opened == ["runs/reference/trajectories/00000/policy_version=00000/part-00000.arrow"]


def test_duckdb_what_was_learned_hand_by_hand(rows: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    openings = run("DuckDB")["openings"]
    hands = by(rows, lambda r: r["messages"][1]["content"].split(", ")[1])
    assert openings.columns == ["opening", "games", "hit_first", "hit_then", "reward_first", "reward_then"]
    found = openings.fetchall()
    assert [(hand, games) for hand, games, *_ in found] == sorted(
        ((hand, len(played)) for hand, played in hands.items()), key=lambda pair: (-pair[1], pair[0])
    )
    for hand, _, *numbers in found:
        halves = [[r for r in hands[hand] if r["policy_version"] == v] for v in (0, 1)]
        hits = [mean(r["messages"][2]["content"].upper() == "HIT" for r in half) for half in halves]
        assert numbers == pytest.approx([*hits, *(mean(r["reward"] for r in half) for half in halves)])
    assert {number for _, _, *numbers in found for number in numbers} > {None, 0.5}  # not all are the same
    assert found[0][0] in capsys.readouterr().out
