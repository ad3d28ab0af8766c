"""Whole runs on the embedded data: repeatable, interruptible, and equal to a plain computation."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedsparq import METHODS
from fedsparq.errors import RunError
from fedsparq.federate.messages import REPLY_OVERHEAD
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked, build_task
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.experiments.callbacks import Callback
from fedsparq.lab.experiments.run import run
from fedsparq.lab.experiments.setup import participations
from fedsparq.lab.specs import RunSpec, check

SMALL = {"rounds": 4, "train_limit": 600, "test_limit": 200, "partition": "dirichlet"}


def lines(folder: Path) -> list[dict[str, Any]]:
    """rounds.jsonl, apart from seconds."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds")
    return records


def spec(**changes: Any) -> RunSpec:
    return check(RunSpec, SMALL | changes)


def test_same_seed_same_result_with_any_number_of_workers(tmp_path: Path) -> None:
    for name, workers in (("once", 1), ("twice", 1), ("two", 2)):
        run(spec(), tmp_path / name, workers=workers)
    once = lines(tmp_path / "once")
    assert once == lines(tmp_path / "twice") == lines(tmp_path / "two")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("once", "two")]
    assert all(np.array_equal(models[0][key], models[1][key]) for key in models[0])
    run(spec(seed=1), tmp_path / "other")
    assert lines(tmp_path / "other") != once


@pytest.mark.parametrize("changes", [{}, {"downlink": "lattice"}, {"fraction": 0.5, "clients": 4}])
def test_interrupted_run_goes_on_to_the_same_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = run(spec(**changes), tmp_path / "whole")
    for stop in (1, 2, 3):
        folder = tmp_path / f"stopped-{stop}"

        class StopError(Exception):
            pass

        def watch(record: Any, stop: int = stop, error: type[Exception] = StopError) -> None:
            if record.round == stop:
                raise error

        every = 2 if stop == 3 else 1
        with pytest.raises(StopError):
            run(spec(**changes), folder, callbacks=[watch], checkpoint_every=every)
        with pytest.raises(RunError, match="--resume"):
            run(spec(**changes), folder)
        resumed = run(spec(**changes), folder, resume=True)
        assert lines(folder) == lines(tmp_path / "whole")
        assert resumed["accuracy"] == whole["accuracy"]
        assert resumed["upload_bytes"] == whole["upload_bytes"]


