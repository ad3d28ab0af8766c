import numpy as np
import pytest
import torch
from torch import nn

from fedsparq.errors import DataError, FedSparQError, OptionError, UpdateError
from fedsparq.lab.tasks import Training, models, training
from fedsparq.lab.tasks.dataset import Dataset, Split
from fedsparq.lab.tasks.models import Signature
from fedsparq.lab.tasks.training import FlatModel
from fedsparq.lab.tasks.training import evaluate as evaluate_on
from fedsparq.layout import Buffers
from fedsparq.rules import Proximal

MEAN, STD = (0.2,), (0.3,)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_split(count: int, channels: int = 1, size: int = 28, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    labels = rng.integers(0, 10, count)
    labels[0] = 9
    return images, labels


def train(model, split, indices, options, mean, std, seed, hook=None) -> tuple[int, float]:
    return training.train(model, Dataset(split, split, tuple("0123456789"), mean, std), indices, options, seed, hook)


def evaluate(module: nn.Module | FlatModel, split: Split, mean, std) -> tuple[float, float]:
    model = module if isinstance(module, FlatModel) else FlatModel(module)
    metrics = evaluate_on(model, Dataset(split, split, tuple("0123456789"), mean, std))
    assert list(metrics) == ["accuracy", "loss"]
    return metrics["accuracy"], metrics["loss"]


def make_model(name: str = "mlp", **options) -> nn.Module:
    shape = (options.get("channels", 1), *[options.get("size", 28)] * 2)
    return models.build(name, Signature(shape, 10), seed=5)


def normalised(split: Split) -> torch.Tensor:
    return (torch.from_numpy(split[0]).double() / 255 - MEAN[0]).div(STD[0]).float()


def batches_of(seed, indices: np.ndarray, batch_size: int, epochs: int) -> list[np.ndarray]:
    """The documented order: a Generator of the seed gives one number to torch, then a permutation an epoch."""
    rng = np.random.default_rng(seed)
    rng.integers(2**63)
    chosen = []
    for _ in range(epochs):
        order = indices[rng.permutation(len(indices))]
        chosen += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return chosen


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_training_equals_torch_sgd(name, momentum, weight_decay):
    split, indices = make_split(150), np.arange(20, 120)
    options = Training(lr=0.05, momentum=momentum, weight_decay=weight_decay, epochs=2, batch_size=32)
    flat_model = FlatModel(make_model(name))
    steps, mean_loss = train(flat_model, split, indices, options, MEAN, STD, seed=[1, 2, 3])

    bare = make_model(name)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.05, momentum=momentum, weight_decay=weight_decay)
    images, labels = normalised(split), torch.from_numpy(split[1])
    losses = []
    for batch in batches_of([1, 2, 3], indices, 32, epochs=2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(bare(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(flat_model.vector, flat(bare), rtol=1e-5, atol=1e-6)
    assert steps == 8
    assert mean_loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_one_step_moves_by_exactly_the_learning_rate_times_the_gradient():
    split = make_split(16)
    model = FlatModel(make_model())
    start = model.vector.clone()
    train(model, split, np.arange(16), Training(lr=0.25, batch_size=16), MEAN, STD, seed=0)
    torch.testing.assert_close(model.vector, start - 0.25 * model.gradient, rtol=0, atol=1e-8)
    assert float(model.gradient.abs().max()) > 0


def proximal(mu):
    return lambda gradient, weights, start: Proximal(mu).gradient(gradient, weights, start, {})


def softmax_regression() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_proximal_gradient_is_the_closed_form(mu):
    """Softmax regression has the gradient mean of (p - y) x^T; the proximal term adds mu (w - w0)."""
    rng = np.random.default_rng(3)
    split = (rng.integers(0, 256, (6, 1, 2, 2), dtype=np.uint8), rng.integers(0, 3, 6))
    torch.manual_seed(0)
    model = FlatModel(softmax_regression())
    start = model.vector.double().numpy().reshape(3, 4).copy()
    options = Training(lr=0.3, steps=7, batch_size=6)
    train(model, split, np.arange(6), options, MEAN, STD, seed=1, hook=proximal(mu) if mu else None)

    x = (split[0].reshape(6, 4) / 255 - MEAN[0]) / STD[0]
    weights = start.copy()
    for _ in range(7):
        scores = np.exp(x @ weights.T)
        error = scores / scores.sum(1, keepdims=True) - np.eye(3)[split[1]]
        gradient = error.T @ x / 6 + mu * (weights - start)
        weights -= 0.3 * gradient
    np.testing.assert_allclose(model.vector.numpy().reshape(3, 4), weights, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(model.gradient.numpy().reshape(3, 4), gradient, rtol=2e-4, atol=2e-6)


def test_a_strong_proximal_term_holds_the_model_at_its_start():
    split = make_split(64)
    moved = []
    for mu in (0.0, 5.0):
        model = FlatModel(make_model())
        start = model.vector.clone()
        train(model, split, np.arange(64), Training(lr=0.05, epochs=5), MEAN, STD, seed=0, hook=proximal(mu))
        moved.append(float((model.vector - start).norm()))
    assert moved[1] < 0.6 * moved[0]


def test_a_hook_sees_start_and_weights_and_comes_before_clipping():
    split, model = make_split(48), FlatModel(make_model())
    before = model.vector.clone()
    moved = []

    def enlarge(gradient, weights, start):
        assert weights is model.vector
        assert torch.equal(start, before)
        moved.append(float((weights - start).norm()))
        gradient.mul_(1e3)

    train(model, split, np.arange(48), Training(lr=1.0, batch_size=16, clip_norm=0.01), MEAN, STD, 0, enlarge)
    assert moved[0] == 0
    assert moved[1] == pytest.approx(0.01, rel=1e-3)
    assert len(moved) == 3


def test_clipping_bounds_the_step():
    split, model = make_split(32), FlatModel(make_model())
    start = model.vector.clone()
    train(model, split, np.arange(32), Training(lr=1.0, clip_norm=0.01), MEAN, STD, seed=0)
    assert float((model.vector - start).norm()) == pytest.approx(0.01, rel=1e-3)
    loose = [FlatModel(make_model()), FlatModel(make_model())]
    for each, clip in zip(loose, (None, 1e9), strict=True):
        train(each, split, np.arange(32), Training(clip_norm=clip), MEAN, STD, seed=0)
    assert torch.equal(loose[0].vector, loose[1].vector)


def test_steps_override_epochs_and_reshuffle():
    split, indices = make_split(40), np.arange(40)
    by_epochs, by_steps = FlatModel(make_model()), FlatModel(make_model())
    first, _ = train(by_epochs, split, indices, Training(epochs=3, batch_size=16), MEAN, STD, seed=9)
    second, _ = train(by_steps, split, indices, Training(epochs=1, steps=9, batch_size=16), MEAN, STD, seed=9)
    assert first == second == 9
    assert torch.equal(by_epochs.vector, by_steps.vector)
    assert train(by_steps, split, indices, Training(steps=4, batch_size=16), MEAN, STD, seed=9)[0] == 4


def test_chunks_larger_than_the_gather_give_the_same_batches(monkeypatch):
    split, indices = make_split(100), np.arange(100)
    vectors = []
    for values in (1, 1 << 20):
        monkeypatch.setattr("fedsparq.lab.tasks.training._CHUNK_VALUES", values)
        model = FlatModel(make_model())
        train(model, split, indices, Training(batch_size=16), MEAN, STD, seed=2)
        vectors.append(model.vector)
    assert torch.equal(*vectors)


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, images):
        return self.fc(nn.functional.dropout(images.flatten(1), 0.5, self.training))


def test_the_seed_decides_everything_dropout_too():
    split, indices = make_split(64), np.arange(64)

    def run(seed, noise):
        torch.manual_seed(0)
        model = FlatModel(WithDropout())
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        train(model, split, indices, Training(), MEAN, STD, seed=seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        return model.vector

    assert torch.equal(run((1, 2), noise=0), run((1, 2), noise=1))
    assert not torch.equal(run((1, 2), noise=0), run((1, 3), noise=0))


def test_parameters_and_gradients_stay_views_of_the_flat_vectors():
    model = FlatModel(make_model("lenet5"))
    train(model, make_split(40), np.arange(40), Training(momentum=0.9, weight_decay=0.1), MEAN, STD, seed=0)
    assert torch.equal(model.vector, flat(model.module))
    assert torch.equal(model.gradient, torch.cat([p.grad.reshape(-1) for p in model.module.parameters()]))
    for tensor, parameter in zip(model.layout.parameters, model.module.parameters(), strict=True):
        assert parameter.data_ptr() == model.vector[tensor.offset :].data_ptr()
        assert parameter.grad.data_ptr() == model.gradient[tensor.offset :].data_ptr()


def small_batch_norm() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def test_buffers_go_out_and_back_in():
    split = make_split(48)
    trained, fresh = FlatModel(small_batch_norm()), FlatModel(small_batch_norm())
    train(trained, split, np.arange(48), Training(batch_size=16), MEAN, STD, seed=0)
    vector, buffers = trained.state()
    assert np.array_equal(vector, trained.vector.numpy())
    assert buffers.counters.tolist() == [3]
    assert buffers.statistics.shape == (12,)
    assert np.array_equal(buffers.statistics[:6], trained.module[2].running_mean.numpy())
    vector.setflags(write=False)
    fresh.load(vector, buffers)
    assert torch.equal(fresh.vector, trained.vector)
    assert all(torch.equal(a, b) for a, b in zip(fresh.module.buffers(), trained.module.buffers(), strict=True))
    assert evaluate(fresh, split, MEAN, STD) == evaluate(trained, split, MEAN, STD)
    train(trained, split, np.arange(48), Training(), MEAN, STD, seed=0)
    assert buffers.counters.tolist() == [3], "state() must be a copy"
    assert not np.array_equal(vector, trained.vector.numpy()), "state() must be a copy"
    with pytest.raises(UpdateError, match=r"buffers of the model are 12.*\[11\]"):
        fresh.load(vector, Buffers(buffers.statistics[1:], buffers.counters))
    with pytest.raises(UpdateError, match="buffers of the model are 12"):
        fresh.load(vector)
    with pytest.raises(UpdateError, match="parameters of the model"):
        fresh.load(vector[1:], buffers)
    assert FlatModel(make_model()).state()[1] is None


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_batch_norm_goes_without_a_batch_of_one(name):
    if name == "small":
        module, split = small_batch_norm(), make_split(9)
    else:
        module, split = make_model("resnet18", channels=1, size=32), make_split(9, size=32)
    model = FlatModel(module)
    steps, _ = train(model, split, np.arange(9), Training(lr=0.01, batch_size=4), MEAN, STD, seed=0)
    assert steps == 2
    assert train(model, split, np.arange(9), Training(steps=3, batch_size=4), MEAN, STD, seed=0)[0] == 3
    with pytest.raises(DataError, match="at least 2 examples"):
        train(model, split, np.arange(1), Training(), MEAN, STD, seed=0)
    with pytest.raises(DataError, match="at least 2 examples"):
        train(model, split, np.arange(9), Training(batch_size=1), MEAN, STD, seed=0)


def test_a_batch_of_one_is_kept_without_batch_norm():
    assert train(FlatModel(make_model()), make_split(5), np.arange(5), Training(batch_size=2), MEAN, STD, 0)[0] == 3


def test_no_examples_are_refused():
    with pytest.raises(DataError, match="0 examples"):
        train(FlatModel(make_model()), make_split(5), np.arange(0), Training(), MEAN, STD, 0)


@pytest.mark.filterwarnings("ignore")
def test_divergence_is_named():
    model = FlatModel(make_model())
    with pytest.raises(FedSparQError, match=r"diverged.*lower lr"):
        train(model, make_split(64), np.arange(64), Training(lr=1e30, epochs=5), MEAN, STD, seed=0)


def test_models_that_do_not_fit_a_flat_vector_are_refused():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(OptionError, match="two names"):
        FlatModel(tied)
    with pytest.raises(OptionError, match="float32"):
        FlatModel(nn.Linear(3, 3).double())


def test_frozen_parameters_stay_and_travel_uncompressed():
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    module[1].bias.requires_grad_(False)
    model = FlatModel(module)
    bias = module[1].bias.clone()
    train(model, make_split(32), np.arange(32), Training(weight_decay=0.1), MEAN, STD, seed=0)
    assert model.layout.size == 7840
    assert torch.equal(module[1].bias, bias)
    assert np.array_equal(model.state()[1].statistics, bias.numpy())


@pytest.mark.parametrize("model", ["lenet5", "batch-norm"])
def test_evaluate_is_accuracy_in_percent_and_mean_loss(model):
    split = make_split(601)
    module = make_model(model) if model == "lenet5" else small_batch_norm()
    accuracy, loss = evaluate(module, split, MEAN, STD)
    module.eval()
    with torch.no_grad():
        logits = module(normalised(split)).double().numpy()
    log_sum = np.log(np.exp(logits).sum(1))
    assert accuracy == pytest.approx(100 * np.mean(logits.argmax(1) == split[1]))
    assert loss == pytest.approx(np.mean(log_sum - logits[np.arange(601), split[1]]), rel=1e-5)


def test_channels_are_normalised_each_by_its_own():
    split = make_split(1, channels=3, size=2)
    seen = []

    class Watch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10))

        def forward(self, images):
            seen.append(images.clone())
            return self.weight.expand(len(images), 10)

    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    evaluate(Watch(), split, mean, std)
    expected = (split[0] / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(seen[0].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"epochs": 0},
        {"steps": 0},
        {"steps": 1.5},
        {"batch_size": 0},
        {"clip_norm": 0},
        {"epochs": True},
        {"proximal_mu": 0.1},
    ],
)
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Training(**options)
