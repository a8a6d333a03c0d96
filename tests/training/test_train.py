"""One training stage on a training batch: what it refuses, leaves out and writes."""

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from checkpoints import by_peft, in_bfloat16
from objectives import objective, optimizer_steps
from tasks.buffer.selection import gather, select_groups
from tasks.config import BufferConfig, GrpoConfig, LoraConfig, Run, TrainingConfig
from tasks.policy.checkpoint import digest, read_manifest
from tasks.records import ADVANTAGE, REFERENCE, Sample, to_table, with_column
from tasks.training.lora import ADAPTER
from tasks.training.losses import LOSSES, StepTotals
from tasks.training.model import full_tensor
from tasks.training.packing import FlatSamples, Rows, build_rows, flat_samples, plan_rows
from tasks.training.train import minibatches, mismatch, next_policy, train_on, trainable
from tasks.training.trainer import Trainer

TRAINING = TrainingConfig(epochs=2, minibatch_size=4, learning_rate=1e-2, warmup_iterations=0, rows=2, seq_len=32)
ALGORITHM = objective()
CONFIG = GrpoConfig.from_dict(
    {
        "algorithm": ALGORITHM.to_dict(),
        "training": TRAINING.to_dict(),
        "rollout": {"max_turns": 4, "max_tokens": 4},
    }
)
LORA = LoraConfig(rank=4, alpha=16.0)


def run(token: str, iterations: int) -> Run:
    """As much of a run as a training needs to know."""
    elsewhere = {"environment": "blackjack", "environment_url": "", "mlflow_run_id": "", "tracking_uri": ""}
    return Run.from_dict({"name": "monday", "token": token, "seed": 0, "iterations": iterations, **elsewhere})


def open_trainer(policy: Path) -> Trainer:
    return Trainer(policy, TRAINING, temperature=1.0, schedule_steps=10)


