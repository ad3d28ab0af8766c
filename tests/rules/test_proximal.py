"""FedProx's pull: its gradient is that of the penalty, by autograd."""

import pytest

from fedsparq.errors import OptionError
from fedsparq.protocols import hooks_of
from fedsparq.rules import Proximal

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("mu", [0.0, 0.01, 3.0])
def test_gradient_of_the_penalty(mu: float) -> None:
    torch.manual_seed(0)
    weights, start, of_loss = (torch.randn(5, 3, dtype=torch.float64) for _ in range(3))
    weights.requires_grad_()
    penalty = mu / 2 * (weights - start).square().sum()
    (by_autograd,) = torch.autograd.grad(penalty, weights)
    gradient, before = of_loss.clone(), (weights.detach().clone(), start.clone())
    with torch.no_grad():
        Proximal(mu).gradient(gradient, weights, start, {})
    torch.testing.assert_close(gradient, of_loss + by_autograd)
    assert torch.equal(weights.detach(), before[0])
    assert torch.equal(start, before[1]), "only the gradient is changed"


def test_no_pull_at_the_start() -> None:
    start, gradient = torch.randn(4), torch.randn(4)
    before = gradient.clone()
    Proximal(10.0).gradient(gradient, start, start, {})
    assert torch.equal(gradient, before)


def test_minimum_is_between_the_loss_and_the_start() -> None:
    """On loss 1/2 |w - a|^2 the penalised minimum is (a + mu s) / (1 + mu)."""
    rule, goal, start = Proximal(0.5), torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.5])
    weights = start.clone()
    for _ in range(200):
        gradient = weights - goal
        rule.gradient(gradient, weights, start, {})
        weights = weights - 0.3 * gradient
    torch.testing.assert_close(weights, (goal + 0.5 * start) / 1.5)


def test_rule_says_what_a_flower_app_needs_to_know() -> None:
    assert Proximal(0.25).traits.config == {"proximal-mu": 0.25}
    assert hooks_of(Proximal()) == {"gradient"}
    assert Proximal().init(None) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [-0.1, float("inf"), float("nan"), "much"])
def test_impossible_pull_is_refused(mu: object) -> None:
    with pytest.raises(OptionError, match=r"mu=.* is not possible for Proximal"):
        Proximal(mu)  # type: ignore[arg-type]
