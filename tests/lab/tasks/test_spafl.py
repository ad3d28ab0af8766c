"""SpaFL: gradients of thresholds by hand, weights that never leave, bytes that are the thresholds'."""

import math

import numpy as np
import pytest
import torch

import fedsparq
from fedsparq import OptionError, encode
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.lab.tasks import Training
from fedsparq.lab.tasks.spafl import SpaFL
from fedsparq.rules import ThresholdPenalty

SMALL = {"method": "spafl", "train_limit": 300, "test_limit": 100, "partition": "dirichlet", "rounds": 2}


def task(**changes):
    return SpaFL(train_limit=300, test_limit=100, **changes)


def test_one_output_is_left_if_its_mean_magnitude_is_above_the_threshold():
    pruned = task().pruned
    weights = torch.randn(pruned.network.layout.size)
    thresholds = torch.full((138,), 0.8)
    pruned.prune(weights, thresholds)
    first = weights[: 128 * 784].view(128, 784)
    shown = pruned.network.vector[: 128 * 784].view(128, 784)
    for i in range(128):
        left = first[i] if first[i].abs().mean() > 0.8 else torch.zeros(784)
        assert torch.equal(shown[i], left)
    assert torch.equal(pruned.network.vector[128 * 784 : 128 * 784 + 128], weights[128 * 784 : 128 * 784 + 128])


def test_the_gradient_of_a_threshold_by_hand():
    """dL / dW of the pruned weights comes from torch; of a threshold it is - sum G W, and the penalty's - l exp(-t)."""
    one = task()
    pruned, generator = one.pruned, torch.Generator().manual_seed(0)
    weights = torch.randn(pruned.network.layout.size, generator=generator) * 0.05
    thresholds = torch.rand(138, generator=generator) * 0.06
    inputs = torch.rand(20, 784, generator=generator)
    targets = torch.randint(10, (20,), generator=generator)
    w1, b1 = weights[:100352].view(128, 784), weights[100352:100480]
    w2, b2 = weights[100480:101760].view(10, 128), weights[101760:]
    masks = [(w.abs().mean(1) > t).float() for w, t in ((w1, thresholds[:128]), (w2, thresholds[128:]))]
    assert all(0 < mask.mean() < 1 for mask in masks)
    masked = [(w * mask[:, None]).requires_grad_() for w, mask in zip((w1, w2), masks, strict=True)]
    hidden = torch.relu(inputs @ masked[0].T + b1)
    loss = torch.nn.functional.cross_entropy(hidden @ masked[1].T + b2, targets)
    g1, g2 = torch.autograd.grad(loss, masked)
    expected = torch.cat([-(g1 * w1).sum(1), -(g2 * w2).sum(1)])
    pruned.prune(weights, thresholds)
    pruned.network.gradient.zero_()
    torch.nn.functional.cross_entropy(pruned.network.module(inputs), targets).backward()
    of_weights, of_thresholds = pruned.gradients(weights, thresholds)
    torch.testing.assert_close(of_thresholds, expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(of_weights[:100352].view(128, 784), g1 * masks[0][:, None], atol=1e-7, rtol=1e-4)
    ThresholdPenalty(0.5).gradient(of_thresholds, thresholds, thresholds, {})
    torch.testing.assert_close(of_thresholds, expected - 0.5 * torch.exp(-thresholds), atol=1e-6, rtol=1e-4)


def test_weights_follow_thresholds_and_stay_where_those_stay():
    pruned = task().pruned
    weights = torch.randn(pruned.network.layout.size)
    before = weights.clone()
    pruned.follow(weights, torch.zeros(138))
    assert torch.equal(weights, before)
    change = torch.zeros(138)
    change[3] = 0.7
    pruned.follow(weights, change)
    row = slice(3 * 784, 4 * 784)
    moved = before[row] - math.copysign(0.7 / 784, float(before[row].sum()))
    torch.testing.assert_close(weights[row], moved)
    weights[row] = before[row]
    assert torch.equal(weights, before)


def test_a_layer_of_which_nothing_is_left_begins_again():
    pruned = task().pruned
    weights, thresholds = torch.ones(pruned.network.layout.size), torch.full((138,), 2.0)
    thresholds[128:] = 0.5
    pruned.reset_empty(weights, thresholds)
    assert thresholds.tolist() == [0.0] * 128 + [0.5] * 10


def test_only_thresholds_travel_and_weights_are_remembered():
    one, method = task(training=Training(lr=0.1)), fedsparq.method("spafl")
    assert one.layout.size == 138
    trained = one.train(0, one.initial(), 1, method.gradient_hook(method.init(one.layout)), memory={})
    payload, _ = method.compress(trained.update, method.init(one.layout), np.random.default_rng(0))
    assert sum(values.data.nbytes for values in payload.values) == 4 * 138
    assert 4 * 138 < len(encode(payload)) < 4 * 138 + 40
    assert trained.memory["weights"].shape == (101770,)
    np.testing.assert_allclose(trained.memory["thresholds"], trained.update, atol=1e-7)
    assert {"personal_accuracy", "personal_loss", "density"} <= trained.metrics.keys()


def test_a_client_is_tested_on_the_classes_that_it_has():
    one = task(partition="shards", clients=5)
    for client in range(5):
        classes = set(one.data.train[1][one.parts[client]])
        assert set(one.data.test[1][one.test_part(client)]) <= classes


def test_its_accuracy_is_never_that_of_a_global_model(tmp_path):
    summary = run(check(RunSpec, SMALL), tmp_path)
    assert "accuracy" not in summary
    assert summary["metrics"]["personal_accuracy"] > 30


def test_the_method_and_its_task_belong_together():
    assert check(RunSpec, SMALL).task == "spafl"
    assert check(RunSpec, SMALL).task_label.startswith("personal-")
    with pytest.raises(OptionError, match="trains the task 'spafl', not 'supervised'"):
        check(RunSpec, SMALL | {"task": "supervised"})
    with pytest.raises(OptionError, match="without batch normalization"):
        build_task(check(RunSpec, SMALL | {"model": "resnet18", "dataset": "mnist-mini"})).layout  # noqa: B018