def training_batch(policy: Path, versions: Sequence[int] = (0,) * 8, shift: float = 0.0, seed: int = 0) -> pa.Table:
    """Eight trajectories of 4 to 11 tokens in groups of two; the generator's log-probabilities are the policy's own,
    plus `shift`.
    """
    draw = np.random.default_rng(seed)
    rows = []
    for i, version in enumerate(versions):
        length, prompt = 4 + i, 2
        rows.append(
            Sample(
                trajectory_id=f"{version:05d}-{i // 2:05d}-{i % 2}",
                sample=0,
                group_id=f"{version:05d}-{i // 2:05d}",
                policy_version=version,
                task_id=str(i // 2),
                seed=i // 2,
                token_ids=draw.integers(3, 300, length).tolist(),
                loss_mask=[False] * prompt + [True] * (length - prompt),
                logprobs=[0.0] * length,
                reward=float(i % 2),
                raw_reward=float(i % 2),
                turns=1,
                invalid=False,
                finish_reason="finished",
                outcome="",
                error="",
                metrics=[],
                messages=[],
            )
        )
    table = to_table(rows)
    data = flat_samples(table)
    scores = open_trainer(policy).score(data)
    scores[data.loss_mask_N] += shift
    columns = np.split(scores, data.offsets_R[1:-1])
    table = replaced(table, "logprobs", columns)
    table = with_column(table, REFERENCE, columns)
    return with_column(table, ADVANTAGE, [-0.5, 0.5] * 4)


def replaced(table: pa.Table, column: str, values: Sequence[object]) -> pa.Table:
    """`table` with other values in one of its columns."""
    place = table.column_names.index(column)
    return table.set_column(place, column, pa.array(values, table[column].type))


def shifted(table: pa.Table, shifts: np.ndarray) -> pa.Table:
    """The generator's log-probabilities of each trajectory, raised by these."""
    rows = zip(table["logprobs"].to_pylist(), table["loss_mask"].to_pylist(), shifts, strict=True)
    values = [[p + shift * m for p, m in zip(logprobs, mask, strict=True)] for logprobs, mask, shift in rows]
    return replaced(table, "logprobs", values)


def a_stage(
    table: pa.Table, policy: Path, folder: Path, *, sampler: Path | None = None, config: GrpoConfig = CONFIG
) -> dict[str, float]:
    """A first training stage that writes below `folder`."""
    return next_policy(
        table,
        policy,
        sampler or policy,
        None,
        config,
        run(str(folder), iterations=2),
        target=folder / "policy",
        target_state=folder / "state",
    )


def weights(trainer: Trainer) -> list[torch.Tensor]:
    held = trainer.model.state_dict().values()  # unlike parameters(), also gathered after a forward pass alone
    return [full_tensor(weight).clone() for weight in held]


def unchanged(trainer: Trainer, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(weights(trainer), before, strict=True))


def test_a_fresh_batch_is_trained_on(newborn_policy: Path) -> None:
    trainer = open_trainer(newborn_policy)
    before = weights(trainer)
    assert mismatch(trainer, training_batch(newborn_policy), ALGORITHM, policy_version=0)["train/mismatch_mean"] < 1e-6
    metrics, steps = train_on(training_batch(newborn_policy), trainer, ALGORITHM, policy_version=0, seed=0)
    assert metrics["train/steps"] == optimizer_steps(trainer) == 4  # 2 epochs of 8 trajectories in minibatches of 4
    assert [(step["epoch"], step["minibatch"]) for step in steps] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert metrics["train/learning_rate"] == pytest.approx(1e-2)
    assert trainer.learning_rate < 1e-2  # one step of the schedule an iteration
    assert not unchanged(trainer, before)


def test_training_makes_the_better_of_a_group_more_likely(newborn_policy: Path) -> None:
    trainer, table = open_trainer(newborn_policy), training_batch(newborn_policy)
    data = flat_samples(table)
    before = trainer.score(data)
    train_on(table, trainer, objective(kl_coefficient=0), policy_version=0, seed=0)
    gains = [float(part.sum()) for part in np.split(trainer.score(data) - before, data.offsets_R[1:-1])]
    assert all(gains[i + 1] > gains[i] for i in range(0, 8, 2))


def test_what_every_step_measures(newborn_policy: Path) -> None:
    _, steps = train_on(
        training_batch(newborn_policy), open_trainer(newborn_policy), ALGORITHM, policy_version=0, seed=0
    )
    first, last = steps[0], steps[-1]
    # On fresh data and unchanged weights every ratio is 1, nothing is clipped, and all tokens count in full.
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-5) and first["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert first["clip_share"] == 0 and first["ess_share"] == pytest.approx(1, abs=1e-5)
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the policy itself
    assert first["entropy"] > 1 and first["grad_norm"] > 0.1
    # After three steps with a high learning rate they differ.
    assert last["ratio_max"] > 1.2 and last["clip_share"] > 0 and last["kl"] > 0.01
    assert 0 < last["ess_share"] < 0.99


def test_the_effective_sample_size_by_hand(newborn_policy: Path) -> None:
    # All tokens of one trajectory are half as likely as where they were sampled, all others as likely: with n of K
    # tokens at ratio 1/2, (sum of ratios)² / (K x sum of their squares).
    table = shifted(training_batch(newborn_policy), np.log(2) * (np.arange(8) == 7))
    at_once = TRAINING.replace(minibatch_size=8)
    trainer = Trainer(newborn_policy, at_once, temperature=1.0, schedule_steps=1)
    _, steps = train_on(table, trainer, ALGORITHM, policy_version=5, seed=0)
    n, K = 9, sum(2 + i for i in range(8))
    total, squares = (K - n) + n / 2, (K - n) + n / 4
    assert steps[0]["ess_share"] == pytest.approx(total**2 / (K * squares), rel=1e-5)
    assert steps[0]["ratio_mean"] == pytest.approx(total / K, rel=1e-5)


def test_a_generator_of_other_weights_stops_the_run(newborn: Callable[[int], Path], tmp_path: Path) -> None:
    policy = newborn(3)
    with pytest.raises(ValueError) as caught:
        a_stage(training_batch(policy, versions=[3] * 8, shift=0.1), policy, tmp_path)
    assert str(caught.value) == (
        "mismatch between generator and trainer on policy version 3, batch 00003, is 0.1 nats a token; "
        "allowed: at most algorithm.max_mismatch = 0.02."
    )
    assert list(tmp_path.iterdir()) == []
    allowed = objective(max_mismatch=0.11)
    found = mismatch(
        open_trainer(policy), training_batch(policy, versions=[3] * 8, shift=0.1), allowed, policy_version=3
    )
    assert found == pytest.approx({"train/mismatch_mean": 0.1, "train/mismatch_max": 0.1}, abs=1e-5)


def test_trajectories_of_older_policies_are_allowed_to_differ(newborn_policy: Path) -> None:
    trainer, old = open_trainer(newborn_policy), training_batch(newborn_policy, versions=[2] * 8, shift=0.1)
    assert mismatch(trainer, old, ALGORITHM, policy_version=3) == {}
    # In a mixed batch the mean is over the fresh ones only; half of it is old and differs by 0.1.
    mixed = pa.concat_tables([training_batch(newborn_policy, versions=[3] * 8), old])
    assert mismatch(trainer, mixed, ALGORITHM, policy_version=3)["train/mismatch_mean"] < 1e-6


def test_with_lag_the_generator_is_compared_with_the_weights_that_sampled(
    newborn: Callable[[int], Path], tmp_path: Path
) -> None:
    # Policy 5 is trained on what policy 4 sampled: other weights, so that the ratios are not 1, and no mismatch.
    policy, sampler = newborn(5), newborn(4)
    table = training_batch(sampler, versions=[4] * 8)
    metrics = a_stage(table, policy, tmp_path / "right", sampler=sampler)
    assert metrics["train/mismatch_mean"] < 1e-6
    assert metrics["train/ratio_max"] > 1.5
    with pytest.raises(ValueError, match=r"mismatch between .* on policy version 4, batch 00004, is "):
        a_stage(training_batch(policy, versions=[4] * 8), policy, tmp_path / "wrong", sampler=sampler)
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_without_a_log_probability_is_dropped_and_counted(newborn_policy: Path, name: str) -> None:
    # Generator log-probabilities [-0.1, NaN, -0.2]: the step is that of a mask without the second token.
    table = training_batch(newborn_policy).slice(1, 1)  # two tokens of prompt and three sampled
    logprobs = [0.0, 0.0, -0.1, float("nan"), -0.2]
    with_nan = replaced(table, "logprobs", [logprobs])
    without = replaced(table, "logprobs", [[0.0, 0.0, -0.1, 0.0, -0.2]])
    without = replaced(without, "loss_mask", [[False, False, True, False, True]])
    algorithm = objective(name)
    found, expected = (
        train_on(rows, open_trainer(newborn_policy), algorithm, policy_version=5, seed=0)
        for rows in (with_nan, without)
    )
    assert found[1] == expected[1]
    assert all(math.isfinite(value) for step in found[1] for value in step.values())
    assert (found[0]["train/dropped_tokens"], expected[0]["train/dropped_tokens"]) == (1, 0)
    if name == "grpo":  # on unchanged weights: -(r1 + r2) A / 2, two tokens and not three
        ratios = np.exp(open_trainer(newborn_policy).score(flat_samples(table))[[2, 4]] - [-0.1, -0.2])
        kl = algorithm.kl_coefficient * found[1][0]["kl"]
        assert ratios.max() < 0.8  # no clip for a good token
        assert found[1][0]["loss"] == pytest.approx(-ratios.sum() * 0.5 / 2 + kl, rel=1e-4)


def test_a_batch_without_any_log_probability_stops_the_run(newborn: Callable[[int], Path], tmp_path: Path) -> None:
    policy = newborn(3)
    before = digest(policy)
    with pytest.raises(ValueError) as caught:
        a_stage(training_batch(policy, versions=[3] * 8, shift=float("nan")), policy, tmp_path)
    assert str(caught.value) == (
        "no sampled token of batch 00003 for policy version 3 has a log-probability of the generator that is finite; "
        "allowed: finite numbers."
    )
    assert list(tmp_path.iterdir()) == []
    assert digest(policy) == before


def test_a_loss_that_is_not_finite_names_version_and_batch_and_writes_nothing(
    newborn: Callable[[int], Path], tmp_path: Path
) -> None:
    policy = newborn(3)
    before = digest(policy)
    broken = replaced(training_batch(policy, versions=[3] * 8), "advantage", [-0.5, 0.5] * 3 + [-0.5, float("inf")])
    with pytest.raises(FloatingPointError) as caught:
        a_stage(broken, policy, tmp_path)
    said = str(caught.value)
    assert said.startswith("training of policy version 3 stopped in epoch 0, minibatch ")
    assert " of batch 00003: loss is " in said and said.endswith("; allowed: finite numbers.")
    assert list(tmp_path.iterdir()) == []
    assert digest(policy) == before


def test_a_trajectory_that_does_not_fit_is_refused_and_nothing_written(
    newborn: Callable[[int], Path], tmp_path: Path
) -> None:
    policy = newborn(3)
    table = training_batch(policy, versions=[3] * 8)
    for column, fill in (("token_ids", 5), ("loss_mask", False), ("logprobs", 0.0), ("reference_logprobs", 0.0)):
        *others, last = table[column].to_pylist()
        table = replaced(table, column, [*others, last + [fill] * 7])
    with pytest.raises(ValueError) as caught:
        a_stage(table, policy, tmp_path, config=CONFIG.replace(training=TRAINING.replace(seq_len=17)))
    assert str(caught.value) == "training.seq_len is 17; allowed: at least 18, the longest trajectory's tokens."
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_trajectory_has_no_effect(newborn_policy: Path) -> None:
    # As `rollout.truncated` = "drop" records it: no token to train on. The steps are those of a batch without it.
    table = training_batch(newborn_policy)
    masks = table["loss_mask"].to_pylist()
    dropped = replaced(table, "loss_mask", [*masks[:-1], [False] * len(masks[-1])])
    for name in LOSSES:
        one, other = (
            train_on(rows, open_trainer(newborn_policy), objective(name), policy_version=0, seed=0)[1]
            for rows in (dropped, table.slice(0, 7))
        )
        assert one == other


def test_with_importance_sampling_the_ratio_is_to_the_trainers_log_probabilities(newborn_policy: Path) -> None:
    # The generator's log-probabilities are 0.1 too high: each weight is e^-0.1, and the ratio starts at 1.
    table = training_batch(newborn_policy, versions=[2] * 8, shift=0.1)
    for level in ("token", "sequence"):
        algorithm = objective(importance_sampling="truncate", importance_sampling_level=level)
        _, steps = train_on(table, open_trainer(newborn_policy), algorithm, policy_version=3, seed=0)
        assert steps[0]["ratio_mean"] == pytest.approx(np.exp(-0.1), rel=1e-4)  # to the generator, as always
        assert steps[0]["weight_capped_share"] == 0
        if level == "token":
            assert steps[0]["weight_mean"] == pytest.approx(np.exp(-0.1), rel=1e-4)
    masked = objective(
        importance_sampling="mask", importance_sampling_cap=1.05, kl_coefficient=0
    )  # log 1.05 is below 0.1
    _, steps = train_on(table, open_trainer(newborn_policy), masked, policy_version=3, seed=0)
    assert steps[0]["weight_mean"] == 0 and steps[0]["weight_capped_share"] == 1
    assert steps[0]["loss"] == steps[0]["grad_norm"] == 0


def test_without_a_kl_no_reference_is_needed(newborn_policy: Path) -> None:
    table = training_batch(newborn_policy).drop(["reference_logprobs"])
    free = objective(kl_coefficient=0)
    metrics, _ = train_on(table, open_trainer(newborn_policy), free, policy_version=0, seed=0)
    assert metrics["train/steps"] == 4 and "train/kl" not in metrics


def test_an_end_of_turn_that_is_also_the_padding_is_trained_on(newborn_policy: Path) -> None:
    # Token 0 pads rows. Here it also ends the replies: that of good ones becomes more likely, that of bad ones less.
    table = training_batch(newborn_policy)
    tokens = [[*ids[:-1], 0] for ids in table["token_ids"].to_pylist()]
    masks = [[*[False] * (len(ids) - 1), True] for ids in tokens]  # nothing but the end is trained on
    table = replaced(replaced(table, "token_ids", tokens), "loss_mask", masks)
    trainer, data = open_trainer(newborn_policy), flat_samples(table)
    before = trainer.score(data)
    table = replaced(table, "logprobs", np.split(before, data.offsets_R[1:-1]))
    train_on(table, trainer, objective(kl_coefficient=0), policy_version=0, seed=0)
    gains = (trainer.score(data) - before)[data.offsets_R[1:] - 1]
    assert data.loss_mask_N.sum() == 8
    assert all(gains[i + 1] > gains[i] for i in range(0, 8, 2))


@pytest.mark.parametrize("empty", [lambda table: table.slice(0, 0), lambda table: gather([table, table], [])])
def test_a_batch_without_rows_takes_no_step(newborn_policy: Path, empty: Callable[[pa.Table], pa.Table]) -> None:
    trainer = open_trainer(newborn_policy)
    before, rate = weights(trainer), trainer.learning_rate
    rows = empty(training_batch(newborn_policy))
    assert mismatch(trainer, rows, ALGORITHM, policy_version=0) == {}
    metrics, steps = train_on(rows, trainer, ALGORITHM, policy_version=0, seed=0)
    assert steps == []
    assert unchanged(trainer, before)
    assert metrics["train/steps"] == optimizer_steps(trainer) == 0
    assert "train/loss" not in metrics
    assert trainer.learning_rate < rate  # the iteration still counts


def two_stages(first: Path, folder: Path, tokens: tuple[str, str], **training: Any) -> Path:
    config = CONFIG.replace(training=TRAINING.replace(**training))
    policy, state = first, None
    for version, token in enumerate(tokens):
        target, target_state = folder / f"policy-{version + 1}", folder / f"state-{version + 1}"
        next_policy(
            training_batch(policy, versions=[version] * 8, seed=version),
            policy,
            policy,
            state,
            config,
            run(token, iterations=3),
            target=target,
            target_state=target_state,
        )
        policy, state = target, target_state
    return policy


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [LoraConfig(), LORA], ids=["all weights", "adapters"])
def test_a_run_that_continued_from_its_files_writes_the_same_bytes(
    newborn: Callable[[int], Path], tmp_path: Path, lora: LoraConfig, kept: str
) -> None:
    # A policy in bfloat16 is rounded, and adapters are merged into it: to continue from the policy alone would differ.
    first = newborn(0) if kept == "float32" else in_bfloat16(newborn(0), tmp_path / "first")
    in_one_go = two_stages(first, tmp_path / "one", ("a", "a"), lora=lora)  # the second stage finds a warm trainer
    from_files = two_stages(first, tmp_path / "two", ("b", "c"), lora=lora)  # there is no warm trainer of the run "c"
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (in_one_go, from_files)
    )
    assert one == two
    assert (Path(ADAPTER, "adapter_model.safetensors") in one) is (lora.rank > 0)