def test_killed_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    run(spec(rounds=12), tmp_path / "whole")
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "fedsparq", "run", "--partition", "dirichlet", "--rounds", "12", "--resume"]
    settings = tmp_path / "spec.toml"
    settings.write_text("train_limit = 600\ntest_limit = 200\n")
    for moment in (3, 6):
        process = subprocess.Popen([*command, str(settings), "--out", str(folder)], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            done = (folder / "rounds.jsonl").read_text().count("\n") if (folder / "rounds.jsonl").exists() else 0
            if done >= moment:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (folder / "summary.json").exists()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 99, "accu')
    (folder / "state" / ".server.safetensors.1.tmp").write_bytes(b"torn")
    run(spec(rounds=12), folder, resume=True)
    assert lines(folder) == lines(tmp_path / "whole")
    assert not list((folder / "state").rglob("*.tmp"))


def test_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(spec(), tmp_path / "whole")
    real, calls = os.fsync, [0]

    def full(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        run(spec(), tmp_path / "full")
    monkeypatch.setattr(os, "fsync", real)
    run(spec(), tmp_path / "full", resume=True)
    assert lines(tmp_path / "full") == lines(tmp_path / "whole")


def test_a_folder_is_not_reused_for_another_experiment(tmp_path: Path) -> None:
    run(spec(rounds=2), tmp_path)
    before = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(RunError, match=r"holds a run with training\.lr = 0\.1 \(now 0\.3\); choose another --out"):
        run(spec(rounds=2, training={"lr": 0.3}), tmp_path, resume=True)
    with pytest.raises(RunError, match="has 2 rounds already, and now 1"):
        run(spec(rounds=1), tmp_path, resume=True)
    run(spec(rounds=2), tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before


def test_run_folder_holds_what_was_promised(tmp_path: Path) -> None:
    summary = run(spec(rounds=2), tmp_path)
    records = lines(tmp_path)
    assert {"round", "accuracy", "loss", "upload_bytes", "download_bytes", "upload_bytes_paper", "kept"} <= set(
        records[0]
    )
    assert summary["upload_bytes"] == sum(record["upload_bytes"] for record in records)
    assert summary["accuracy"] == records[-1]["accuracy"]
    assert summary["robust1"] == summary["accuracy"] - summary["loss"]
    counts = json.loads((tmp_path / "partition.json").read_text())["counts"]
    assert np.sum(counts) == 600
    assert (tmp_path / "spec.toml").exists()
    model = load_file(tmp_path / "model.safetensors")
    assert {key: value.shape for key, value in model.items()} == {
        tensor.name: tensor.shape for tensor in build_task(spec()).layout.tensors
    }


def test_one_client_with_fedavg_is_plain_sgd(tmp_path: Path) -> None:
    alone = spec(method="fedavg", clients=1, rounds=2, partition="iid")
    run(alone, tmp_path)
    task = build_task(alone)
    module = task.network.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    images, labels = (torch.from_numpy(np.array(array)) for array in task.data.train)
    for number in (1, 2):
        rng = np.random.default_rng([0, number, 0, 0])
        rng.integers(2**63)
        order = task.parts[0][rng.permutation(600)]
        for start in range(0, 600, 32):
            batch = order[start : start + 32]
            pixels = (images[batch].float() / 255 - task.data.mean[0]) / task.data.std[0]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(pixels), labels[batch]).backward()
            optimizer.step()
    sent = load_file(tmp_path / "model.safetensors")
    for name, parameter in module.state_dict().items():
        np.testing.assert_allclose(sent[name], parameter.numpy(), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("method", sorted({*METHODS} - {"fetchsgd", "sobaa", "spafl"}))
def test_one_round_is_the_mean_of_what_was_decoded(tmp_path: Path, method: str) -> None:
    one = spec(method=method, rounds=1)
    run(one, tmp_path)
    task = build_task(one)
    start, chosen = task.initial(), one.chosen_method()
    start = one.lattice.start(task.layout, start) if one.lattice else start
    total, weight = np.zeros(task.layout.size), 0.0
    for client in range(3):
        trained = task.train(client, start, 1, chosen.gradient_hook(chosen.init(task.layout)))
        rng = np.random.default_rng([0, 1, client, 1])
        payload, _ = chosen.compress(trained.update, chosen.init(task.layout), rng)
        share = len(task.parts[client]) if getattr(chosen.aggregator, "weighting", "uniform") == "examples" else 1
        total += share * payload.dense().astype(np.float64)
        weight += share
    mean = (total / weight).astype(np.float32)
    expected, _ = chosen.optimizer.step(start.vector, mean, chosen.optimizer.init(task.layout))
    sent = load_file(tmp_path / "model.safetensors")
    flat = np.concatenate([sent[tensor.name].ravel() for tensor in task.layout.parameters])
    np.testing.assert_allclose(flat, expected, rtol=1e-5, atol=1e-6)


class Listening(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Damaging(LocalEngine):
    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        for delivery in super().exchange(asked):
            yield Delivery(delivery.client, replace(delivery.answer, message=b"FSR"))


def test_a_run_in_which_no_reply_ever_counts_is_a_failure(tmp_path: Path) -> None:
    heard = Listening()
    with pytest.raises(RunError, match=r"no reply counted in any of 3 rounds, so nothing was learned: refused: "):
        run(spec(rounds=3), tmp_path / "run", callbacks=[heard], engine=Damaging)
    assert not (tmp_path / "run" / "summary.json").exists()
    assert len(heard.warnings) == 1
    assert heard.warnings[0].startswith("in round 1 no reply counted: ")


@pytest.mark.parametrize("budget", ["2.5 kB", "10 kB/run"])
def test_budgets_are_kept_and_used(tmp_path: Path, budget: str) -> None:
    limited = spec(method="fedsparq-adaptive", budget=budget, client_budgets={2: "4 kB"})
    run(limited, tmp_path)
    for record in lines(tmp_path):
        most = (2500 + 2500 + 4000) / 3
        assert 0.95 * most <= record["upload_bytes"] <= most


def test_whole_run_budget_is_shared_over_the_rounds_a_client_is_drawn_for() -> None:
    some = spec(clients=10, fraction=0.3, rounds=20, partition="iid", method="fedsparq-adaptive", budget="60 kB/run")
    for client, chosen in some.client_methods(lambda client: participations(some, client)).items():
        a_round = int(str(chosen.options["budget"]).removesuffix(" B")) + REPLY_OVERHEAD
        assert a_round * participations(some, client) <= 60_000 < (a_round + 1) * participations(some, client)


def test_clients_of_a_round_are_drawn_from_the_seed() -> None:
    some = spec(clients=100, fraction=0.1, partition="iid")
    draws = [some.chosen_clients(number) for number in range(1, 40)]
    assert all(len(set(draw)) == 10 for draw in draws)
    assert draws == [some.chosen_clients(number) for number in range(1, 40)]
    assert len({client for draw in draws for client in draw}) > 90


@pytest.mark.slow
def test_full_mnist_reaches_98_percent(tmp_path: Path, real_datasets: Path) -> None:
    full = {"dataset": "mnist", "partition": "iid", "rounds": 25}
    accuracies = {
        method: run(check(RunSpec, full | {"method": method}), tmp_path / method)["accuracy"]
        for method in ("fedavg", "fedsparq")
    }
    assert min(accuracies.values()) >= 98.0
    assert accuracies["fedsparq"] >= accuracies["fedavg"] - 0.2
