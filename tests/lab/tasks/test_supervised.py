"""Supervised learning of what is no square image: tables, numbers, text; and images moved at random."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsparq
from fedsparq.errors import DataError, OptionError
from fedsparq.federate.model import Model
from fedsparq.lab.tasks import Training, class_counts
from fedsparq.lab.tasks.decode import characters
from fedsparq.lab.tasks.supervised import Supervised
from fedsparq.lab.tasks.training import FlatModel, crop_and_flip, draw_crops, evaluate, loss_function

RNG = np.random.default_rng(0)


class Given(Supervised):
    """A task on a set that is here already."""

    def __init__(self, data, **settings):
        super().__init__(**settings)
        self.__dict__["data"] = data


def table(rows: int = 300, **more) -> fedsparq.Dataset:
    x = RNG.normal(size=(rows, 6))
    y = x @ np.arange(6.0) + 3
    return fedsparq.Dataset(train=(x[50:], y[50:]), test=(x[:50], y[:50]), **more)


def test_a_regression_is_scored_by_its_error_and_what_it_explains():
    data = table()
    task = Given(data, training=Training(lr=0.02, epochs=5))
    start = task.initial()
    before = task.evaluate(start)
    assert list(before) == ["loss", "r2"]
    with torch.no_grad():
        predicted = task.network.module(torch.from_numpy(data.test[0])).double().numpy()
    y = data.test[1].astype(np.float64)
    assert before["loss"] == pytest.approx(((predicted - y) ** 2).mean(), rel=1e-6)
    assert before["r2"] == pytest.approx(1 - ((predicted - y) ** 2).sum() / ((y - y.mean()) ** 2).sum(), rel=1e-6)
    trained = task.train(0, start, 1, None)
    assert task.evaluate(Model(start.vector + trained.update))["r2"] > 0.9
    assert class_counts(task) is None


def test_the_loss_of_standardised_numbers_is_in_their_own_units():
    ones = np.ones((4, 1), np.float32)
    data = fedsparq.Dataset(train=(ones, ones), test=(ones, ones * [[0], [1], [2], [3]]), target_std=(10.0,))
    model = FlatModel(torch.nn.Linear(1, 1))
    model.load(np.array([0, 1], np.float32))
    assert evaluate(model, data) == pytest.approx({"loss": 100 * 1.5, "r2": 1 - 1.5 / 1.25})


@pytest.mark.parametrize("partition", ["dirichlet", "shards"])
def test_partitions_by_class_need_classes(partition):
    with pytest.raises(OptionError, match=f"the partition {partition} goes by classes"):
        _ = Given(table(), partition=partition).parts


def test_whose_each_example_is_makes_a_partition_of_any_set():
    task = Given(table(owners=np.arange(250) % 5 // 2), partition="natural", clients=2)
    assert [task.examples(client) for client in range(2)] == [100, 100]
    with pytest.raises(DataError, match="client_column"):
        _ = Given(table(), partition="natural").parts


def test_a_remark_on_the_data_is_said_once_where_the_run_starts(caplog):
    task = Given(table(remark="mind the gap"))
    with caplog.at_level(logging.WARNING, logger="fedsparq"):
        task.initial()
        task.train(0, Model(task.network.state()[0]), 1, None)
    assert [record.message for record in caplog.records] == ["mnist-mini: mind the gap"]


PLAY = {"A": "to be or not to be, " * 30, "B": "all the world's a stage. " * 20, "C": "hi"}


@pytest.mark.parametrize(("model", "lr"), [("char-lstm", 0.5), ("char-transformer", 0.2)])
def test_text_is_learned_character_by_character(model, lr):
    data = characters(PLAY, {"A": "not to be, or to be, "}, 20, owned=True)
    task = Given(data, model=model, partition="natural", clients=2, training=Training(lr=lr, epochs=5, batch_size=4))
    start = task.initial()
    metrics = task.evaluate(start)
    assert list(metrics) == ["accuracy", "loss", "bits_per_character"]
    assert metrics["bits_per_character"] == pytest.approx(metrics["loss"] / np.log(2))
    assert metrics["loss"] == pytest.approx(np.log(data.outputs), rel=0.2)
    trained = task.train(0, start, 1, None)
    assert task.evaluate(Model(start.vector + trained.update))["loss"] < 0.9 * metrics["loss"]


def test_what_fills_a_window_does_not_count():
    outputs = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, -100], [4, -100, -100]])
    logs = outputs.log_softmax(-1)
    expected = -(logs[0, 0, 1] + logs[0, 1, 2] + logs[1, 0, 4]) / 3
    assert loss_function(outputs, targets).item() == pytest.approx(expected.item())
    data = characters({"A": "abcabcab"}, {"A": "abcab"}, 10, owned=False)
    model = Given(data, model="char-lstm")
    network = model.network
    accuracy, loss, _ = evaluate(network, data).values()
    with torch.no_grad():
        logits = network.module(torch.from_numpy(data.test[0]))[0, :4]
    truth = torch.tensor([1, 2, 0, 1])
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, truth).item(), rel=1e-5)
    assert accuracy == pytest.approx(100 * (logits.argmax(1) == truth).double().mean().item())


def test_windows_hold_every_next_character_once():
    data = characters(PLAY, {"A": "to be"}, 7, owned=True)
    x, y = data.train
    for owner, text in enumerate(PLAY.values()):
        own = y[data.owners == owner].ravel()
        assert "".join(data.classes[code] for code in own[own >= 0]) == text[1:]
    inside = y[:, :-1] >= 0
    assert np.array_equal(x[:, 1:][y[:, 1:] >= 0], y[:, :-1][y[:, 1:] >= 0])
    assert inside[:, 0].sum() == len(x)


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match="too short"):
        characters({"A": "a"}, {"A": "ab"}, 5, owned=True)


def test_crops_and_flips_are_what_torch_would_cut_out():
    images = RNG.integers(0, 256, (30, 3, 9, 7), dtype=np.uint8)
    moves = draw_crops(30, np.random.default_rng(1))
    assert {tuple(moves.min(0)), tuple(moves.max(0))} == {(0, 0, 0), (8, 8, 1)}
    framed = torch.nn.functional.pad(torch.from_numpy(images), (4, 4, 4, 4))
    for image, frame, (down, right, mirrored) in zip(crop_and_flip(images, moves), framed, moves, strict=True):
        cut = frame[:, down : down + 9, right : right + 7]
        assert np.array_equal(image, (cut.flip(2) if mirrored else cut).numpy())


def test_augmented_training_is_a_function_of_seed_round_and_client():
    small = {"train_limit": 120, "test_limit": 50, "training": Training(batch_size=16)}
    plain, moved, again = (Supervised(**small, augment=kind) for kind in ("off", "crop-flip", "crop-flip"))
    start = plain.initial()
    updates = [task.train(0, start, 1, None).update for task in (plain, moved, again)]
    assert not np.array_equal(updates[0], updates[1])
    assert np.array_equal(updates[1], updates[2])
    assert not np.array_equal(moved.train(0, start, 2, None).update, updates[1])
    assert plain.evaluate(start) == moved.evaluate(start)


def test_augment_is_for_images_and_has_few_kinds():
    with pytest.raises(OptionError, match=r"moves images, but an example here has the shape \(6,\)"):
        Given(table(), augment="crop-flip").initial()
    with pytest.raises(OptionError, match="'off' or 'crop-flip'"):
        Supervised(augment="rotate")


def test_shakespeare_by_speaker(real_datasets: Path):
    if not (real_datasets / "karpathy").is_dir():
        pytest.skip("shakespeare is not here")
    task = Supervised(dataset="shakespeare", model="char-lstm", partition="natural", clients=299)
    assert len(task.data.classes) == 65
    assert task.examples(0) == -(-34_755 // 80), "GLOUCESTER says 34,756 characters"
    assert task.examples(298) == 1
    few = Supervised(dataset="shakespeare", model="char-lstm", partition="natural", clients=3)
    assert all(np.array_equal(few.parts[client], task.parts[client]) for client in range(3))


def test_shakespeare_that_is_not_here_says_where_it_would_be(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSPARQ_DATASETS", str(tmp_path))
    with pytest.raises(DataError, match=r"karpathy/tiny_shakespeare/by_speaker in \$FEDSPARQ_DATASETS"):
        Supervised(dataset="shakespeare", model="char-lstm").initial()