def test_the_second_version_is_policy_0_with_an_adapter_of_its_own(tiny_policy: Path, tmp_path: Path) -> None:
    second = two_stages(tiny_policy, tmp_path, ("f", "g"), lora=LORA)  # and not the first version with it
    theirs, ours = by_peft(tiny_policy, second / ADAPTER), load_file(second / "model.safetensors")
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-6, atol=1e-6, msg=name)
    first = tmp_path / "policy-1"
    adapters = [(folder / ADAPTER / "adapter_model.safetensors").read_bytes() for folder in (first, second)]
    assert adapters[0] != adapters[1]
    shutil.rmtree(second / ADAPTER)
    assert read_manifest(second).version == 2  # the digest does not depend on the adapter


def test_the_next_policy_names_its_parent(tiny_policy: Path, tmp_path: Path) -> None:
    last = read_manifest(two_stages(tiny_policy, tmp_path, ("d", "d")))
    middle = read_manifest(tmp_path / "policy-1")
    assert (middle.version, middle.parent) == (1, read_manifest(tiny_policy).digest)
    assert (last.version, last.parent) == (2, middle.digest)
    assert len({read_manifest(tiny_policy).digest, middle.digest, last.digest}) == 3


@given(
    stages=st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=6),
    reuse=st.integers(1, 3),
    wanted=st.integers(1, 8),
    epochs=st.integers(1, 3),
    minibatch_size=st.integers(1, 5),
)
def test_every_sampled_token_is_trained_on_at_most_reuse_times_epochs(
    stages: list[list[bool]], reuse: int, wanted: int, epochs: int, minibatch_size: int
) -> None:
    # From the buffer to the packed rows. Each token has its own number; `stages` say whether rewards of a group differ.
    numbers, batches, uses, counts = itertools.count(), [], {}, Counter()
    buffer = BufferConfig(max_age=2, reuse=reuse)
    training = TrainingConfig(epochs=epochs, minibatch_size=minibatch_size, seq_len=16)
    for version, groups in enumerate(stages):
        rows = [
            {
                "trajectory_id": f"{version}-{g}-{i}",
                "group_id": f"{version}-{g}",
                "policy_version": version,
                "token_ids": [next(numbers) for _ in range(3 + i)],
                "loss_mask": [False, *[True] * (2 + i)],
                "logprobs": [-1.0] * (3 + i),
                "advantage": (i - 0.5) * differ,
            }
            for g, differ in enumerate(groups)
            for i in range(2)
        ]
        batches.append(pa.Table.from_pylist(rows))
        recent = batches[-3:]
        chosen = select_groups(recent, buffer, wanted=wanted, uses=uses, policy_version=version, seed=0)
        uses = chosen.uses
        data, _ = trainable(gather(recent, chosen.group_ids))
        for _, _, members in minibatches(data, training, seed=0, policy_version=version):
            packed = build_rows(data, plan_rows(data, members, training.seq_len))
            counts.update(packed.target_K.tolist())
    learned = {t for b in batches for row in b.to_pylist() if row["advantage"] for t in row["token_ids"][1:]}
    assert set(counts) <= learned
    assert all(count <= reuse * epochs and count % epochs == 0 for count in counts.values())
    if wanted == 8 and reuse == 1 and len(stages) == 1:
        assert set(counts) == learned


