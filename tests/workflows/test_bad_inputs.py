"""Bad inputs of every command: each ends it with one sentence that names the input, and leaves nothing behind."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from flytekit.clis.sdk_in_container import pyflyte

ROOT = Path(__file__).parents[2]
CHECKPOINT = 'allowed: "tiny" or a directory with a Hugging Face checkpoint'
ENVIRONMENTS = "or package.module of a module with a SPEC"
NAMES = "allowed in the registry: models:/NAME@champion"
LINEAGE = "allowed: a policy of a run, this folder has no _lineage.json"

# A workflow, its inputs, what the sentence begins with, what it says of what is allowed.
EVALUATE = [
    (["--policy", "nowhere"], 'policy is "nowhere", which is no directory', CHECKPOINT),
    (["--policy", "tiny"], 'policy is "tiny"', "the directory of a Hugging Face checkpoint, or models:/NAME@champion"),
    (["--policy", "empty"], 'policy is "empty", which has no config.json', CHECKPOINT),
    (["--policy", "file"], 'policy is "file", which is no directory', CHECKPOINT),
    (["--policy", ""], 'policy is ""', "a directory with a checkpoint"),
    (["--policy", "models:/x@champion"], 'policy is "models:/x@champion", and the registry has no model x', "allowed"),
    (["--policy", "models:/x"], 'policy is "models:/x"', NAMES),
    (["--policy", "models:/x/0"], 'policy is "models:/x/0"', NAMES),
    (["--policy", "nonsense://x/y"], 'policy is "nonsense://x/y", which cannot be opened (', "the URI of a directory"),
    (["--policy", "memory://x/y"], 'policy is "memory://x/y", and nothing is there', "the URI of a directory"),
    (["--policy", "empty", "--tasks", "1"], "evaluation.tasks is 1", "2 or more"),
    (["--policy", "empty", "--tasks", "0"], "evaluation.tasks is 0", "2 or more"),
    (["--policy", "empty", "--tasks", "-4"], "evaluation.tasks is -4", "2 or more"),
    (["--policy", "empty", "--seed", "-1"], "evaluation.seed is -1", "0 to 2147483647"),
    (["--policy", "empty", "--environment", "poker"], 'environment is "poker"', ENVIRONMENTS),
    (["--policy", "empty", "--environment", ""], 'environment is ""', ENVIRONMENTS),
    (["--policy", "empty", "--environment_url", "nonsense"], 'environment_url is "nonsense"', "http://host:port"),
    (["--policy", "empty", "--config", '{"group": 1}'], 'config has an unknown key "group"', 'did you mean "groups"?'),
    (["--policy", "empty", "--config", '{"temperature": -1}'], "rollout.temperature is -1", "more than 0"),
    (["--policy", "empty", "--config", '{"date": "today"}'], 'rollout.date is "today"', 'a day, such as "2026-'),
    (["--policy", "empty", "--config", '{"date": "2026-02-31"}'], 'rollout.date is "2026-02-31"', "a day, such as"),
    (["--policy", "empty", "--config", '{"dtype": "float8"}'], 'rollout.dtype is "float8"', "float32 or bfloat16"),
]
BOTH = ["--policy", "empty", "--other"]
COMPARE = [
    (["--policy", "nowhere", "--other", "empty"], 'policy is "nowhere", which is no directory', CHECKPOINT),
    (["--policy", "tiny", "--other", "empty"], 'policy is "tiny"', "models:/NAME@champion"),
    ([*BOTH, "empty", "--tasks", "1"], "tasks is 1", "2 or more, or 0 for the environment's own number"),
    ([*BOTH, "empty", "--tasks", "-1"], "tasks is -1", "2 or more, or 0 for the environment's own number"),
    ([*BOTH, "empty", "--seed", "-3"], "seed is -3", "0 to 2305843009213693951"),
    ([*BOTH, "empty", "--environment", "poker"], 'environment is "poker"', ENVIRONMENTS),
    ([*BOTH, "empty", "--config", '{"max_turns": 0}'], "rollout.max_turns is 0", "1 or more"),
    (["--policy", "models:/x@a", "--other", "models:/x@b"], 'policy is "models:/x@a", and the registry has', "allowed"),
]
RETRAIN = [
    (["--iterations", "0"], "iterations is 0", "1 or more"),
    (["--lag", "-1"], "lag is -1", "0 or more"),
    (["--lag", "5"], "buffer.max_age is 4", "5 or more with lag 5"),
    (["--tasks", "1"], "tasks is 1", "2 or more, or 0"),
    (["--run_name", "a b"], 'run_name is "a b"', "letters, digits, dots, dashes and underscores"),
    (["--policy", "nowhere"], 'policy is "nowhere", which is no directory', CHECKPOINT),
    (["--environment", "poker"], 'environment is "poker"', ENVIRONMENTS),
    (["--config", '{"tracking": {"model": "x/y"}}'], 'tracking.model is "x/y"', "letters, digits, dots"),
]
PROMOTE = [
    (["--model", "x", "--version", "1"], 'policy is "models:/x/1", and the registry has no model x', "allowed"),
    (["--model", "a/b", "--version", "1"], 'policy is "models:/a/b/1"', NAMES),
    (["--model", "x' OR 1=1", "--version", "1"], 'policy is "models:/x\' OR 1=1/1"', NAMES),
    (["--model", "", "--version", "1"], 'policy is "models:', NAMES),
    (["--model", "x", "--version", "0"], "version is 0", "1 or more"),
    (["--model", "x", "--version", "-1"], "version is -1", "1 or more"),
]
DEMOTE = [
    (["--model", "x"], 'model is "x", which has no champion', "a model that has one"),
    (["--model", "a/b"], 'model is "a/b", which has no champion', "a model that has one"),
    (["--model", "x' OR 1=1"], 'model is "x\' OR 1=1", which has no champion', "a model that has one"),
    (["--model", ""], 'model is "", which has no champion', "a model that has one"),
]
SHOW = [
    (["--policy", "nowhere"], "nowhere", LINEAGE),
    (["--policy", "empty"], "empty", LINEAGE),
    (["--policy", "tiny"], "tiny", LINEAGE),
    (["--policy", "file"], "file", LINEAGE),
    (["--policy", "empty", "--trajectory", "x"], "empty", LINEAGE),
    (["--policy", "models:/x@champion"], 'policy is "models:/x@champion", and the registry has no model x', "allowed"),
]
GRPO = [
    (["--config", "nowhere.yaml"], 'config is "nowhere.yaml", which is no file', "the path of a JSON or YAML file"),
    (["--config", "empty"], 'config is "empty", which cannot be read (Is a directory)', "the path of a JSON or YAML"),
    (["--config", "{"], 'config is "{", which is no JSON (Expecting property name', "settings as JSON, or the path"),
    (["--config", "list.yaml"], "config is [1, 2]", "a JSON object"),
    (["--config", "infinite.yaml"], "training.learning_rate is inf", "a finite number"),
    (["--config", "word.yaml"], 'training.epochs is "two"', "a whole number"),
    (["--config", "[]"], "config is []", "a JSON object"),
    (["--config", "7"], "config is 7", "a JSON object"),
    (["--config", '{"rollout": {"groups": 10000000000}}'], "rollout.groups is 10000000000", "1 to 1000000000"),
    (["--config", '{"algorithm": {"dual_clip": 1}}'], "algorithm.dual_clip is 1", "more than 1, or 0"),
    (["--iterations", "-5"], "iterations is -5", "1 or more"),
    (["--seed", "-1"], "seed is -1", "0 to 2147483647"),
    (["--seed", "2147483648"], "seed is 2147483648", "0 to 2147483647"),
    (["--run_name", "../x"], 'run_name is "../x"', "letters, digits, dots, dashes and underscores"),
    (["--run_name", "x" * 65], f'run_name is "{"x" * 65}"', "at most 64"),
    (["--policy", ""], 'policy is ""', "a directory with a checkpoint"),
    (["--policy", "file"], 'policy is "file", which is no directory', CHECKPOINT),
    (["--environment", "os.path"], 'environment is "os.path"', "SPEC"),
]
TABLE = [
    (file, workflow, *row)
    for file, workflow, rows in (
        ("evaluation", "evaluate", EVALUATE),
        ("evaluation", "compare", COMPARE),
        ("retraining", "retrain", RETRAIN),
        ("promotion", "promote", PROMOTE),
        ("promotion", "demote", DEMOTE),
        ("lineage", "lineage", SHOW),
        ("grpo", "grpo", GRPO),
    )
    for row in rows
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "600")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "infinite.yaml").write_text("training:\n  learning_rate: .inf\n")
    (tmp_path / "word.yaml").write_text("training:\n  epochs: two\n")
    return tmp_path


@pytest.mark.parametrize(("file", "workflow", "inputs", "given", "allowed"), TABLE)
def test_a_bad_input_ends_a_command_with_one_sentence_and_leaves_nothing(
    home: Path, file: str, workflow: str, inputs: list[str], given: str, allowed: str
) -> None:
    before = sorted(home.rglob("*"))
    done = CliRunner().invoke(pyflyte.main, ["run", str(ROOT / f"workflows/{file}.py"), workflow, *inputs])
    said, *more = [line for line in done.output.splitlines() if line != "Running Execution on local."]
    assert done.exit_code != 0
    assert given in said and allowed in said and not more, done.output
    assert sorted(home.rglob("*")) == before
