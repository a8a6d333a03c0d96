"""The objective, token by token, against numbers worked out by hand."""

from math import log

import pytest
import torch

from tasks.config import AlgorithmConfig
from tasks.training.losses.grpo import grpo_loss
from tasks.training.losses.supervised import supervised_loss

PLAIN = AlgorithmConfig(clip=0.2, kl_coefficient=0.0, entropy_coefficient=0.0)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_and_gradient(
    probability: float, generator: float, advantage: float, config: AlgorithmConfig = PLAIN, reference: float = 0.5
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Of one token, whose probability the trainer, the generator and the reference put at these."""
    logprobs = numbers(log(probability)).requires_grad_()
    loss, metrics = grpo_loss(
        logprobs,
        numbers(0.7),
        generator_logprobs_K=numbers(log(generator)),
        reference_logprobs_K=numbers(log(reference)),
        advantages_K=numbers(advantage),
        divisor=1.0,
        config=config,
    )
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.item(), metrics


@pytest.mark.parametrize(
    ("probability", "advantage", "loss", "gradient", "clipped"),
    [
        (0.75, 2.0, -2.4, 0.0, 1),  # ratio 1.5, already raised enough: -1.2 x 2, nothing pushes further
        (0.75, -2.0, 3.0, 3.0, 0),  # ratio 1.5 of a bad token: the way back stays open
        (0.25, 2.0, -1.0, -1.0, 0),  # ratio 0.5 of a good token: the way back stays open
        (0.25, -2.0, 1.6, 0.0, 1),  # ratio 0.5, already lowered enough: -0.8 x -2
        (0.55, 2.0, -2.2, -2.2, 0),  # ratio 1.1, within the clip on both sides of 0
        (0.55, -2.0, 2.2, 2.2, 0),
    ],
)
def test_the_clip_stops_what_goes_on_and_never_what_comes_back(
    probability: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    found, slope, metrics = loss_and_gradient(probability, 0.5, advantage)
    assert found == pytest.approx(loss, abs=1e-12)
    assert slope == pytest.approx(gradient, abs=1e-12)
    assert metrics["clip_share"].item() == clipped
    assert metrics["ratio_mean"].item() == metrics["ratio_max"].item() == pytest.approx(probability / 0.5)


def test_the_kl_by_hand() -> None:
    # d = log(0.5) - log(0.25) = log 2, so k3 = 2 - log 2 - 1 = 0.306853; its slope is 1 - exp(d) = -1.
    config = AlgorithmConfig(kl_coefficient=0.1)
    loss, slope, metrics = loss_and_gradient(0.25, 0.25, 0.0, config, reference=0.5)
    assert metrics["kl"].item() == pytest.approx(0.306853, abs=1e-6)
    assert loss == pytest.approx(0.0306853, abs=1e-7)
    assert slope == pytest.approx(-0.1)
    # A token of probability 0.5 where the reference says 0.25: 0.5 + log 2 - 1, not the same the other way round.
    assert loss_and_gradient(0.5, 0.5, 0.0, config, reference=0.25)[2]["kl"].item() == pytest.approx(0.193147, abs=1e-6)
    assert loss_and_gradient(0.5, 0.5, 0.0, config, reference=0.5)[2]["kl"].item() == 0


def test_the_kl_counts_a_token_as_often_as_it_would_be_sampled_now() -> None:
    # Ratio 0.25 / 0.5 = 0.5, held fixed: half of 0.306853, and half the slope of -1.
    loss, slope, metrics = loss_and_gradient(0.25, 0.5, 0.0, AlgorithmConfig(kl_coefficient=0.1), reference=0.5)
    assert metrics["kl"].item() == pytest.approx(0.153426, abs=1e-6)
    assert loss == pytest.approx(0.0153426, abs=1e-7)
    assert slope == pytest.approx(-0.05)


def test_entropy_is_rewarded() -> None:
    loss, _, metrics = loss_and_gradient(0.5, 0.5, 0.0, AlgorithmConfig(kl_coefficient=0, entropy_coefficient=0.1))
    assert loss == pytest.approx(-0.07)
    assert metrics["entropy"].item() == 0.7


def test_on_the_generators_own_log_probabilities_it_is_the_policy_gradient() -> None:
    logprobs = torch.log_softmax(torch.randn(5, generator=torch.manual_seed(0)), -1).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.25, -0.75, 0.0])
    loss, metrics = grpo_loss(
        logprobs,
        torch.zeros(5),
        generator_logprobs_K=logprobs.detach().clone(),
        reference_logprobs_K=logprobs.detach().clone(),
        advantages_K=advantages,
        divisor=4.0,
        config=AlgorithmConfig(kl_coefficient=0.5),
    )
    loss.backward()
    assert metrics["ratio_mean"].item() == 5 and metrics["ratio_max"].item() == 1
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -advantages / 4)


def test_a_batch_in_two_unequal_parts_has_the_gradient_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(1)
    generator, reference, advantages = (torch.randn(10, generator=draw, dtype=torch.float64) / 3 for _ in range(3))

    def gradient(parts: list[slice]) -> torch.Tensor:
        logprobs = torch.linspace(-1, 0, 10, dtype=torch.float64).requires_grad_()
        for part in parts:
            loss, _ = grpo_loss(
                logprobs[part],
                -logprobs[part],
                generator_logprobs_K=generator[part],
                reference_logprobs_K=reference[part],
                advantages_K=advantages[part],
                divisor=10.0,
                config=AlgorithmConfig(kl_coefficient=0.1, entropy_coefficient=0.2),
            )
            loss.backward()
        assert logprobs.grad is not None
        return logprobs.grad

    whole = gradient([slice(0, 10)])
    assert whole.abs().max() > 0.01
    torch.testing.assert_close(gradient([slice(0, 1), slice(1, 10)]), whole, rtol=0, atol=1e-15)


def test_imitation_by_hand() -> None:
    logprobs = numbers(log(0.5), log(0.25)).requires_grad_()
    loss, metrics = supervised_loss(logprobs, numbers(0.3, 0.4), divisor=4.0)
    loss.backward()
    assert loss.item() == pytest.approx(3 * log(2) / 4)
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-0.25, -0.25]
    assert metrics["entropy"].item() == pytest.approx(0.7)


def test_a_part_without_sampled_tokens_adds_nothing() -> None:
    none = torch.zeros(0)
    columns = {name: none for name in ("generator_logprobs_K", "reference_logprobs_K", "advantages_K")}
    loss, metrics = grpo_loss(none, none, **columns, divisor=3.0, config=PLAIN)
    assert loss.item() == 0
    assert {name: value.item() for name, value in metrics.items()} == dict.fromkeys(metrics, 0)
