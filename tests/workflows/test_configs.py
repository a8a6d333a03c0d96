"""The named settings that the README and the Makefile use."""

from pathlib import Path

import pytest
import yaml

from tasks.config import GrpoConfig
from tasks.environments.catalog import get_environment
from tasks.policy.memory import GIB, expected

CONFIGS = sorted((Path(__file__).parents[2] / "workflows" / "configs").glob("*.yaml"))
QWEN25_1_5B = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}


def named(name: str) -> GrpoConfig:
    (path,) = [path for path in CONFIGS if path.stem == name]
    return GrpoConfig.from_dict(yaml.safe_load(path.read_text())).resolved(get_environment("blackjack").defaults)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_settings_are_allowed(path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    config = named(path.stem).whole()
    assert all(config[stage][key] == value for stage, values in given.items() for key, value in values.items())


def test_the_settings_for_smollm2() -> None:
    rollout = named("smollm2-135m").rollout
    assert (
        rollout.invalid_reward + rollout.partial_format_bonus < -1
    )  # a lost game is better than the best reply that cannot be read


def test_qwen_and_its_training_fit_on_a_gpu_of_80_gb() -> None:
    needs = expected(QWEN25_1_5B, named("qwen2.5-1.5b"), gpu=80e9)
    assert 40 * GIB < sum(needs.values()) < 78e9, {name: size / GIB for name, size in needs.items()}
