"""Attacks: each forged reply against its definition, on a round whose honest updates are known."""

from pathlib import Path

import numpy as np
import pytest
from test_faults import CLIENTS, LAYOUT, exchange

from fedsparq import decode
from fedsparq.errors import OptionError, WireError
from fedsparq.federate.messages import Reply
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.attacks import ALIE_Z, IPM_SCALE, NOISE, SYBIL_SCALE, Attack, Overheard
from fedsparq.lab.experiments.run import run
from fedsparq.lab.results.reading import load_run
from fedsparq.lab.specs import FaultSpec, RunSpec, check
from fedsparq.layout import Buffers, Layout
from fedsparq.payload import Payload
from fedsparq.wire import encode

HOSTILE = sorted(Attack(FaultSpec(hostile=0.2), CLIENTS, 0).hostile)


def dense(delivery: Delivery) -> np.ndarray:
    assert delivery.answer.message is not None
    return decode(Reply.decode(delivery.answer.message).blob, LAYOUT).dense().astype(np.float64)


def attacked(folder: Path, kind: str, **more: object) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What all clients would have sent in the first round, and what arrives."""
    honest = exchange(folder / "honest")[0]
    arrived = exchange(folder / "attacked", hostile=0.2, hostile_kinds=(kind,), **more)[0]
    assert [delivery.client for delivery in arrived] == list(range(CLIENTS))
    true, said = [dense(delivery) for delivery in honest], [dense(delivery) for delivery in arrived]
    for client in set(range(CLIENTS)) - set(HOSTILE):
        assert np.array_equal(true[client], said[client])
    return true, said


def test_two_of_ten_are_hostile_and_the_seed_says_who() -> None:
    assert len(HOSTILE) == 2
    others = {tuple(sorted(Attack(FaultSpec(hostile=0.2), CLIENTS, seed).hostile)) for seed in range(20)}
    assert len(others) > 5


def test_sign_flip(tmp_path: Path) -> None:
    true, said = attacked(tmp_path, "sign-flip")
    assert all(np.array_equal(said[client], -true[client]) for client in HOSTILE)


def test_gaussian(tmp_path: Path) -> None:
    true, said = attacked(tmp_path, "gaussian")
    for client in HOSTILE:
        assert np.linalg.norm(said[client]) == pytest.approx(NOISE * np.linalg.norm(true[client]), rel=1e-5)
    first, second = (said[client] for client in HOSTILE)
    assert not np.allclose(first, second)


def test_free_rider(tmp_path: Path) -> None:
    _, said = attacked(tmp_path, "free-rider")
    assert not any(said[client].any() for client in HOSTILE)


def test_omniscient_attacks_know_the_honest_mean_and_deviation(tmp_path: Path) -> None:
    honest = [client for client in range(CLIENTS) if client not in HOSTILE]
    true, said = attacked(tmp_path / "alie", "alie")
    mean, deviation = np.mean([true[c] for c in honest], axis=0), np.std([true[c] for c in honest], axis=0)
    for client in HOSTILE:
        np.testing.assert_allclose(said[client], mean - ALIE_Z * deviation, rtol=1e-4, atol=1e-5)
    _, said = attacked(tmp_path / "ipm", "ipm")
    for client in HOSTILE:
        np.testing.assert_allclose(said[client], -IPM_SCALE * mean, rtol=1e-4, atol=1e-5)


def test_sybils_are_not_there_before_they_join_and_then_speak_with_one_voice(tmp_path: Path) -> None:
    true, said = attacked(tmp_path, "sybil")
    for client in HOSTILE:
        np.testing.assert_allclose(said[client], -SYBIL_SCALE * true[HOSTILE[0]], rtol=1e-6)
    late = exchange(tmp_path / "late", rounds=3, hostile=0.2, hostile_kinds=("sybil",), hostile_from=3)
    for number, arrived in enumerate(late, start=1):
        absent = [delivery.client for delivery in arrived if delivery.answer.message is None]
        assert absent == (HOSTILE if number < 3 else [])


def test_others_are_honest_before_they_turn_hostile(tmp_path: Path) -> None:
    early = exchange(tmp_path / "early", rounds=2, hostile=0.2, hostile_kinds=("sign-flip",), hostile_from=2)
    honest = exchange(tmp_path / "honest", rounds=2)
    assert [d.answer.message for d in early[0]] == [d.answer.message for d in honest[0]]
    assert [d.answer.message for d in early[1]] != [d.answer.message for d in honest[1]]


def test_garbled_replies_have_right_checksums_and_are_refused(tmp_path: Path) -> None:
    (arrived,) = exchange(tmp_path, hostile=1.0, hostile_kinds=("garbled",))
    reasons = []
    for delivery in arrived:
        assert delivery.answer.message is not None
        try:
            decode(Reply.decode(delivery.answer.message).blob, LAYOUT)
        except WireError as error:
            reasons.append(str(error))
    assert reasons
    assert not any("checksum" in reason for reason in reasons)


def test_slow_senders_are_slower_than_any_deadline(tmp_path: Path) -> None:
    (arrived,) = exchange(tmp_path, hostile=0.2, hostile_kinds=("slow",))
    assert [d.client for d in arrived if d.answer.train_seconds > 1e5] == HOSTILE


def test_slow_senders_are_refused_by_a_deadline_and_hold_up_nobody(tmp_path: Path) -> None:
    slow = {"aggregator": "", "optimizer": "", "rounds": 2, "server": {"deadline": 1e5}}
    summary = run(small(**slow, faults={"hostile": 0.4, "hostile_kinds": ["slow"]}), tmp_path / "run")
    (rounds,) = [load_run(tmp_path / "run").rounds]
    for record in rounds:
        assert record.clients == 3
        late = {event["client"] for event in record.events if "after the deadline" in event["reason"]}
        assert late == set(Attack(FaultSpec(hostile=0.4), 5, 0).hostile)
    assert np.isfinite(summary["loss"])


def test_just_under_each_limit_is_taken_and_just_above_is_not() -> None:
    from fedsparq.federate.validation import check_sound

    layout = Layout.of({"w": (50,), "bn.running_var": np.zeros(4, np.float32), "n": np.zeros(1, np.int64)})
    before = Buffers(np.ones(4, np.float32), np.array([5]))
    own = Payload.full(layout, np.ones(50, np.float32), before)
    message = Reply(1, 7, 10, encode(own)).encode()
    attack = Attack(FaultSpec(hostile=1.0, hostile_kinds=("under-limits",)), 1, 0)
    forged = Reply.decode(attack.forge("under-limits", message, layout, np.random.default_rng(0), Overheard(0), b""))
    payload = decode(forged.blob, layout)
    check_sound(payload, before)
    assert forged.examples == 2**32 - 1
    assert payload.largest() < 1e6
    with pytest.raises(WireError, match="above 1,000,000"):
        check_sound(Payload.full(layout, np.full(50, np.nextafter(np.float32(1e6), np.inf), np.float32)), None)


def small(**more: object) -> RunSpec:
    table = {
        "method": "fedsparq",
        "clients": 5,
        "rounds": 4,
        "train_limit": 400,
        "test_limit": 200,
        "training": {"batch_size": 16},
        "aggregator": "robust",
        "optimizer": "sparse-step",
        "faults": {"hostile": 0.4, "hostile_kinds": ["ipm", "backdoor", "label-flip", "sign-flip"]},
    }
    return check(RunSpec, table | more)


def test_same_result_resumed_and_with_workers(tmp_path: Path) -> None:
    whole = run(small(), tmp_path / "whole")
    run(small(rounds=2), tmp_path / "parts")
    parts = run(small(), tmp_path / "parts", resume=True)
    workers = run(small(), tmp_path / "workers", workers=2)
    model = (tmp_path / "whole" / "model.safetensors").read_bytes()
    for folder, summary in (("parts", parts), ("workers", workers)):
        assert (tmp_path / folder / "model.safetensors").read_bytes() == model
        assert summary["metrics"] == whole["metrics"]
    assert 0 <= whole["metrics"]["backdoor_success"] <= 100


@pytest.mark.parametrize("rule", ["centered-clipping", "fltrust"])
def test_rules_with_more_state_resumed(tmp_path: Path, rule: str) -> None:
    spec = {"aggregator": rule, "optimizer": "", "faults": {"hostile": 0.4, "hostile_kinds": ["scale"]}}
    run(small(**spec), tmp_path / "whole")
    run(small(**spec, rounds=2), tmp_path / "parts")
    run(small(**spec), tmp_path / "parts", resume=True)
    names = [tmp_path / folder / "model.safetensors" for folder in ("whole", "parts")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_tampering_with_data_needs_a_task_that_can(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="tampers with data"):
        run(small(task="test_attacks:blind"), tmp_path / "run")


def blind(clients: int, seed: int) -> object:
    """A task whose data cannot be tampered with."""
    from fedsparq.lab.tasks import load_task

    inner = load_task("supervised", clients=clients, seed=seed, train_limit=100, test_limit=50)

    class Blind:
        layout, device = inner.layout, inner.device
        initial, examples, train, evaluate = inner.initial, inner.examples, inner.train, inner.evaluate

    return Blind()
