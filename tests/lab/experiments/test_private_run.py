"""Private runs, whole: what they spend is told, kept and never spent twice; what would void the promise is refused."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsparq.errors import FedSparQError, OptionError, RunError
from fedsparq.federate.masked import is_masked
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.engine import Asked
from fedsparq.lab.engines.local import LocalEngine
from fedsparq.lab.experiments.run import run
from fedsparq.lab.experiments.setup import build
from fedsparq.lab.specs import RunSpec, check
from fedsparq.privacy import epsilon_of, noise_for, poisson_epsilon, poisson_noise
from fedsparq.privacy.skellam import skellam_epsilon

SMALL: dict[str, Any] = {"method": "fedsparq-private", "clients": 4, "rounds": 3, "train_limit": 200, "test_limit": 50}


def spec(**more: Any) -> RunSpec:
    return check(RunSpec, SMALL | more)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_epsilon_is_told_in_every_round_and_in_the_summary(tmp_path: Path) -> None:
    summary = run(spec(privacy={"epsilon": 4.0}), tmp_path)
    noise = noise_for(4.0, 1e-5, 3)
    spent = [record["epsilon"] for record in rounds_of(tmp_path)]
    assert spent == pytest.approx([epsilon_of(1e-5, noise, number) for number in (1, 2, 3)])
    assert (summary["epsilon"], summary["delta"]) == (pytest.approx(4.0), 1e-5)


def test_with_some_clients_a_round_each_pays_for_its_own_rounds(tmp_path: Path) -> None:
    chosen = spec(clients=8, fraction=0.25, rounds=6, privacy={"epsilon": 2.0})
    run(chosen, tmp_path)
    taken = np.zeros(8, int)
    for record in rounds_of(tmp_path):
        taken[chosen.chosen_clients(record["round"])] += 1
        most = sum(max(taken) >= n for n in range(1, 7))
        full = max(np.bincount(np.concatenate([chosen.chosen_clients(n) for n in range(1, 7)])))
        assert record["epsilon"] == pytest.approx(epsilon_of(1e-5, noise_for(2.0, 1e-5, int(full)), most))


def test_with_poisson_sampling_all_pay_for_all_rounds(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    chosen = spec(clients=8, fraction=0.25, privacy={"epsilon": 2.0, "sampling": "poisson"})
    summary = run(chosen, tmp_path)
    noise = poisson_noise(2.0, 1e-5, 0.25, 3)
    assert noise < noise_for(2.0, 1e-5, 2)
    spent = [record["epsilon"] for record in rounds_of(tmp_path)]
    assert spent == pytest.approx([poisson_epsilon(1e-5, noise, 0.25, number) for number in (1, 2, 3)])
    assert 1.99 < summary["epsilon"] <= 2.0
    assert summary["promise"] == "of each client, against whoever sees the models"


def test_poisson_sampling_is_a_coin_for_each_client() -> None:
    """Not so many a round: the number varies as the binomial's, no seed foretells it, and no two clients are tied."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    chosen = spec(clients=50, fraction=0.2, privacy={"epsilon": 8.0, "sampling": "poisson"})
    drawn = np.zeros((2000, 50))
    for number in range(2000):
        drawn[number, chosen.chosen_clients(1)] = 1
    sizes = drawn.sum(1)
    assert abs(sizes.mean() - 10) < 5 * np.sqrt(8 / 2000)
    assert abs(sizes.var() - 8) < 5 * 8 * np.sqrt(2 / 2000)
    together = float((drawn[:, 0] * drawn[:, 1]).mean())
    assert abs(together - 0.04) < 5 * np.sqrt(0.04 * 0.96 / 2000)
    assert spec(clients=50, privacy={"epsilon": 8.0, "sampling": "poisson"}).chosen_clients(1) == list(range(50))


def test_a_round_that_nobody_is_drawn_for_still_has_its_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    from fedsparq.lab.specs import run as specs

    drawn = iter([[0, 2], [], [1]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specs, "poisson_clients", lambda clients, rate: next(drawn))
        run(spec(fraction=0.5, privacy={"epsilon": 8.0, "sampling": "poisson"}), tmp_path)
    records = rounds_of(tmp_path)
    assert [record["clients"] for record in records] == [2, 0, 1]
    assert len({record["loss"] for record in records}) == 3
    assert records[1]["epsilon"] > records[0]["epsilon"]


class DiesError(Exception):
    pass


@pytest.mark.parametrize("where", ["before the record is written", "after"])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_crash_neither_forgets_nor_doubles_what_was_spent(
    tmp_path: Path, where: str, sampling: str, number: int
) -> None:
    """The noise of a round is drawn once: what a crash left is what the resumed run has, bit for bit."""
    from fedsparq.lab.folder import RunFolder

    if sampling == "poisson":
        pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    chosen = spec(fraction=0.5 if sampling == "poisson" else 1.0, privacy={"epsilon": 4.0, "sampling": sampling})
    append = RunFolder.append

    def dies(self: RunFolder, record: Any) -> None:
        if where == "after":
            append(self, record)
        if record.round == number:
            raise DiesError
        if where != "after":
            append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "append", dies)
        with pytest.raises(DiesError):
            run(chosen, tmp_path)
    from fedsparq.archive import unpack

    released = json.loads(unpack((tmp_path / "state" / "server.safetensors").read_bytes())[0]["note"])
    run(chosen, tmp_path, resume=True)
    records = rounds_of(tmp_path)
    assert [record["round"] for record in records] == [1, 2, 3]
    assert records[number - 1] == released
    if sampling == "poisson":
        after = [poisson_epsilon(1e-5, poisson_noise(4.0, 1e-5, 0.5, 3), 0.5, done) for done in (2, 3)]
    else:
        after = [epsilon_of(1e-5, noise_for(4.0, 1e-5, 3), done) for done in (2, 3)]
    assert [record["epsilon"] for record in records[1:]] == pytest.approx(after)
    assert records[2]["epsilon"] == pytest.approx(4.0, rel=1e-3)


