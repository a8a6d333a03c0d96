"""What `pyflyte run` says of its inputs: all of them in its help, and one sentence where one is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from flytekit.clis.sdk_in_container import pyflyte
from flytekit.core.context_manager import ExecutionState, FlyteContextManager

from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.run.task import Created, create_run

ROOT = Path(__file__).parents[2]


def pyflyte_run(*arguments: str) -> Result:
    return CliRunner().invoke(pyflyte.main, ["run", str(ROOT / "workflows/grpo.py"), "grpo", *arguments])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "600")
    return tmp_path


def checkpoint(folder: Path, *, model_type: str = "qwen3", tokenizer: bool = True) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    return folder


def test_help_explains_every_input():
    shown = pyflyte_run("--help").output
    for name in (
        "run_name",
        "policy",
        "environment",
        "environment_url",
        "iterations",
        "seed",
        "lag",
        "config",
    ):
        assert f"--{name}" in shown


def test_help_fits_on_a_screen_and_loads_nothing_heavy(home: Path):
    shown = pyflyte_run("--help").output
    assert "see tasks/config.py. [default: {}]" in " ".join(shown.replace("│", " ").split())
    assert len(shown.splitlines()) < 60
    code = (
        "import sys, workflows.grpo, workflows.retraining; "
        "print([m for m in ('torch', 'vllm', 'mlflow', 'openenv', 'pyspiel', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--environment", "poker"], 'environment is "poker"; allowed: blackjack, calculator, '),
        (["--iterations", "0"], "iterations is 0; allowed: 1 or more."),
        (["--lag", "-1"], "lag is -1; allowed: 0 or more."),
        (["--lag", "5"], "buffer.max_age is 4; allowed: 5 or more with lag 5"),
        (["--run_name", "a/b"], 'run_name is "a/b"; allowed: letters, digits,'),
        (["--policy", "nowhere"], 'policy is "nowhere", which is no directory; allowed: "tiny" or a directory'),
        (
            ["--policy", "models:/grpo-blackjack@champion"],
            'policy is "models:/grpo-blackjack@champion", and the registry has no model grpo-blackjack; allowed: ',
        ),
        (["--policy", "models:/champion"], 'policy is "models:/champion"; allowed in the registry: models:/NAME@champ'),
        (["--config", '{"tracking": {"model": "a/b"}}'], 'tracking.model is "a/b"; allowed: letters, digits, dots,'),
        (["--config", '{"rollot": {}}'], 'config has an unknown key "rollot" (did you mean "rollout"?); allowed: '),
        (
            ["--config", '{"rollout": {"group_sise": 3}}'],
            'config has an unknown key "rollout.group_sise" (did you mean "group_size"?); allowed: ',
        ),
        (["--config", '{"rollout": {"group_size": 1}}'], "rollout.group_size is 1; allowed: 2 or more"),
        (["--config", '{"training": {"learning_rate": "hot"}}'], 'training.learning_rate is "hot"; allowed: a number.'),
        (["--config", '{"training": {"epochs": 1.5}}'], "training.epochs is 1.5; allowed: a whole number."),
        (["--config", '{"rollout": 3}'], "rollout is 3; allowed: a JSON object."),
        (
            ["--config", '{"training": {"ranks": 3, "tensor_parallel": 2}}'],
            "training.tensor_parallel x training.context_parallel is 2; allowed: a divisor of training.ranks, 3.",
        ),
        (
            ["--config", '{"training": {"ranks": 3, "tensor_parallel": 3}}'],
            "training.tensor_parallel is 3; allowed: a divisor of the policy's 4 attention heads and 4 heads of keys",
        ),
        (
            ["--config", '{"training": {"ranks": 4, "nodes": 2}}'],
            "training.nodes is 2; allowed: 1 on a single machine.",
        ),
        (["--config", '{"rollout": {"groups": 0}}'], "rollout.groups is 0; allowed: 1 or more."),
        (
            ["--config", '{"rollout": {"max_groups": 511}}'],  # of the environment's 512
            "rollout.max_groups is 511; allowed: rollout.groups (512) or more.",
        ),
        (
            ["--config", '{"rollout": {"environment_options": {"decks": 6}}}'],
            'an option of the environment is "decks"; allowed: none, blackjack has no options.',
        ),
        (
            ["--config", '{"training": {"seq_len": 2048}}'],
            "rollout.max_episode_tokens is 2048; allowed: at most the policy's max_position_embeddings, 1024; ",
        ),
        (
            ["--config", '{"algorithm": {"name": "ppo"}}'],
            'algorithm.name is "ppo"; allowed: grpo, dr_grpo, dapo, gspo or cispo.',
        ),
        (
            ["--lag", "1", "--config", '{"buffer": {"max_age": 0}}'],
            "buffer.max_age is 0; allowed: 1 or more with lag 1, every batch is that old when it is trained on.",
        ),
        (
            ["--environment_url", "http://127.0.0.1:9"],
            'environment_url is "http://127.0.0.1:9": nobody answers there; start one with',
        ),
        (["--environment_url", "ftp://here"], 'environment_url is "ftp://here"'),
        (
            ["--config", '{"tiny": {"hidden_size": 65536, "layers": 96}}'],  # 5.4e12 parameters
            'policy is "tiny", which takes about ',
        ),
    ],
)
def test_a_bad_input_ends_with_one_sentence_and_leaves_nothing(arguments: list[str], sentence: str, home: Path):
    done = pyflyte_run(*arguments)
    last = (done.output + done.stderr).strip().splitlines()[-1]
    assert done.exit_code != 0
    assert sentence in last
    assert not (home / "runs").exists()


def test_policy_directories_that_cannot_be_trained_are_refused(home: Path):
    for folder, sentence in (
        (checkpoint(home / "gemma", model_type="gemma3_text"), "of architecture gemma3_text; allowed:"),
        (checkpoint(home / "mute", tokenizer=False), "which has no tokenizer.json; allowed:"),
        (checkpoint(home / "no-chat"), "whose tokenizer has no chat template; allowed:"),
    ):
        done = pyflyte_run("--policy", str(folder))
        last = (done.output + done.stderr).strip().splitlines()[-1]
        assert done.exit_code != 0
        assert sentence in last
        assert str(folder) in last
        assert not (home / "runs").exists()


def created(name: str, config: dict, **more: object) -> Created:
    inputs = {"policy": "tiny", "environment": "blackjack", "environment_url": "", "seed": 0, "lag": 0, **more}
    return create_run(run_name=name, iterations=2, config=GrpoConfig.from_dict(config), **inputs)


def test_a_run_goes_on_with_the_same_inputs_and_any_ranks(home: Path):
    given = {"rollout": {"groups": 64}}
    first = created("monday", given)
    assert first.run.given.to_dict() == given
    assert (first.config.rollout.groups, first.config.rollout.max_groups) == (64, 4096)
    assert created("monday", given) == first
    again = created("monday", {**given, "training": {"ranks": 2}})
    assert again.run == first.run and again.config.training.ranks == 2
    spelled_out = {**given, "training": {"epochs": 2}}  # which is the environment's own number of them
    assert created("monday", spelled_out) == first
    for config, groups in (({}, 512), ({"rollout": {"groups": 65}}, 65)):
        another = rf"rollout\.groups \(64 there, {groups} here\) and buffer\.groups \(64 there, {groups} here\)"
        with pytest.raises(ValueError, match=rf'run_name is "monday", a run with another {another}; allowed: the same'):
            created("monday", config)
    with pytest.raises(
        ValueError, match=r'is "monday", a run with another seed \(0 there, 1 here\); allowed: the same'
    ):
        created("monday", given, seed=1)
    with pytest.raises(ValueError, match=r"another seed .* and rollout.groups \(.*\) and 2 more; allowed: the same"):
        created("monday", {"rollout": {"groups": 65}, "training": {"rows": 3}}, seed=1)
    # Other defaults, of the environment or of this project, make it another run too.
    record = home / "runs" / "monday" / "run.json"
    known = json.loads(record.read_text())
    known["config"]["training"]["epochs"] = 7
    record.write_text(json.dumps(known))
    with pytest.raises(
        ValueError, match=r"a run with another training.epochs \(7 there, 2 here\); allowed: the same inputs"
    ):
        created("monday", given)


def test_a_pod_of_a_cluster_leaves_the_memory_to_the_stages(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    inputs = {"run_name": "monday", "policy": "tiny", "environment": "blackjack", "environment_url": ""}
    numbers = {"iterations": 1, "seed": 0, "lag": 0}
    config = GrpoConfig.from_dict({"tiny": {"hidden_size": 65536, "layers": 96}})
    context = FlyteContextManager.current_context()
    remote = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    with FlyteContextManager.with_context(context.with_execution_state(remote)):
        run, resolved = create_run.task_function(**inputs, **numbers, config=config)
    assert "run monday, expected memory in GiB: training " in capsys.readouterr().out
    assert run.name == "monday" and (home / "runs" / "monday" / "run.json").is_file()
    expected = config.resolved(get_environment("blackjack").defaults)
    assert run.given == config
    assert resolved == expected.replace(cluster=expected.cluster.replace(iterations_per_pod=8))  # as lag 0 allows

    from tasks.tracking.mlflow_store import client

    known = client(run.tracking_uri).get_run(run.mlflow_run_id).data.params
    assert (known["tiny.hidden_size"], known["rollout.groups"], known["training.seq_len"]) == ("65536", "512", "256")
    assert float(known["memory.expected_training_gib"]) > 50_000
    assert float(known["memory.expected_libraries_gib"]) == 0.8
