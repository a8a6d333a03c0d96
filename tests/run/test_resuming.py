"""What a run needs when it begins, and what it needs no more when it goes on."""

import json
import shutil
from pathlib import Path

import pytest

from tasks.config import GrpoConfig
from tasks.policy.checkpoint import import_checkpoint
from tasks.run.task import Created, create_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def created(name: str, policy: Path, config: dict[str, object] | None = None) -> Created:
    inputs = {"environment": "blackjack", "environment_url": "", "iterations": 2, "seed": 0, "lag": 0}
    return create_run(run_name=name, policy=str(policy), config=GrpoConfig.from_dict(config or {}), **inputs)


def test_a_run_goes_on_without_the_checkpoint_that_it_was_made_from(home: Path, tiny_policy: Path) -> None:
    source = Path(shutil.copytree(tiny_policy, home / "mine"))
    begun = created("monday", source)
    import_checkpoint(source, home / "runs" / "monday" / "policies" / "00000")
    shutil.rmtree(source)
    assert created("monday", source) == begun
    with pytest.raises(ValueError, match=rf'policy is "{source}", which is no directory; allowed: '):
        created("tuesday", source)
    assert not (home / "runs" / "tuesday").exists()


@pytest.mark.parametrize(
    ("positions", "config", "sentence"),
    [
        (1024, {"training": {"seq_len": 16}}, "rollout.max_episode_tokens is 16; allowed: more than the "),
        (1024, {"rollout": {"max_episode_tokens": 8}}, "rollout.max_episode_tokens is 8; allowed: more than the "),
        (
            1024,
            {"training": {"seq_len": 2048}},
            "rollout.max_episode_tokens is 2048; allowed: at most the policy's max",
        ),
        (72, {"training": {"seq_len": 73}}, "rollout.max_episode_tokens is 73; allowed: at most the policy's max_posi"),
        (16, {"training": {"seq_len": 16}}, "rollout.max_episode_tokens is 16; allowed: more than the "),
    ],
)
def test_what_the_context_cannot_hold_is_refused_before_any_work(
    home: Path, tiny_policy: Path, positions: int, config: dict[str, object], sentence: str
) -> None:
    source = Path(shutil.copytree(tiny_policy, home / "mine"))
    known = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**known, "max_position_embeddings": positions}))
    (source / "policy.json").unlink()
    with pytest.raises(ValueError) as caught:
        created("monday", source, config)
    assert sentence in str(caught.value).splitlines()[-1]  # behind flytekit's name of the task
    assert not (home / "runs").exists()