def test_a_run_stops_before_it_would_spend_too_much(tmp_path: Path) -> None:
    summary = run(spec(rounds=5, privacy={"epsilon": 4.0, "noise": noise_for(4.0, 1e-5, 2)}), tmp_path)
    assert summary["rounds"] == 2
    assert summary["epsilon"] <= 4.0 * (1 + 1e-9)


def test_noise_for_some_rounds_is_not_enough_for_more(tmp_path: Path) -> None:
    run(spec(rounds=1, privacy={"epsilon": 4.0}), tmp_path)
    with pytest.raises(RunError, match="noise was made for 1 rounds"):
        run(spec(rounds=2, privacy={"epsilon": 4.0}), tmp_path)


def test_dense_updates_can_be_private_too(tmp_path: Path) -> None:
    summary = run(spec(method="fedavg", rounds=2, privacy={"epsilon": 8.0, "clip": 0.5}), tmp_path)
    assert summary["epsilon"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"method": "fedsparq"}, "own coordinates"),
        ({"method": "stc"}, "own coordinates"),
        ({"aggregator": "mean"}, "its own aggregator"),
        ({"method": "fedavg", "aggregator": "mean"}, "mean of its own"),
        ({"server": {"norm_limit": "3x median"}}, "no noise covers"),
        ({"privacy": {"delta": 1e-6}}, "epsilon, or noise"),
        ({"privacy": {"epsilon": -1.0}}, "epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1.0}}, "delta"),
        ({"method": "fedavg", "privacy": {"secure_sums": True}}, "fedsparq-private"),
        ({"privacy": {"secure_sums": True}, "clients": 2}, "at least 3"),
        ({"privacy": {"secure_sums": True}, "server": {"norm_limit": "5"}}, "single replies"),
        ({"privacy": {"secure_sums": True}, "downlink": "fedsparq"}, "downlink"),
        ({"privacy": {"secure_sums": True}, "faults": {"flip": 0.1}}, "drop"),
        ({"server": {"min_replies": 2}}, "who came"),
        ({"privacy": {"sampling": "poisson"}}, "epsilon, or noise"),
        ({"privacy": {"epsilon": 4.0, "secure_sums": True, "sampling": "poisson"}}, "asks the clients"),
        ({"method": "soteriafl"}, "single records"),
        ({"method": "soteriafl", "privacy": {"example_clip": 1.0}}, "epsilon, or noise"),
        ({"method": "soteriafl", "privacy": {"epsilon": 4.0, "example_clip": 1.0, "clip": 0.1}}, "one of them"),
        ({"method": "fedsparq", "privacy": {"epsilon": 4.0, "example_clip": 1.0}}, "client rules"),
        ({"method": "spafl", "privacy": {"epsilon": 4.0, "example_clip": 1.0}}, "gradient of each example"),
        ({"training": {"epochs": 2}, "privacy": {"epsilon": 4.0, "example_clip": 1.0}}, "one step a round"),
        ({"privacy": {"epsilon": 4.0, "example_clip": 1.0, "secure_sums": True}}, "each client's own"),
    ],
)
def test_what_voids_the_promise_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        spec(**{"privacy": {"epsilon": 4.0}} | more)