def test_minibatches_are_of_whole_trajectories() -> None:
    # Six trajectories, of which the second is in three samples and the fifth in two, one of these without a token left.
    owner = np.array([0, 1, 1, 1, 2, 3, 4, 4, 5])
    mask = np.array([[False, True]] * 7 + [[False, False], [False, True]]).reshape(-1)
    data = FlatSamples(np.arange(0, 19, 2), np.arange(18), mask, owner)
    training = TrainingConfig(epochs=2, minibatch_size=2)
    seen = list(minibatches(data, training, seed=0, policy_version=0))
    assert [(epoch, number) for epoch, number, _ in seen] == [(e, n) for e in range(2) for n in range(3)]
    for epoch in range(2):
        members = [m.tolist() for e, _, m in seen if e == epoch]
        assert sorted(r for m in members for r in m) == [0, 1, 2, 3, 4, 5, 6, 8]
        assert all(len(set(owner[m])) == 2 for m in members)
        assert [m for m in members if 1 in m] == [m for m in members if {1, 2, 3} <= set(m)]


def test_a_step_counts_a_trajectory_once_however_many_samples_it_is_in(newborn_policy: Path) -> None:
    table, sizes = training_batch(newborn_policy), []

    def loss(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, size: StepTotals):
        sizes.append(size)
        return logprobs_K.sum(), {}

    for ids in ("abcdefgh", "aabcccde"):
        data = flat_samples(replaced(table, "trajectory_id", list(ids)))
        open_trainer(newborn_policy).step(data, [0, 1, 3, 4, 5], loss)
    assert {(s.tokens, s.trajectories) for s in sizes} == {(2 + 3 + 5 + 6 + 7, 5), (2 + 3 + 5 + 6 + 7, 2)}


def test_the_seed_decides_the_minibatches(tiny_policy: Path) -> None:
    def trained(seed: int) -> list[torch.Tensor]:
        trainer = open_trainer(tiny_policy)
        train_on(training_batch(tiny_policy), trainer, ALGORITHM, policy_version=0, seed=seed)
        return weights(trainer)

    first, again, other = trained(0), trained(0), trained(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
