"""Expected memory against numbers worked out by hand, against a measured training step, and against what there is."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints import make_checkpoint
from tasks.config import GrpoConfig, LoraConfig, RolloutConfig, Run, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.policy import machine
from tasks.policy.memory import (
    GIB,
    HEAP,
    block_bytes,
    cache_bytes,
    expected,
    generator_role,
    parameters,
    sampled_tokens,
    scorer_role,
    trained_parameters,
    training_role,
)
from tasks.run.create import check_memory

ROOT = Path(__file__).parents[2]
KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


def of(model_type: str, *sizes: int, **rest: Any) -> dict[str, Any]:
    return {"model_type": model_type, **dict(zip(KEYS, sizes, strict=True)), "tie_word_embeddings": True, **rest}


# As their config.json on the hub has them, and how many parameters they are published with.
QWEN25 = of("qwen2", 1536, 8960, 28, 12, 2, 151936, 32768)
PUBLISHED = {
    "Qwen2.5-1.5B": (QWEN25, 1_543_714_304),
    "Qwen3-0.6B": (of("qwen3", 1024, 3072, 28, 16, 8, 151936, 40960, head_dim=128), 596_049_920),
    "SmolLM2-135M": (of("llama", 576, 1536, 30, 9, 3, 49152, 8192), 134_515_008),
    "Llama-3.2-1B": (of("llama", 2048, 8192, 16, 32, 8, 128256, 131072, head_dim=64), 1_235_814_400),
}
# Heads of 2, so 4 for the queries and 2 for the keys; every number below is worked out from these.
SMALL = of("llama", 4, 6, 3, 2, 1, 10, 16)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_checkpoints(name: str) -> None:
    config, published = PUBLISHED[name]
    assert parameters(config) == published
    untied = {**config, "tie_word_embeddings": False}
    assert parameters(untied) == published + config["vocab_size"] * config["hidden_size"]


def test_parameters_that_a_lora_trains() -> None:
    # A block's q, k, v, o are 4x4, 4x2, 4x2, 4x4 and its gate, up, down 4x6, 4x6, 6x4; there are three blocks.
    assert trained_parameters(SMALL, LoraConfig(rank=2, targets="attention")) == 3 * 2 * (8 + 6 + 6 + 8)
    assert trained_parameters(SMALL, LoraConfig(rank=2, targets="feed_forward")) == 3 * 2 * (10 + 10 + 10)
    assert trained_parameters(SMALL, LoraConfig(rank=2)) == 3 * 2 * (28 + 30)
    assert trained_parameters(SMALL, LoraConfig()) == parameters(SMALL) == 3 * (48 + 72 + 8) + 4 + 40


def test_bytes_of_a_trainer() -> None:
    training = TrainingConfig(rows=2, seq_len=16, score_rows=2, minibatch_size=3)
    # A token: norms 6 x 4, SwiGLU 4 x 6, q, k, v and output 2 x 4 + 2 x 2, cosine and sine 2 x 2, mask 16.
    assert block_bytes(SMALL, training) == 4 * (24 + 24 + 12 + 4 + 16)
    assert block_bytes({**SMALL, "model_type": "qwen3", "head_dim": 2}, training) == 4 * (80 + 2 * (4 + 2))
    assert sampled_tokens(training, 4) == 12 and sampled_tokens(training, 400) == 32

    activations, logits, head = 3 * 32 * 80 * 4, 5 * 12 * 10 * 4, 2 * 40 * 4
    found = training_role(SMALL, training, 4)
    assert found.resident == pytest.approx(HEAP * 3 * 428 * 4)
    assert found.working == pytest.approx(HEAP * (428 * 4 + activations + logits + head))

    half = training_role(SMALL, training.replace(dtype="bfloat16"), 4)
    assert half.resident == found.resident
    halved = 3 * 32 * (80 * 2 + 2 * 2 * 4 * 2)  # two norms keep 2 x 4 numbers a token in float32, 2 bytes more each
    assert half.working == pytest.approx(HEAP * (428 * 4 + halved + logits + head / 2))

    adapted = training_role(SMALL, training.replace(lora=LoraConfig(rank=2)), 4)
    assert adapted.resident == pytest.approx(HEAP * (428 * 4 + 2 * 348 * 4))
    assert adapted.working == pytest.approx(HEAP * (348 * 4 + activations + logits + head))

    # With few activations what counts is the export's copy, or with lag 1 the second scorer beside the moments.
    few = training.replace(rows=1, score_rows=1, lora=LoraConfig(rank=2))
    wide = {**SMALL, "hidden_size": 400, "intermediate_size": 400, "head_dim": 2}
    whole = 4 * (3 * (4800 + 3 * 160_000 + 800) + 400 + 4000)
    scoring = 16 * (4000 + 32) * 4 + 4 * 3 * 10 * 4
    for lag, work in ((0, whole), (1, whole + scoring)):
        found_lag = training_role(wide, few, 1, lag=lag)
        assert found_lag.working == pytest.approx(HEAP * (3 * 2 * 4012 * 4 + work))

    assert training_role(SMALL, training, 4, ranks=2).resident == pytest.approx(found.resident / 2)
    scorer = scorer_role(SMALL, training, 4)
    assert scorer.resident == 428 * 4
    assert scorer.working == pytest.approx(HEAP * (32 * 80 * 4 + 4 * 12 * 10 * 4))


def test_bytes_of_a_generator() -> None:
    rollout = RolloutConfig(kv_cache_gib=3, concurrent_episodes=7, dtype="bfloat16")
    found = generator_role(SMALL, rollout)
    assert found.resident == pytest.approx(HEAP * (428 + 40) * 2 + 3 * GIB)  # with a head of its own
    assert found.working == pytest.approx(6 * 7 * 10 * 4 + 4096 * (18 + 16) * 2)
    assert generator_role({**SMALL, "tie_word_embeddings": False}, rollout).resident == found.resident
    # Much is read and little sampled: the weights of the next version, as their files have them.
    one = rollout.replace(concurrent_episodes=1)
    assert generator_role(QWEN25, one).working == 1_543_714_304 * 4
    assert generator_role({**QWEN25, "dtype": "bfloat16"}, one).working == 1_543_714_304 * 2
    assert cache_bytes(SMALL, rollout) == 16 * 3 * 2 * 2 * 2  # positions, blocks, k and v, a key's numbers, bytes

    assert generator_role(SMALL, rollout, gpu=80 * GIB).resident == pytest.approx(72 * GIB)
    too_large = generator_role(QWEN25, rollout.replace(gpu_memory_utilization=0.1), gpu=20 * GIB)
    shared = generator_role(QWEN25, rollout.replace(gpu_memory_utilization=0.1, tensor_parallel=2), gpu=20 * GIB)
    assert shared.resident == pytest.approx(too_large.resident / 2)
    assert too_large.resident == pytest.approx((1_543_714_304 + 151936 * 1536) * 2 / 0.1)  # more than the 20 GiB


def settings(**given: dict) -> GrpoConfig:
    """With the defaults of BlackJack, whose replies have four tokens at most."""
    return GrpoConfig.from_dict(given).resolved(get_environment("blackjack").defaults)


def test_a_run_is_the_sum_of_what_rests_and_of_the_most_that_works() -> None:
    config = settings()
    roles = {
        "training": training_role(QWEN25, config.training, 4),
        "generator": generator_role(QWEN25, config.rollout),
        "reference": scorer_role(QWEN25, config.training, 4),
    }
    found = expected(QWEN25, config)
    assert {name: found[name] for name in roles} == {name: role.resident for name, role in roles.items()}
    assert found["working"] == roles["training"].working
    without = settings(algorithm={"kl_coefficient": 0})
    assert expected(QWEN25, without).keys() == {"training", "generator", "libraries", "working"}


def test_ranks_share_a_machine_without_gpus_and_have_one_each_with() -> None:
    config = settings(training={"ranks": 4})
    rank = training_role(QWEN25, config.training, 4, ranks=4)
    assert expected(QWEN25, config)["training"] == 4 * rank.resident
    assert expected(QWEN25, config)["working"] == 4 * rank.working
    assert expected(QWEN25, config, gpu=80 * GIB)["training"] == rank.resident


def make_room(monkeypatch: pytest.MonkeyPatch, folder: Path, left: int) -> None:
    """Let this process believe that it is in a control group with `left` bytes to go."""
    (folder / "cgroup").write_text("0::/here\n")
    (folder / "memory.max").write_text(f"{left + 1000}\n")
    (folder / "memory.current").write_text("1000\n")
    monkeypatch.setattr(machine, "OWN_GROUPS", folder / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", folder)
    assert machine.cgroup_left() == left


def test_qwen_in_float32_is_refused_on_a_machine_of_16_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_room(monkeypatch, tmp_path, 16 * GIB)
    config = settings(rollout={"kv_cache_gib": 2})
    with pytest.raises(ValueError) as caught:
        check_memory(QWEN25, "Qwen/Qwen2.5-1.5B", config, lag=0, here=True)
    sentence = str(caught.value)
    needs = expected(QWEN25, config)
    assert sentence.startswith(
        f'policy is "Qwen/Qwen2.5-1.5B", which takes about {sum(needs.values()) / GIB:.1f} GiB of memory (training 20.'
    )
    for hint in (
        "generator ",
        "reference 5.8",
        "GiB left here",
        "bfloat16",
        "training.lora.rank",
        "rollout.kv_cache_gib",
    ):
        assert hint in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert check_memory(QWEN25, "Qwen/Qwen2.5-1.5B", config, lag=0, here=False) == needs  # a pod that does none of it


def test_a_stage_that_opens_its_part_asks_for_that_alone(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.rollout import engine
    from tasks.training import warm

    monkeypatch.setattr(engine, "_warm", {})
    monkeypatch.setattr(warm, "_warm", {})
    monkeypatch.setattr(warm, "_scorers", {})
    make_room(monkeypatch, tmp_path, 1_000_000)
    config, elsewhere = TrainingConfig(), dict.fromkeys(("environment", "environment_url", "mlflow_run_id"), "")
    run = Run.from_dict({"name": "monday", "token": "6f9c", "seed": 0, "tracking_uri": "", **elsewhere})
    for role, open_it in (
        ("generator", lambda: engine.open_engine(tiny_policy, RolloutConfig())),
        ("reference", lambda: warm.open_scorer(tiny_policy, config, temperature=1.0)),
        ("training", lambda: warm.resume(tiny_policy, None, GrpoConfig(), run)),
    ):
        with pytest.raises(
            ValueError, match=rf'^policy is "{tiny_policy}", which takes .* of memory \({role} [0-9.]+\)'
        ):
            open_it()
    make_room(monkeypatch, tmp_path, GIB)
    scorer = warm.open_scorer(tiny_policy, config, temperature=1.0)
    trained = warm.resume(tiny_policy, None, GrpoConfig(), run)
    warm.keep_warm(trained, run, warm.read_manifest(tiny_policy).digest)
    make_room(monkeypatch, tmp_path, 0)
    assert warm.open_scorer(tiny_policy, config, temperature=1.0) is scorer  # warm: there is nothing to ask for
    assert warm.resume(tiny_policy, tiny_policy, GrpoConfig(), run) is trained


def test_an_attention_cache_too_small_for_the_longest_episode() -> None:
    # 28 blocks, k and v of two heads of 128 in float32: 56 KiB a token, 1.75 GiB for 32768 of them.
    longest = RolloutConfig(max_episode_tokens=32768)
    with pytest.raises(ValueError, match=r"^rollout.kv_cache_gib is 1; allowed: 2 or more, as vLLM wants .* 32768\.$"):
        machine.check_cache(QWEN25, longest, gpu=0)
    machine.check_cache(QWEN25, longest.replace(kv_cache_gib=2), gpu=0)
    machine.check_cache(QWEN25, longest.replace(dtype="bfloat16"), gpu=0)
    machine.check_cache(QWEN25, longest, gpu=80 * GIB)
    # What the policy could read is no matter, if no episode is so long.
    machine.check_cache(QWEN25, longest.replace(max_episode_tokens=16384), gpu=0)


@pytest.mark.parametrize(
    ("line", "limit", "taken", "stat"),
    [
        ("0::/a/b", "memory.max", "memory.current", "anon 5\ninactive_file 20\n"),
        (
            "4:memory:/a/b",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "inactive_file 1\ntotal_inactive_file 20\n",
        ),
    ],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: str, taken: str, stat: str
) -> None:
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    base = tmp_path / ("memory" if "memory:" in line else ".")
    (tmp_path / "cgroup").write_text(f"9:cpu:/elsewhere\n{line}\n")
    (base / "a" / "b").mkdir(parents=True)

    def group(folder: Path, most: object, used: int) -> None:
        (folder / limit).write_text(f"{most}\n")
        (folder / taken).write_text(f"{used}\n")

    assert machine.cgroup_left() == math.inf
    group(base / "a" / "b", 1000, 300)
    assert machine.cgroup_left() == 700
    group(base / "a", 500, 320)  # all of it counts for those above, too
    assert machine.cgroup_left() == 180
    (base / "a" / "memory.stat").write_text(stat)
    assert machine.cgroup_left() == 200
    for folder in (base / "a" / "b", base / "a"):
        (folder / limit).unlink()
    group(base, 90, 30)  # within a container the group's path is not there
    assert machine.cgroup_left() == 60
    if "memory:" not in line:
        group(base, "max", 30)
        assert machine.cgroup_left() == math.inf


STEPS = """
import sys
from pathlib import Path
import numpy as np
from tasks.config import TrainingConfig
from tasks.training.losses import supervised_loss
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

