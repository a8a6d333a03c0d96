"""The five objectives, token by token, against numbers worked out by hand."""

from collections.abc import Sequence
from math import exp, inf, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives import objective
from tasks.config import CLIPS, AlgorithmConfig
from tasks.training.losses import (
    LOSSES,
    SampledTokens,
    StepTotals,
    exp_limited,
    importance_weights,
    supervised_loss,
)

NAMES = tuple(LOSSES)


def numbers(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plain(name: str = "grpo", **changes: object) -> AlgorithmConfig:
    return objective(name, **{"kl_coefficient": 0.0, **changes})


def sampled(
    probabilities: Sequence[float],
    generator: Sequence[float],
    advantages: Sequence[float],
    *,
    reference: Sequence[float] | None = None,
    old: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    trajectory: Sequence[int] | None = None,
    sample: Sequence[int] | None = None,
    entropy: float = 0.7,
) -> SampledTokens:
    """Tokens to which policy, generator, reference and old policy give these probabilities. By default they are one
    trajectory, and each trajectory is one sample.
    """
    K = len(probabilities)
    owner = [0] * K if trajectory is None else trajectory
    return SampledTokens(
        logprobs_K=numbers(np.log(probabilities)).requires_grad_(),
        entropy_K=torch.full((K,), entropy, dtype=torch.float64),
        generator_logprobs_K=numbers(np.log(generator)),
        old_logprobs_K=numbers(np.log(generator if old is None else old)),
        importance_weights_K=numbers([1.0] * K if weights is None else weights),
        reference_logprobs_K=numbers(np.log(probabilities if reference is None else reference)),
        advantages_K=numbers(advantages),
        sample_K=torch.tensor(owner if sample is None else sample, dtype=torch.long),
        trajectory_tokens_K=numbers([list(owner).count(t) for t in owner]),
    )


def outcome(
    tokens: SampledTokens, config: AlgorithmConfig, totals: StepTotals | None = None
) -> tuple[float, list[float], dict[str, float]]:
    """Loss, its slope for each log-probability, and the sums measured. By default the tokens are a whole step, and each
    sample a trajectory.
    """
    size = totals or StepTotals(len(tokens.logprobs_K), len(tokens.sample_K.unique()))
    loss, metrics = LOSSES[config.name](tokens, size, config)
    (slope,) = torch.autograd.grad(loss, tokens.logprobs_K)
    return loss.item(), slope.tolist(), {name: value.item() for name, value in metrics.items()}


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo"])
@pytest.mark.parametrize(
    ("probability", "advantage", "loss", "slope", "clipped"),
    [
        (0.75, 2.0, -2.4, 0.0, 1),  # ratio 1.5 of a good token, beyond the clip: -1.2 x 2, no gradient
        (0.75, -2.0, 3.0, 3.0, 0),  # ratio 1.5 of a bad token: the gradient lowers it
        (0.25, 2.0, -1.0, -1.0, 0),  # ratio 0.5 of a good token: the gradient raises it
        (0.25, -2.0, 1.6, 0.0, 1),  # ratio 0.5 of a bad token, beyond the clip: -0.8 x -2
        (0.55, 2.0, -2.2, -2.2, 0),  # ratio 1.1, within the clip on both sides of 0
        (0.55, -2.0, 2.2, 2.2, 0),
    ],
)
def test_the_clip_removes_the_gradient_in_one_direction_only(
    name: str, probability: float, advantage: float, loss: float, slope: float, clipped: int
) -> None:
    config = plain(name, clip_low=0.2, clip_high=0.2)
    found, slopes, metrics = outcome(sampled([probability], [0.5], [advantage]), config)
    assert found == pytest.approx(loss, abs=1e-12)
    assert slopes == [pytest.approx(slope, abs=1e-12)]
    assert metrics["clip_share"] == clipped
    assert metrics["ratio_mean"] == metrics["ratio_max"] == pytest.approx(probability / 0.5)
    assert metrics["ratio_square"] == pytest.approx((probability / 0.5) ** 2)


def test_dapo_has_more_room_above_than_below() -> None:
    # Ratio 1.25 of a good token: within DAPO's 1.28, beyond 1.2. Ratio 0.75 of a bad one: beyond both.
    risen, fallen = sampled([0.625], [0.5], [1.0]), sampled([0.375], [0.5], [-1.0])
    assert outcome(risen, plain("dapo"))[:2] == (pytest.approx(-1.25), [pytest.approx(-1.25)])
    assert outcome(risen, plain("grpo"))[:2] == (pytest.approx(-1.2), [0.0])
    assert outcome(sampled([0.65], [0.5], [1.0]), plain("dapo"))[:2] == (pytest.approx(-1.28), [0.0])
    for name in ("dapo", "grpo"):
        assert outcome(fallen, plain(name))[:2] == (pytest.approx(0.8), [0.0])


# Two trajectories: A of three tokens with advantage 1, B of one token with advantage -2. All tokens had probability 0.5
# where they were sampled; now 0.55, 0.5, 0.45 and 0.55: ratios 1.1, 1, 0.9 and 1.1, within any clip.
UNEVEN = {"probabilities": [0.55, 0.5, 0.45, 0.55], "generator": [0.5] * 4, "advantages": [1.0, 1.0, 1.0, -2.0]}


@pytest.mark.parametrize(
    ("name", "loss", "slopes"),
    [
        # sum of ratio A = 1.1 + 1 + 0.9 - 2.2 = 0.8, over 4 tokens
        ("grpo", -0.8 / 4, [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4]),
        ("dapo", -0.8 / 4, [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4]),
        # the same sum over 2 trajectories: A's three tokens count three times
        ("dr_grpo", -0.8 / 2, [-1.1 / 2, -1 / 2, -0.9 / 2, 2.2 / 2]),
        # s of A is the cube root of 1.1 x 1 x 0.9 = 0.99, of B 1.1; each counts once, each token of A a third of it
        ("gspo", -(0.99 ** (1 / 3) - 2.2) / 2, [-(0.99 ** (1 / 3)) / 6] * 3 + [2.2 / 2]),
        # the ratio is held fixed, the log-probability carries the slope
        (
            "cispo",
            -(1.1 * log(0.55) + log(0.5) + 0.9 * log(0.45) - 2.2 * log(0.55)) / 4,
            [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4],
        ),
    ],
)
def test_lengths_count_as_each_algorithm_says(name: str, loss: float, slopes: list[float]) -> None:
    found, found_slopes, _ = outcome(sampled(**UNEVEN, trajectory=[0, 0, 0, 1]), plain(name))
    assert found == pytest.approx(loss, abs=1e-12)
    assert found_slopes == pytest.approx(slopes, abs=1e-12)


SPLIT = {
    # As before: a sum over tokens does not depend on their samples, and A still counts once.
    "grpo": (-0.8 / 4, [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4]),
    "dapo": (-0.8 / 4, [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4]),
    "dr_grpo": (-0.8 / 2, [-1.1 / 2, -1 / 2, -0.9 / 2, 2.2 / 2]),
    "cispo": (
        -(1.1 * log(0.55) + log(0.5) + 0.9 * log(0.45) - 2.2 * log(0.55)) / 4,
        [-1.1 / 4, -1 / 4, -0.9 / 4, 2.2 / 4],
    ),
    # A's samples have an s of 1.1 and of sqrt(1 x 0.9), and are a third and two thirds of A; each token carries a third
    # of its sample's s.
    "gspo": (-(1.1 / 3 + 2 * sqrt(0.9) / 3 - 2.2) / 2, [-1.1 / 6, -sqrt(0.9) / 6, -sqrt(0.9) / 6, 2.2 / 2]),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_trajectory_in_two_samples_by_hand(name: str) -> None:
    # A's first token is one sample, its other two are the next.
    tokens = sampled(**UNEVEN, trajectory=[0, 0, 0, 1], sample=[0, 1, 1, 2])
    loss, slopes = SPLIT[name]
    found, found_slopes, _ = outcome(tokens, plain(name), StepTotals(tokens=4, trajectories=2))
    assert found == pytest.approx(loss, abs=1e-12)
    assert found_slopes == pytest.approx(slopes, abs=1e-12)
    # Each sample in a microbatch of its own, in another order: the parts know only the totals of the whole.
    parts, parts_slopes = 0.0, {}
    for places in ([1, 2], [3], [0]):
        part = SampledTokens(
            logprobs_K=tokens.logprobs_K.detach()[places].requires_grad_(),
            entropy_K=tokens.entropy_K[places],
            generator_logprobs_K=tokens.generator_logprobs_K[places],
            old_logprobs_K=tokens.old_logprobs_K[places],
            importance_weights_K=tokens.importance_weights_K[places],
            reference_logprobs_K=None,
            advantages_K=tokens.advantages_K[places],
            sample_K=torch.zeros(len(places), dtype=torch.long),
            trajectory_tokens_K=tokens.trajectory_tokens_K[places],
        )
        value, slope, _ = outcome(part, plain(name), StepTotals(tokens=4, trajectories=2))
        parts += value
        parts_slopes |= dict(zip(places, slope, strict=True))
    assert parts == pytest.approx(loss, abs=1e-12)
    assert [parts_slopes[k] for k in range(4)] == pytest.approx(slopes, abs=1e-12)


def test_gspo_clips_whole_trajectories() -> None:
    # Ratios 1.8 and 0.9 of a good trajectory: s = sqrt(1.62) = 1.273, beyond 1.2, so that neither token has a slope.
    # Token by token only the first would be clipped.
    tokens = sampled([0.9, 0.45], [0.5, 0.5], [1.0, 1.0])
    loss, slopes, metrics = outcome(tokens, plain("gspo", clip_high=0.2))
    assert (loss, slopes, metrics["clip_share"]) == (pytest.approx(-1.2), [0, 0], 2)
    assert outcome(tokens, plain("grpo"))[1] == [0, pytest.approx(-0.45)]
    # Not clipped, each token carries s / 2.
    assert outcome(tokens, plain("gspo", clip_high=0.3))[1] == pytest.approx([-sqrt(1.62) / 2] * 2)


def test_cispo_caps_the_weight_and_keeps_every_gradient() -> None:
    # Ratio 1.8, under its cap of 2; ratio 4, over it; ratio 0.1, with no bound below.
    tokens = sampled([0.9, 0.8, 0.05], [0.5, 0.2, 0.5], [1.0, 1.0, -1.0])
    _, slopes, metrics = outcome(tokens, plain("cispo", clip_high=1.0), StepTotals(1, 1))
    assert slopes == pytest.approx([-1.8, -2.0, 0.1])
    assert metrics["clip_share"] == 1
    assert outcome(tokens, plain("cispo", clip_low=0.2), StepTotals(1, 1))[1] == pytest.approx([-1.28, -1.28, 0.8])
    # The clip of the other losses removes all three gradients.
    assert outcome(tokens, plain("grpo"), StepTotals(1, 1))[1] == [0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_on_the_generators_own_log_probabilities_it_is_the_policy_gradient(name: str) -> None:
    probabilities = [0.1, 0.6, 0.3, 0.9]
    advantages = [1.0, 1.0, -1.0, -1.0]
    _, slopes, metrics = outcome(
        sampled(probabilities, probabilities, advantages, trajectory=[0, 0, 1, 1]), plain(name)
    )
    share = {"dr_grpo": 2}.get(name, 4)  # gspo: two trajectories of two tokens
    assert slopes == pytest.approx([-a / share for a in advantages], abs=1e-12)
    assert metrics["ratio_mean"] == 4 and metrics["ratio_max"] == 1 and metrics["clip_share"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_step_in_two_unequal_parts_has_the_gradient_of_the_whole(name: str) -> None:
    draw = np.random.default_rng(1)
    probabilities, generator, reference = (draw.uniform(0.2, 0.9, 10) for _ in range(3))
    trajectory, advantages = [0] + [1] * 9, [0.5] + [-1.5] * 9  # of 1 and of 9 tokens
    config = plain(name, kl_coefficient=0.1, entropy_coefficient=0.2)

    def slopes(part: slice) -> list[float]:
        columns = (probabilities[part], generator[part], advantages[part])
        tokens = sampled(
            *columns, reference=reference[part], trajectory=[t - trajectory[part][0] for t in trajectory[part]]
        )
        return outcome(tokens, config, StepTotals(tokens=10, trajectories=2))[1]

    whole = slopes(slice(0, 10))
    assert max(map(abs, whole)) > 0.01
    assert slopes(slice(0, 1)) + slopes(slice(1, 10)) == pytest.approx(whole, abs=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_without_sampled_tokens_adds_nothing(name: str) -> None:
    loss, slopes, metrics = outcome(sampled([], [], []), plain(name, kl_coefficient=0.1), StepTotals(3, 2))
    assert loss == 0 and slopes == []
    assert metrics == dict.fromkeys(metrics, 0)


@pytest.mark.parametrize(("name", "divisor"), [(name, 2 if name == "dr_grpo" else 4) for name in NAMES])
def test_entropy_is_measured_and_where_wanted_rewarded(name: str, divisor: int) -> None:
    tokens = sampled(**UNEVEN, trajectory=[0, 0, 0, 1])
    without, _, metrics = outcome(tokens, plain(name))
    assert metrics["entropy"] == pytest.approx(4 * 0.7)
    assert outcome(tokens, plain(name, entropy_coefficient=0.1))[0] == pytest.approx(without - 0.1 * 4 * 0.7 / divisor)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # d = log(0.5) - log(0.25) = log 2 = 0.693147
        ("k1", -log(2), 1 - log(2)),  # w (-d): the slope of w adds -d
        ("k2", log(2) ** 2 / 2, -log(2)),
        ("k3", 2 - log(2) - 1, -1.0),  # 0.306853; slope 1 - exp(d)
    ],
)
def test_the_kl_estimators_by_hand(estimator: str, value: float, slope: float) -> None:
    config = plain(kl_coefficient=0.1, kl_estimator=estimator)
    loss, slopes, metrics = outcome(sampled([0.25], [0.25], [0.0], reference=[0.5]), config)
    assert metrics["kl"] == pytest.approx(value, abs=1e-12)
    assert loss == pytest.approx(0.1 * value, abs=1e-12)
    assert slopes == [pytest.approx(0.1 * slope, abs=1e-12)]
    # A token that is half as likely as where it was sampled counts half, and so does its slope.
    loss, slopes, metrics = outcome(sampled([0.25], [0.5], [0.0], reference=[0.5]), config)
    assert metrics["kl"] == pytest.approx(value / 2, abs=1e-12)
    assert slopes == [pytest.approx(0.1 * slope / 2, abs=1e-12)]
    assert outcome(sampled([0.5], [0.5], [0.0], reference=[0.5]), config)[2]["kl"] == 0


@pytest.mark.parametrize("age", [0.0, 1.0])
@pytest.mark.parametrize(("estimator", "towards"), [("k1", "reverse"), ("k2", "reverse"), ("k3", "forward")])
def test_the_kl_estimators_have_the_documented_gradient(estimator: str, towards: str, age: float) -> None:
    # The exact expectation over the samples of an older policy, as a sum over a vocabulary of four.
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(4, generator=draw, dtype=torch.float64).requires_grad_()
    reference = torch.log_softmax(torch.randn(4, generator=draw, dtype=torch.float64), -1)
    generator = torch.log_softmax(logits.detach() + age * torch.randn(4, generator=draw, dtype=torch.float64), -1)
    policy = torch.log_softmax(logits, -1)
    config = plain(kl_coefficient=1.0, kl_estimator=estimator, dual_clip=0)  # its bound on the weights has a bias
    expected = torch.zeros((), dtype=torch.float64)
    for token in range(4):
        one = slice(token, token + 1)
        tokens = SampledTokens(
            logprobs_K=policy[one],
            entropy_K=torch.zeros(1, dtype=torch.float64),
            generator_logprobs_K=generator[one],
            old_logprobs_K=generator[one],
            importance_weights_K=torch.ones(1, dtype=torch.float64),
            reference_logprobs_K=reference[one],
            advantages_K=torch.zeros(1, dtype=torch.float64),
            sample_K=torch.zeros(1, dtype=torch.long),
            trajectory_tokens_K=torch.ones(1, dtype=torch.float64),
        )
        expected = expected + generator[token].exp() * LOSSES["grpo"](tokens, StepTotals(1, 1), config)[0]
    (found,) = torch.autograd.grad(expected, logits, retain_graph=True)
    reverse, forward = (policy.exp() * (policy - reference)).sum(), (reference.exp() * (reference - policy)).sum()
    (wanted,) = torch.autograd.grad(reverse if towards == "reverse" else forward, logits)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    if estimator != "k2":  # which is no mean of a KL, only of its slope
        assert expected.item() == pytest.approx(reverse.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("importance_sampling", "level", "weights", "changed"),
    [
        # w of the tokens: 3, 1.5, 0.4 in the first trajectory, 0.8 in the second; their product is 1.8
        ("truncate", "token", [2, 1.5, 0.4, 0.8], [1, 0, 0, 0]),
        ("mask", "token", [0, 1.5, 0, 0.8], [1, 0, 1, 0]),  # 0.4 lies below 1 / 2
        ("truncate", "sequence", [1.8, 1.8, 1.8, 0.8], [0, 0, 0, 0]),
        ("mask", "sequence", [1.8, 1.8, 1.8, 0.8], [0, 0, 0, 0]),
    ],
)
def test_the_importance_weights_by_hand(
    importance_sampling: str, level: str, weights: list[float], changed: list[int]
) -> None:
    generator = numbers([0.2, 0.4, 0.5, 0.5])
    old = generator * numbers([3, 1.5, 0.4, 0.8])
    config = plain(
        importance_sampling=importance_sampling, importance_sampling_level=level, importance_sampling_cap=2.0
    )
    found, beyond = importance_weights(old.log(), generator.log(), torch.tensor([0, 0, 0, 1]), config)
    assert found.tolist() == pytest.approx(weights)
    assert beyond.tolist() == [bool(c) for c in changed]


def test_a_sequence_beyond_the_cap_is_truncated_or_masked_as_a_whole() -> None:
    old, generator, trajectory = numbers([0.6, 0.6, 0.5]).log(), numbers([0.4, 0.3, 0.5]).log(), torch.tensor([0, 0, 1])
    for importance_sampling, weight in (("truncate", 2.0), ("mask", 0.0)):  # 1.5 x 2 = 3, beyond 2
        config = plain(importance_sampling=importance_sampling, importance_sampling_level="sequence")
        found, beyond = importance_weights(old, generator, trajectory, config)
        assert found.tolist() == [weight, weight, 1.0]
        assert beyond.tolist() == [True, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_an_importance_weight_scales_the_policy_gradient_and_not_the_kl(name: str) -> None:
    advantages, trajectory = [1.0, -1.0], [0, 1]
    halves = {"old": [0.5, 0.5], "trajectory": trajectory}
    config = plain(name)
    slopes = outcome(sampled([0.5, 0.5], [0.25, 0.25], advantages, weights=[2.0, 0.0], **halves), config)[1]
    once = outcome(sampled([0.5, 0.5], [0.25, 0.25], advantages, **halves), config)[1]
    assert slopes == pytest.approx([2 * once[0], 0.0])
    # The ratio that the clip sees is to `old`: 1 here, where the one to the generator, which is reported, is 2.
    assert once == pytest.approx([-0.5, 0.5])
    assert outcome(sampled([0.5, 0.5], [0.25, 0.25], advantages, **halves), config)[2]["ratio_max"] == 2
    with_kl = plain(name, kl_coefficient=0.1)
    tokens = sampled(
        [0.5, 0.5], [0.5, 0.5], [0.0, 0.0], reference=[0.25, 0.25], weights=[0.0, 0.0], trajectory=trajectory
    )
    assert outcome(tokens, with_kl)[0] == pytest.approx(0.1 * (0.5 + log(2) - 1))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_the_dual_clip_by_hand(name: str) -> None:
    # A bad token 4 times as likely as where it was sampled: -min(4 x -2, 1.2 x -2) = 8, at most 3 x 2 = 6.
    tokens = sampled([0.8], [0.2], [-2.0])
    loss, slopes, metrics = outcome(tokens, plain(name))
    assert (loss, slopes) == (pytest.approx(6), [0])
    assert (metrics["dual_clip_share"], metrics["clip_share"]) == (1, 0)
    loss, slopes, metrics = outcome(tokens, plain(name, dual_clip=0))
    assert (loss, slopes, metrics["dual_clip_share"]) == (pytest.approx(8), [pytest.approx(8)], 0)
    assert outcome(tokens, plain(name, dual_clip=5))[:2] == (pytest.approx(8), [pytest.approx(8)])
    # A good token has the ordinary clip, at 1.1 to 1.28.
    loss, slopes, metrics = outcome(sampled([0.8], [0.2], [2.0]), plain(name))
    assert (loss, slopes) == (pytest.approx(-2 * (1 + CLIPS[name][1])), [0])
    assert (metrics["dual_clip_share"], metrics["clip_share"]) == (0, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_one_stale_token_does_not_own_a_step(name: str, advantage: float, estimator: str) -> None:
    # In float32, as it is trained: of two ordinary tokens, and a third one that was sampled at exp(-110).
    config = plain(name, kl_coefficient=0.15, kl_estimator=estimator)
    logprobs = torch.tensor([-0.7, -0.7, -0.01], requires_grad=True)
    columns = {"entropy_K": torch.zeros(3), "importance_weights_K": torch.ones(3), "trajectory_tokens_K": torch.ones(3)}
    tokens = SampledTokens(
        logprobs_K=logprobs,
        generator_logprobs_K=torch.tensor([-0.7, -0.7, -110.0]),
        old_logprobs_K=torch.tensor([-0.7, -0.7, -110.0]),
        reference_logprobs_K=torch.tensor([-0.8, -0.8, -2.0]),
        advantages_K=torch.tensor([1.0, -1.0, advantage]),
        sample_K=torch.arange(3),
        **columns,
    )
    loss, metrics = LOSSES[name](tokens, StepTotals(3, 3), config)
    loss.backward()
    assert logprobs.grad is not None
    assert abs(logprobs.grad[2]) < 3 * logprobs.grad[:2].abs().min()  # 0 but for the KL's, whose weight is at most 3
    assert all(torch.isfinite(value) for value in (loss, *metrics.values()))
    assert metrics["log_ratio_clamped_share"] == 1 and metrics["ratio_max"] == pytest.approx(exp(20), rel=1e-6)
    assert metrics["dual_clip_share"] == (advantage < 0 and name != "cispo")


def test_a_log_ratio_counts_up_to_its_limit() -> None:
    assert exp_limited(numbers([-800, -20, 0.5, 20, 800])).tolist() == [exp(-20), exp(-20), exp(0.5), exp(20), exp(20)]
    # An importance weight, too: of a product over a trajectory as well.
    for level in ("token", "sequence"):
        config = plain(importance_sampling="truncate", importance_sampling_level=level)
        found, beyond = importance_weights(numbers([-1, -1]), numbers([-900, -1]), torch.tensor([0, 1]), config)
        assert found.tolist() == [2.0, 1.0] and beyond.tolist() == [True, False]


def test_the_kls_weight_has_the_bound_of_the_dual_clip() -> None:
    # w = 0.8 / 0.1 = 8, and d = log(0.5 / 0.8).
    tokens, d = sampled([0.8], [0.1], [0.0], reference=[0.5]), log(0.5 / 0.8)
    for dual_clip, w in ((3.0, 3), (0, 8), (10.0, 8)):
        config = plain(kl_coefficient=1.0, kl_estimator="k3", dual_clip=dual_clip)
        assert outcome(tokens, config)[0] == pytest.approx(w * (exp(d) - d - 1))


@given(
    name=st.sampled_from(NAMES),
    log_ratios=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    advantage=st.sampled_from([-1.0, 1.0]),
)
def test_no_gradient_has_the_wrong_sign(name: str, log_ratios: list[float], advantage: float) -> None:
    K = len(log_ratios)
    tokens = sampled([0.5] * K, (0.5 * np.exp(-np.array(log_ratios))).tolist(), [advantage] * K)
    loss, slopes, metrics = outcome(tokens, plain(name))
    assert -inf < loss < inf
    assert all(slope * advantage <= 0 for slope in slopes)
    assert metrics["ratio_max"] == pytest.approx(exp(max(log_ratios)))


def test_every_algorithm_has_a_loss_and_a_clip() -> None:
    assert set(LOSSES) == set(CLIPS)


def test_the_supervised_loss_by_hand() -> None:
    logprobs = numbers([log(0.5), log(0.25)]).requires_grad_()
    loss, metrics = supervised_loss(logprobs, numbers([0.3, 0.4]), None, StepTotals(tokens=4.0, trajectories=1.0))
    loss.backward()
    assert loss.item() == pytest.approx(3 * log(2) / 4)
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-0.25, -0.25]
    assert metrics["entropy"].item() == pytest.approx(0.7)
