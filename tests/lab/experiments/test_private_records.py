"""Record-level, local privacy: each client makes its own gradient private before anything else is done with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsparq.errors import OptionError
from fedsparq.federate.messages import Reply
from fedsparq.federate.store import DiskStore
from fedsparq.lab.engines.engine import build_task
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.privacy import epsilon_of, noise_for

SMALL: dict[str, Any] = {"method": "soteriafl", "clients": 4, "rounds": 3, "train_limit": 200, "test_limit": 50}


def spec(**more: Any) -> RunSpec:
    return check(RunSpec, {**SMALL, "privacy": {"epsilon": 6.0, "example_clip": 1.0}} | more)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_it_is_named_for_what_it_is(tmp_path: Path) -> None:
    summary = run(spec(), tmp_path)
    assert summary["label"] == "soteriafl (record-level epsilon 6)"
    assert summary["promise"] == "of each record, against the server and all others (local)"
    noise = noise_for(6.0, 1e-5, 3)
    spent = [record["epsilon"] for record in rounds_of(tmp_path)]
    assert spent == pytest.approx([epsilon_of(1e-5, noise, number) for number in (1, 2, 3)])


@pytest.mark.parametrize("name", ["soteriafl", "fedsparq-adaptive"])
def test_a_reply_does_not_say_how_many_examples_there_were(tmp_path: Path, name: str) -> None:
    chosen = spec(method=name, rounds=1, partition="dirichlet")
    run(chosen, tmp_path)
    task = build_task(chosen)
    states = DiskStore(tmp_path / "state" / "clients")
    replies = [Reply.decode(states.load(client, task.layout).state.in_flight) for client in range(4)]
    assert [reply.examples for reply in replies] == [1] * 4


def test_epsilon_does_not_depend_on_how_much_is_sent() -> None:
    noises = {spec(options={"fraction": fraction}).per_example.noise for fraction in (0.01, 0.05, 1.0)}
    assert noises == {noise_for(6.0, 1e-5, 3)}


def test_with_few_clients_a_round_each_pays_for_its_own_rounds() -> None:
    chosen = spec(clients=40, fraction=0.1, rounds=20)
    assert chosen.paid_rounds(20) < 20
    assert chosen.per_example.noise == noise_for(6.0, 1e-5, chosen.paid_rounds(20))


class DiesError(Exception):
    pass


def test_a_round_that_a_crash_cut_short_is_paid_for_twice_if_it_is_asked_again(tmp_path: Path) -> None:
    """The server may have seen both answers, each with noise of its own: the budget ends a round earlier."""
    from fedsparq.lab.engines.local import LocalEngine

    exchange = LocalEngine.exchange

    def dies(self: LocalEngine, asked: Any) -> Any:
        answers = list(exchange(self, asked))
        if asked.round == 2:
            raise DiesError
        return iter(answers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "exchange", dies)
        with pytest.raises(DiesError):
            run(spec(), tmp_path)
    summary = run(spec(), tmp_path, resume=True)
    noise = noise_for(6.0, 1e-5, 3)
    assert [record["epsilon"] for record in rounds_of(tmp_path)] == pytest.approx(
        [epsilon_of(1e-5, noise, number) for number in (1, 3)]
    )
    assert summary["epsilon"] == pytest.approx(6.0)


def test_training_goes_on_under_its_noise(tmp_path: Path) -> None:
    """On 2,000 pictures of four clients, so that noise is small beside the sum of 500 gradients."""
    chosen = spec(train_limit=2000, test_limit=500, rounds=8, options={"fraction": 1.0}, training={"lr": 1.0})
    run(check(RunSpec, chosen.model_dump() | {"privacy": {"epsilon": 50.0, "example_clip": 1.0}}), tmp_path)
    records = rounds_of(tmp_path)
    assert records[-1]["accuracy"] > records[0]["accuracy"] + 20


def test_batch_norm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="BatchNorm"):
        run(spec(model="resnet18", rounds=1), tmp_path / "run")


def test_noise_is_drawn_by_each_client_alone() -> None:
    """From the system's random source: the same client, model and round give another reply."""
    task = build_task(spec())
    first, again = (task.train(0, task.initial(), 1, None).update for _ in range(2))
    assert not np.array_equal(first, again)
