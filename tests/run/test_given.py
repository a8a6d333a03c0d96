"""Settings given to a command: what cannot be read is one sentence with the file and the place."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from flytekit.clis.sdk_in_container import pyflyte
from hypothesis import given
from hypothesis import strategies as st

from tasks.run.given import read_given

ROOT = Path(__file__).parents[2]
ALLOWED = "; allowed: settings as JSON, or the path of a JSON or YAML file."
FILES = {
    "cut.json": b'{"rollout": {"groups": 3',
    "broken.yaml": b"rollout:\n  groups: 3\n bad\n",
    "tabs.yml": b"rollout:\n\tgroups: 3\n",
    "twice.json": b'{"rollout": {"groups": 3, "groups": 4}}',
    "twice.yaml": b"rollout:\n  groups: 3\n  groups: 4\n",
    "binary.yaml": b"\x00\xff\xfe",
    "control.yaml": b"a: \x01\n",
    "object.yaml": b"!!python/object/apply:os.system ['true']\n",
    "lfs.json": b"version https://git-lfs.github.com/spec/v1\n",
    "empty.json": b"",
}
BROKEN = {
    "cut.json": "\"cut.json\", which is no JSON (Expecting ',' delimiter, line 1 column 25)",
    "broken.yaml": "\"broken.yaml\", which is no YAML (expected <block end>, but found '<scalar>', line 3 column 2)",
    "tabs.yml": "\"tabs.yml\", which is no YAML (found character '\\t' that cannot start any token, line 2 column 1)",
    "twice.json": "\"twice.json\", which has the key 'groups' twice",
    "twice.yaml": "\"twice.yaml\", which has the key 'groups' twice",
    "binary.yaml": '"binary.yaml", which cannot be read (',
    "control.yaml": '"control.yaml", which is no YAML (',
    "object.yaml": '"object.yaml", which is no YAML (could not determine a constructor for the tag',
    "lfs.json": '"lfs.json", which is no JSON (Expecting value, line 1 column 1)',
    "empty.json": '"empty.json", which is no JSON (Expecting value, line 1 column 1)',
    "nowhere.yaml": '"nowhere.yaml", which is no file',
    "folder": '"folder", which cannot be read (Is a directory)',
    "": '"", which cannot be read (Is a directory)',
    '{"rollout": ': '"{\\"rollout\\": ", which is no JSON (Expecting value, line 1 column 13)',
    '{"a": 1, "a": 2}': '"{\\"a\\": 1, \\"a\\": 2}", which has the key \'a\' twice',
    "{rollout: {}}": '"{rollout: {}}", which is no JSON (Expecting property name',
    "groups=3": '"groups=3", which is no file',
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "600")
    (tmp_path / "folder").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("value", BROKEN)
def test_what_is_broken_is_named_with_its_place(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_given(value)
    said = str(caught.value)
    assert said.startswith(f"config is {BROKEN[value]}") and said.endswith(ALLOWED) and "\n" not in said


def test_json_a_json_file_and_a_yaml_file_are_the_same(home: Path) -> None:
    wanted = {"rollout": {"groups": 3, "environment_options": {"a": [1, 2.5, None, True]}}}
    (home / "a.json").write_text(json.dumps(wanted))
    (home / "a.yaml").write_text(
        "base: &base {groups: 3}\nrollout:\n  <<: *base\n  environment_options: {a: [1, 2.5, null, true]}"
    )
    assert read_given(json.dumps(wanted)) == read_given(" \n" + json.dumps(wanted)) == read_given("a.json") == wanted
    assert read_given("a.yaml")["rollout"] == wanted["rollout"]
    assert read_given("7") == 7 and read_given("null") is None


@given(st.text() | st.binary().map(lambda given: given.decode(errors="surrogateescape")))
def test_any_text_is_a_value_or_one_sentence(value: str) -> None:
    try:
        found = read_given(value)
    except ValueError as error:
        assert str(error).endswith(ALLOWED) and "\n" not in str(error)
    else:
        assert found == json.loads(value)


COMMANDS = [("grpo", "grpo"), ("evaluation", "evaluate"), ("evaluation", "compare"), ("retraining", "retrain")]


@pytest.mark.parametrize(("file", "workflow"), COMMANDS)
def test_every_command_that_takes_settings_says_so(home: Path, file: str, workflow: str) -> None:
    before = sorted(home.rglob("*"))
    policies = {"evaluate": ["--policy", "x"], "compare": ["--policy", "x", "--other", "y"]}.get(workflow, [])
    line = ["run", str(ROOT / f"workflows/{file}.py"), workflow, *policies]
    for name in ("config", "other_config") if workflow == "compare" else ("config",):
        for value in ("cut.json", "broken.yaml", "nowhere.yaml"):
            done = CliRunner().invoke(pyflyte.main, [*line, f"--{name}", value])
            last = (done.output + done.stderr).strip().splitlines()[-1]
            assert done.exit_code != 0 and f"{name} is {BROKEN[value]}" in last and last.endswith(ALLOWED)
    assert sorted(home.rglob("*")) == before