def memory(kind):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(kind)) * 1024

before, config = memory("VmRSS"), TrainingConfig.from_json(sys.argv[2])
trainer = Trainer(Path(sys.argv[1]), config, temperature=1.0, schedule_steps=2)
length, rows = config.seq_len, config.rows
mask = np.tile(np.arange(length) >= length - 4, rows)
data = FlatSamples(np.arange(rows + 1) * length, np.random.default_rng(0).integers(3, 300, rows * length), mask)
for _ in range(2):  # the second has the optimizer's moments beside its activations
    trainer.step(data, range(rows), supervised_loss)
print(memory("VmHWM") - before)
"""


def test_a_training_step_takes_what_was_expected(tiny_policy: Path, tmp_path: Path) -> None:
    sizes = dict(zip(KEYS, (1024, 2816, 3, 16, 4, 8192, 1024), strict=True))
    policy = make_checkpoint(tiny_policy, tmp_path / "policy", {"model_type": "llama", "head_dim": 64, **sizes})
    config_json = json.loads((policy / "config.json").read_text())
    assert parameters(config_json) == 50_600_960
    training = TrainingConfig(rows=8, seq_len=256, minibatch_size=8)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(policy), training.to_json()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    role = training_role(config_json, training, max_tokens=4)
    # About 1, as glibc's heap does; 1.24 without holes in it, for gradients come while activations go.
    ratio = (role.resident + role.working) / int(done.stdout)
    assert 0.7 < ratio < 1.4, ratio
