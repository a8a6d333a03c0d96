"""Optimizer steps, the schedule, and a training that continues from its state."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from objectives import objective, optimizer_steps
from tasks.config import AlgorithmConfig, TrainingConfig
from tasks.training.losses import LOSSES, SampledTokens, StepTotals, supervised_loss
from tasks.training.model import full_tensor
from tasks.training.packing import FlatSamples, Rows, build_rows, flat_samples
from tasks.training.train import batch_loss
from tasks.training.trainer import Trainer, token_logprobs

LENGTHS = (1 + 1, 9 + 1, 5, 7)  # the first two are of 1 and of 9 sampled tokens
CONFIG = TrainingConfig(learning_rate=1e-2, warmup_iterations=0)


def trajectories() -> FlatSamples:
    offsets = np.cumsum([0, *LENGTHS])
    mask = np.ones(offsets[-1], dtype=bool)
    mask[offsets[:-1]] = False
    return FlatSamples(offsets, np.random.default_rng(0).integers(3, 300, offsets[-1]), mask)


class OneARow(Trainer):
    """Trains without packing: each sample has its own row, padded to the longest."""

    def plan(self, data: FlatSamples, samples: Sequence[int]) -> list[list[int]]:
        return [[r] for r in samples]


def trainer(policy: Path, *, layout: type[Trainer] = Trainer, schedule_steps: int = 10, **changes: float) -> Trainer:
    return layout(policy, CONFIG.replace(**changes), temperature=1.0, schedule_steps=schedule_steps)


def imitate(of: Trainer, members: list[int]) -> dict[str, float]:
    return of.step(trajectories(), members, supervised_loss)


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: full_tensor(weight.detach()).clone() for name, weight in of.model.named_parameters()}


def the_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradient_that_the_optimizer_sees(of: Trainer) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    (optimizer,) = of.optimizers.optimizers

    def look(*_: object) -> None:
        seen.clear()
        seen.extend(full_tensor(w.grad).clone().flatten() for w in of.model.parameters() if w.grad is not None)

    optimizer.register_step_pre_hook(look)
    return seen


def test_a_gradient_above_the_limit_is_scaled_to_it(newborn_policy: Path) -> None:
    free, held = trainer(newborn_policy, max_norm=1e6), trainer(newborn_policy, max_norm=0.25)
    free_gradient, held_gradient = gradient_that_the_optimizer_sees(free), gradient_that_the_optimizer_sees(held)
    reported = imitate(free, [0, 1])["grad_norm"]
    assert imitate(held, [0, 1])["grad_norm"] == reported  # before clipping
    assert reported > 0.5
    whole, scaled = torch.cat(free_gradient), torch.cat(held_gradient)
    assert float(whole.norm()) == pytest.approx(reported, rel=1e-5)
    assert float(scaled.norm()) == pytest.approx(0.25, rel=1e-4)
    torch.testing.assert_close(scaled, whole * (0.25 / reported), rtol=1e-4, atol=1e-8)


def test_a_step_in_parts_has_the_gradient_of_a_step_at_once(newborn_policy: Path) -> None:
    at_once, in_parts = trainer(newborn_policy, max_norm=1e6), trainer(newborn_policy, max_norm=1e6, rows=1, seq_len=16)
    one, other = gradient_that_the_optimizer_sees(at_once), gradient_that_the_optimizer_sees(in_parts)
    # Trajectories of 1 and 9 sampled tokens and 2 of 4 and 6: in rows of at most 16 tokens, a row a part.
    first, second = imitate(at_once, [0, 1, 2, 3]), imitate(in_parts, [0, 1, 2, 3])
    assert first == pytest.approx(second, rel=1e-5)
    torch.testing.assert_close(torch.cat(one), torch.cat(other), rtol=1e-4, atol=1e-7)


ALGORITHMS = {name: objective(name, entropy_coefficient=0.01) for name in LOSSES}
TRUNCATED = objective(importance_sampling="truncate", importance_sampling_level="sequence")
ALGORITHMS["importance sampling"] = TRUNCATED


def training_batch(policy: Path, ids: str = "abcd") -> pa.Table:
    """The trajectories as a policy near `policy` sampled them: its weights and the reference's differ a little.
    `ids` says which trajectory each is a sample of.

    The ratios are about 1.1, 1.2, 2.5 and 0.9: of these, only the third is clipped.
    """
    draw, data = np.random.default_rng(1), trajectories()
    scores, mask = trainer(policy).score(data), data.loss_mask_N

    def near(shift_R: Sequence[float]) -> np.ndarray:
        noise = draw.normal(0, 0.05, len(mask))
        return (scores + (np.repeat(shift_R, data.lengths_R) + noise) * mask).astype(np.float32)

    columns = {
        "token_ids": data.token_ids_N,
        "loss_mask": mask,
        "logprobs": near([-0.1, -0.2, -0.9, 0.1]),
        "reference_logprobs": near([0.4, -0.3, 0.2, -0.5]),
    }
    lists = {name: np.split(values, data.offsets_R[1:-1]) for name, values in columns.items()}
    return pa.table({"trajectory_id": list(ids), **lists, "advantage": np.float32([0.5, -0.75, 1.0, -0.25])})


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_sharing_prefixes_changes_neither_loss_nor_gradient(newborn_policy: Path, algorithm: AlgorithmConfig) -> None:
    # Three trajectories with the same prompt of three tokens, and one with another prompt.
    table = training_batch(newborn_policy)
    prompt = [7, 8, 9]
    rows = table.to_pylist()
    for row in rows[:3]:
        row["token_ids"] = prompt + row["token_ids"][1:]
        for name, filler in (("loss_mask", False), ("logprobs", 0.0), ("reference_logprobs", 0.0)):
            row[name] = [filler] * 3 + row[name][1:]
    table = pa.Table.from_pylist(rows, schema=table.schema)
    shared = trainer(newborn_policy, max_norm=1e6, seq_len=32)
    found, gradient, passes = a_step(table, shared, [0, 1, 2, 3], algorithm)
    alone = trainer(newborn_policy, max_norm=1e6, seq_len=32)
    alone.plan = lambda data, samples: [[r] for r in samples]
    other, other_gradient, other_passes = a_step(table, alone, [0, 1, 2, 3], algorithm)
    assert found == pytest.approx(other, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-3, atol=1e-6)
    assert passes != other_passes  # two copies of the prompt fewer


def a_step(
    table: pa.Table, of: Trainer, members: list[int], algorithm: AlgorithmConfig
) -> tuple[dict[str, float], torch.Tensor, list[tuple[int, ...]]]:
    """What an optimizer step measured, its gradient, and rows and columns of each microbatch."""
    data, gradient, passes = flat_samples(table), gradient_that_the_optimizer_sees(of), []
    inner = batch_loss(table, data, of, algorithm)

    def loss(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, size: StepTotals):
        passes.append(tuple(rows.token_ids_BT.shape))
        return inner(logprobs_K, entropy_K, rows, size)

    found = of.step(data, members, loss)
    return found, torch.cat(gradient), passes


@pytest.mark.parametrize("name", ALGORITHMS)
def test_packing_changes_neither_loss_nor_gradient(newborn_policy: Path, name: str) -> None:
    table, everyone = training_batch(newborn_policy), [0, 1, 2, 3]
    packed = a_step(table, trainer(newborn_policy, max_norm=1e6), everyone, ALGORITHMS[name])
    unpacked = a_step(table, trainer(newborn_policy, max_norm=1e6, layout=OneARow), everyone, ALGORITHMS[name])
    assert (packed[2], unpacked[2]) == ([(1, 2 + 10 + 5 + 7)], [(4, 10)])
    assert packed[0] == pytest.approx(unpacked[0], rel=1e-5, abs=1e-6)
    assert (packed[1] - unpacked[1]).abs().max() <= 1e-5
    assert packed[1].abs().max() > 0.1 and packed[0]["grad_norm"] > 1
    assert 0 < packed[0]["clip_share"] < 1 or name == "importance sampling"  # its ratio starts at 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_and_nine_tokens_count_the_same_in_one_and_in_two_microbatches(newborn_policy: Path, name: str) -> None:
    table = training_batch(newborn_policy)
    assert flat_samples(table).sampled_R[:2].tolist() == [1, 9]
    at_once = a_step(table, trainer(newborn_policy, max_norm=1e6), [0, 1], ALGORITHMS[name])
    in_parts = a_step(table, trainer(newborn_policy, max_norm=1e6, layout=OneARow, rows=1), [0, 1], ALGORITHMS[name])
    assert (at_once[2], in_parts[2]) == ([(1, 2 + 10)], [(1, 2), (1, 10)])
    assert at_once[0] == pytest.approx(in_parts[0], rel=1e-5, abs=1e-6)
    assert (at_once[1] - in_parts[1]).abs().max() <= 1e-5
    assert at_once[1].abs().max() > 0.1 and at_once[0]["grad_norm"] > 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_samples_of_a_trajectory_may_be_in_different_microbatches(newborn_policy: Path, name: str) -> None:
    table, of = training_batch(newborn_policy, ids="abab"), [trainer(newborn_policy, max_norm=1e6)]
    of.append(trainer(newborn_policy, max_norm=1e6, layout=OneARow, rows=1))
    at_once, in_parts = (a_step(table, one, [0, 1, 2, 3], ALGORITHMS[name]) for one in of)
    assert (at_once[2], in_parts[2]) == ([(1, 2 + 10 + 5 + 7)], [(1, 2), (1, 10), (1, 5), (1, 7)])
    assert at_once[0] == pytest.approx(in_parts[0], rel=1e-5, abs=1e-6)
    assert (at_once[1] - in_parts[1]).abs().max() <= 1e-5
    # The trajectory of a sample matters only where a loss counts trajectories.
    apart = a_step(
        training_batch(newborn_policy), trainer(newborn_policy, max_norm=1e6), [0, 1, 2, 3], ALGORITHMS[name]
    )
    assert (abs(at_once[0]["loss"] - apart[0]["loss"]) > 1e-3) == (name in ("dr_grpo", "gspo", "importance sampling"))


def test_the_importance_weight_of_a_sequence_is_the_product_over_a_trajectory(newborn_policy: Path) -> None:
    table = training_batch(newborn_policy, ids="abca")
    data, of = flat_samples(table), trainer(newborn_policy)
    log_w = np.split(of.score(data) - np.concatenate(table["logprobs"].to_pylist()), data.offsets_R[1:-1])
    a, b, c = (sum(float(log_w[r].sum()) for r in rows) for rows in ([0, 3], [1], [2]))
    wanted = np.minimum(2, np.exp([a, b, c, a]))  # of each sample's tokens, of which there are 1, 9, 4 and 6
    first = float(log_w[0].sum())  # of the first sample alone: a larger weight than that of its trajectory
    assert min(np.exp([b, c])) > 2 and np.exp(a) < 1 < np.exp(first)
    found, _, _ = a_step(table, of, [0, 1, 2, 3], TRUNCATED)
    assert found["weight_mean"] == pytest.approx(float(wanted @ [1, 9, 4, 6]) / 20, rel=1e-4)


def test_the_loss_of_a_step_is_the_mean_over_all_its_sampled_tokens(newborn_policy: Path) -> None:
    scores = trainer(newborn_policy).score(trajectories())
    assert imitate(trainer(newborn_policy), [0, 1])["loss"] == pytest.approx(-scores[:12].sum() / 10, rel=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing(tiny_policy: Path) -> None:
    spoilt, clean = trainer(tiny_policy), trainer(tiny_policy)
    imitate(spoilt, [2])
    imitate(clean, [2])

    def broken(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, size: StepTotals):
        return logprobs_K.sum() * math.nan, {}

    def steep(logprobs_K: torch.Tensor, entropy_K: torch.Tensor, rows: Rows, size: StepTotals):
        return (logprobs_K - logprobs_K.detach()).abs().sqrt().sum(), {}  # 0, with an infinite slope

    with pytest.raises(FloatingPointError, match="loss is nan"):
        spoilt.step(trajectories(), [0, 1], broken)
    with pytest.raises(FloatingPointError, match=r"loss is 0.0 and the gradient norm nan; allowed: finite numbers"):
        spoilt.step(trajectories(), [0, 1], steep)
    assert the_same(weights(spoilt), weights(clean))
    assert optimizer_steps(spoilt) == 1
    imitate(spoilt, [3])
    imitate(clean, [3])
    assert the_same(weights(spoilt), weights(clean))  # the optimizer's moments are unchanged too


def test_the_same_steps_give_the_same_weights_to_the_last_bit(tiny_policy: Path) -> None:
    first, second, other = (trainer(tiny_policy) for _ in range(3))
    for members in ([0, 1], [2, 3], [1]):
        imitate(first, members)
        imitate(second, members)
        imitate(other, members[:1])
    assert the_same(weights(first), weights(second))
    assert not the_same(weights(first), weights(other))


def test_a_loaded_state_continues_bit_for_bit(tiny_policy: Path, tmp_path: Path) -> None:
    before = trainer(tiny_policy, warmup_iterations=3)
    for members in ([0, 1], [2, 3]):
        imitate(before, members)
        before.schedule.step()
    before.save_state(tmp_path / "state")
    at_the_save = weights(before)

    after = trainer(tiny_policy, warmup_iterations=3)
    after.load_state(tmp_path / "state")
    assert the_same(weights(after), at_the_save)
    assert (optimizer_steps(after), after.learning_rate) == (2, before.learning_rate)
    for one in (before, after):
        imitate(one, [0, 3])
        one.schedule.step()
        imitate(one, [1])
    assert the_same(weights(after), weights(before))
    assert not the_same(weights(after), at_the_save)


def test_a_policy_without_its_state_continues_differently(tiny_policy: Path, tmp_path: Path) -> None:
    # The state also has Adam's moments.
    before = trainer(tiny_policy)
    imitate(before, [0, 1])
    exported = tmp_path / "policy"
    exported.mkdir()
    before.export(tiny_policy, exported)
    without = trainer(exported)
    assert the_same(weights(without), weights(before))
    for one in (before, without):
        imitate(one, [2])
    assert not the_same(weights(without), weights(before))


def test_the_learning_rate_follows_the_run_and_not_the_optimizer_steps(tiny_policy: Path) -> None:
    run = trainer(tiny_policy, schedule_steps=5, learning_rate=0.1, warmup_iterations=2, min_lr_factor=0.1)
    rates = []
    for iteration in range(5):
        for _ in range(iteration):
            imitate(run, [0])
        rates.append(run.learning_rate)
        run.schedule.step()
    # two warm-up steps, one constant; of three steps down from 1 to 0.1 the last would be the sixth iteration's
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.07, 0.04])


def test_more_warmup_than_iterations(tiny_policy: Path) -> None:
    run = trainer(tiny_policy, schedule_steps=1, learning_rate=0.1, warmup_iterations=2)
    assert run.learning_rate == pytest.approx(0.1)


def test_the_temperature_divides_the_logits(tiny_policy: Path) -> None:
    cold = Trainer(tiny_policy, CONFIG, temperature=1e-3, schedule_steps=1).score(trajectories())
    hot = Trainer(tiny_policy, CONFIG, temperature=1e6, schedule_steps=1).score(trajectories())
    mask = trajectories().loss_mask_N
    vocabulary = weights(trainer(tiny_policy))["lm_head.weight"].shape[0]
    assert hot[mask] == pytest.approx(-math.log(vocabulary), abs=1e-4)  # all tokens are equally likely
    assert np.median(cold[mask]) < -100


def by_vllm(logits_V: list[float], temperature: float) -> torch.Tensor:
    """The log-probabilities that vLLM's sampler reports, as the engine asks for them: [V]."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    request = SamplingMetadata(
        temperature=torch.tensor([temperature]),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(1),
        presence_penalties=torch.zeros(1),
        repetition_penalties=torch.ones(1),
        output_token_ids=[[]],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    _, logprobs_BV = Sampler("processed_logprobs").sample(torch.tensor([logits_V]), request)
    assert logprobs_BV is not None
    return logprobs_BV[0]