def test_batch_norm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="BatchNorm"):
        run(spec(model="resnet18", rounds=1, privacy={"epsilon": 4.0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_metrics_that_clients_send_in_clear_are_refused(tmp_path: Path) -> None:
    from fedsparq.lab.tasks.supervised import Supervised

    train = Supervised.train

    def telling(self: Supervised, *given: Any, **more: Any) -> Any:
        return replace(train(self, *given, **more), metrics={"own_loss": 1.0})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervised, "train", telling)
        with pytest.raises(OptionError, match="own_loss on their own data"):
            run(spec(privacy={"epsilon": 4.0}), tmp_path / "run")
    assert not rounds_of(tmp_path / "run")  # nothing was released


def models(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def test_under_masks_the_model_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    run(spec(), tmp_path / "plain")
    run(spec(privacy={"secure_sums": True}), tmp_path / "masked", workers=2)
    plain, masked = models(tmp_path / "plain"), models(tmp_path / "masked")
    assert all(plain[name].tobytes() == masked[name].tobytes() for name in plain)


def test_under_masks_with_clients_that_drop_out(tmp_path: Path) -> None:
    chosen = spec(clients=6, rounds=6, faults={"drop": 0.1}, privacy={"secure_sums": True})
    run(chosen, tmp_path)
    counted = [record["clients"] for record in rounds_of(tmp_path)]
    assert set(counted) <= {0, 4, 5, 6}
    assert len(set(counted)) > 1


class Losing(LocalEngine):
    """In rounds 1 to 5 the client of that number is not heard again from the stage of that number on. Without masks:
    who was lost in stage 1 or 2 has never seen the model, in stage 3 has trained in vain, later is in the sum."""

    stages: ClassVar[dict[int, int]] = {}

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        lost, masked = asked.round, is_masked(next(iter(asked.broadcasts.values())))
        stage = self.stages[lost] = self.stages.get(lost, 0) + 1 if masked else 0
        sees = lost >= 3 or (masked and stage <= lost)
        heard = {client: data for client, data in asked.broadcasts.items() if client != lost or sees}
        for delivery in super().exchange(replace(asked, broadcasts=heard)):
            if delivery.client != lost or (stage < lost if masked else lost >= 4):
                yield delivery


def test_under_masks_a_client_is_lost_in_each_stage_and_the_model_is_the_same(tmp_path: Path) -> None:
    for name, privacy in (("plain", {}), ("masked", {"secure_sums": True})):
        run(spec(clients=6, rounds=6, privacy=privacy), tmp_path / name, engine=lambda *made: Losing(*made))
    assert [record["clients"] for record in rounds_of(tmp_path / "masked")] == [5, 5, 5, 6, 6, 6]
    plain, masked = models(tmp_path / "plain"), models(tmp_path / "masked")
    assert all(plain[name].tobytes() == masked[name].tobytes() for name in plain)


def test_under_masks_clients_bring_the_noise(tmp_path: Path) -> None:
    summary = run(spec(privacy={"secure_sums": True, "epsilon": 6.0}), tmp_path)
    assert summary["epsilon"] <= 6.0
    assert summary["epsilon"] == pytest.approx(6.0, rel=1e-6)


def test_an_interrupted_run_under_masks_goes_on(tmp_path: Path) -> None:
    chosen = spec(privacy={"secure_sums": True})

    def stop(record: Any) -> None:
        if record.round == 1:
            raise DiesError

    with pytest.raises(DiesError):
        run(chosen, tmp_path, callbacks=[stop])
    assert run(chosen, tmp_path, resume=True)["rounds"] == 3


def test_every_refusal_is_one_of_ours() -> None:
    with pytest.raises(FedSparQError):
        spec(privacy={"epsilonn": 4.0})


@pytest.mark.parametrize(("clients", "colluders"), [(3, 1), (20, 6)])
def test_the_clients_noise_hides_an_update_from_a_third_of_them(clients: int, colluders: int) -> None:
    chosen = spec(clients=clients, rounds=3, privacy={"secure_sums": True, "epsilon": 8.0})
    server = build(chosen).server
    plan = server.method.plan(server.layout)
    terms = chosen.privacy.terms(server.method, server.layout, "test", 1, clients)
    l2 = plan.clip / plan.step
    honest = (terms.survivors - colluders - 1) * plan.variance
    assert skellam_epsilon(1e-5, honest, l2, min(math.sqrt(plan.support.count) * l2, l2**2), 3) <= 8.0 * (1 + 1e-6)


def test_a_run_has_all_rounds_that_its_noise_was_made_for(tmp_path: Path) -> None:
    chosen = spec(clients=10, fraction=0.3, rounds=6, privacy={"epsilon": 4.0})
    summary = run(chosen, tmp_path)
    assert summary["rounds"] == 6
    assert summary["epsilon"] <= 4.0 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("clients", "privacy"),
    [(3, {"colluders": 2}), (20, {"colluders": 19}), (20, {"survivors": 11}), (20, {"survivors": 14, "colluders": 9})],
)
def test_noise_that_too_few_do_not_know_is_refused(clients: int, privacy: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        run(spec(clients=clients, privacy={"secure_sums": True, "epsilon": 8.0} | privacy), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_both_epsilons_are_told(tmp_path: Path) -> None:
    summary = run(spec(clients=6, rounds=2, privacy={"secure_sums": True, "epsilon": 8.0, "colluders": 1}), tmp_path)
    assert 0 < summary["epsilon_outside"] < summary["epsilon"] == pytest.approx(8.0)


def test_what_a_private_run_writes_that_is_not_private_is_marked(tmp_path: Path) -> None:
    summary = run(spec(rounds=1, privacy={"epsilon": 4.0}), tmp_path)
    assert {"kept_layers", "upload_bytes", "clients"} <= set(summary["not_private"])