def test_log_probabilities_at_a_temperature_by_hand_and_by_vllm() -> None:
    # Logits 2, 1, 0 at temperature 0.5 are 4, 2, 0: e^4 = 54.598, e^2 = 7.389 and 1, of 62.987 together.
    logprobs_K, entropy_K = token_logprobs(torch.tensor([[2.0, 1.0, 0.0]] * 3), torch.tensor([0, 1, 2]), 0.5)
    assert logprobs_K.exp().tolist() == pytest.approx([0.8668, 0.1173, 0.0159], abs=5e-5)
    assert logprobs_K.tolist() == pytest.approx([4 - 4.14293, 2 - 4.14293, -4.14293], abs=1e-5)  # log 62.987
    # 0.8668 x 0.1429 + 0.1173 x 2.1429 + 0.0159 x 4.1429
    assert entropy_K.tolist() == pytest.approx([0.4411] * 3, abs=1e-4)

    generator_K = by_vllm([2.0, 1.0, 0.0], 0.5)
    assert generator_K.exp().tolist() == pytest.approx([0.8668, 0.1173, 0.0159], abs=5e-5)
    tokens = SampledTokens(
        logprobs_K=logprobs_K,
        entropy_K=entropy_K,
        generator_logprobs_K=generator_K,
        old_logprobs_K=generator_K,
        importance_weights_K=torch.ones(3),
        reference_logprobs_K=None,
        advantages_K=torch.ones(3),
        sample_K=torch.arange(3),
        trajectory_tokens_K=torch.ones(3),
    )
    assert tokens.ratio_K.tolist() == [1, 1, 1]  # for each of the three as the sampled one


def test_the_gradient_of_a_shared_place_is_the_same_every_time(newborn_policy: Path) -> None:
    # 400 samples differ in the one token that was sampled behind a shared prompt: its place is taken 400 times.
    # A sum of floats depends on their order.
    prompt, count = [1, 40, 41, 42], 400
    tokens = np.concatenate([[*prompt, 50 + i % 200] for i in range(count)])
    mask = np.tile([False] * len(prompt) + [True], count)
    data = FlatSamples(np.arange(count + 1) * (len(prompt) + 1), tokens, mask)
    trainer = Trainer(newborn_policy, TrainingConfig(seq_len=512), temperature=1.0, schedule_steps=1)
    weights_K = torch.from_numpy(np.random.default_rng(0).normal(size=count)).float()
    seen = set()
    for _ in range(20):
        rows = build_rows(data, trainer.plan(data, range(count)))
        (trainer._forward(rows)[0] * weights_K).sum().backward()
        gradients = [
            full_tensor(weight.grad).numpy().tobytes() for weight in trainer.trained if weight.grad is not None
        ]
        seen.add(hashlib.sha256(b"".join(gradients)).hexdigest())
        trainer.optimizers.zero_grad()
    assert len(seen) == 1
