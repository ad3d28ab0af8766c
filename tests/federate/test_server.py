"""What a server takes, what it refuses, and what it makes of it."""

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from small_federation import FEDAVG, FEDSPARQ, LAYOUT, client, reply, server, vector

from fedsparq.errors import RunError
from fedsparq.federate.messages import NOTHING_COUNTED, Acknowledgement, Broadcast, FullWanted, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server, Verdict
from fedsparq.federate.validation import Validation
from fedsparq.layout import Buffers, Layout
from fedsparq.methods import method
from fedsparq.payload import Payload


def opened(asked: tuple[int, ...] = (0, 1, 2), **settings: object) -> Server:
    made = server(**settings)  # type: ignore[arg-type]
    made.open_round(asked)
    return made


def test_weighted_mean_and_acknowledgement() -> None:
    made = opened()
    assert made.receive(0, reply(vector(1), examples=30)).taken
    assert made.receive(2, reply(vector(5), examples=10)).taken
    outcome = made.close_round()
    assert np.array_equal(made.state.model.vector, vector(2))
    assert outcome.counted == (0, 2)
    assert outcome.kept == 1.0
    made.open_round([0, 1])
    last = [Broadcast.decode(made.broadcast(number)).acknowledged for number in (0, 1)]
    assert last == [Acknowledgement(1, reply_digest(reply(vector(1), examples=30))), NOTHING_COUNTED]


def test_uniform_mean_with_momentum() -> None:
    chosen = method("fedsparq", server_momentum=0.5)
    made = opened(chosen=chosen)
    made.receive(0, reply(vector(1), chosen=chosen, examples=1000))
    made.receive(1, reply(vector(3), chosen=chosen, examples=1))
    made.close_round()
    assert np.array_equal(made.state.model.vector, vector(2))
    made.open_round([0])
    made.receive(0, reply(vector(1), 2, chosen=chosen))
    made.close_round()
    assert np.array_equal(made.state.model.vector, vector(2 + 0.5 * 2 + 1))


def test_momentum_is_dropped_where_the_mean_points_against_it() -> None:
    chosen = method("fedsparq-adaptive", server_momentum=0.5)
    made = server(chosen=chosen)
    path = []
    for number, change in enumerate([2, 1, -1, -1, 1], start=1):
        made.open_round([0])
        made.receive(0, reply(vector(change), number, chosen=chosen))
        made.close_round()
        path.append(made.state.model.vector[0])
    along, back = 0.5 * 2 + 1, -1
    assert np.allclose(np.diff(path), [along, back, 0.5 * back - 1, 1])


OTHER = Layout.of({"other": (12,)})
NAN, INFINITE = vector(1), vector(1)
NAN[3], INFINITE[11] = np.nan, np.inf
REFUSED: dict[str, tuple[int, bytes, str]] = {
    "nothing": (0, b"", "not a reply"),
    "not a message": (0, b"\0" * 99, "not a reply"),
    "an earlier round": (0, reply(vector(1), 1), "for round 1, not 2"),
    "a later round": (0, reply(vector(1), 3), "for round 3, not 2"),
    "not asked": (7, reply(vector(1), 2), "was not asked"),
    "another layout": (0, reply(vector(1), 2, layout=OTHER), "digest"),
    "another method": (0, reply(vector(1), 2, chosen=FEDSPARQ), "another method"),
    "other options": (0, reply(vector(1), 2, chosen=method("fedpaq", levels=8)), "another method"),
    "no examples": (0, reply(vector(1), 2, examples=0), "no example"),
    "not a number": (0, reply(NAN, 2), "infinite or not a number"),
    "infinite": (0, reply(INFINITE, 2), "infinite or not a number"),
    "absurd": (0, reply(vector(-1e7), 2), "above 1,000,000"),
    "whole model asked for without need": (0, FullWanted(2).encode(), "has been sent"),
    "no blob": (0, Reply(2, 0, 1, b"").encode(), "another method"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_and_without_a_trace(kind: str) -> None:
    sender, message, reason = REFUSED[kind]
    made = opened()
    made.receive(0, reply(vector(1)))
    made.close_round()
    made.open_round([0, 1])
    made.receive(1, reply(vector(2), 2))
    verdict = made.receive(sender, message)
    assert not verdict.taken
    assert not verdict.resend
    assert reason in verdict.reason
    outcome = made.close_round()
    assert [(event.client, event.round) for event in outcome.events] == [(sender, 2)]
    assert outcome.events[0].reason.startswith("refused: ")
    assert np.array_equal(made.state.model.vector, vector(3))
    assert made.state.counted.get(sender, NOTHING_COUNTED).round == (1 if sender == 0 else 0)


def test_duplicate_counts_once() -> None:
    made = opened()
    assert made.receive(0, reply(vector(1))).taken
    assert "answered this round already" in made.receive(0, reply(vector(1))).reason
    assert "answered this round already" in made.receive(0, reply(vector(9))).reason
    made.close_round()
    assert np.array_equal(made.state.model.vector, vector(1))


def test_late_replies_are_refused() -> None:
    made = opened(validation=Validation(deadline=2.0))
    assert made.receive(0, reply(vector(1)), seconds=2.0).taken
    assert "deadline of 2 s" in made.receive(1, reply(vector(9)), seconds=2.1).reason
    made.close_round()
    assert made.receive(2, reply(vector(9))).reason == "no round is open"
    made.open_round([0, 1, 2])
    assert "for round 1, not 2" in made.receive(1, reply(vector(9), 1)).reason
    outcome = made.close_round()
    assert [(event.client, event.round) for event in outcome.events] == [(2, 1), (1, 2), (-1, 2)]
    assert np.array_equal(made.state.model.vector, vector(1))


def test_too_few_replies_make_a_round_void() -> None:
    made = opened(validation=Validation(min_replies=2))
    made.receive(0, reply(vector(1)))
    outcome = made.close_round()
    assert outcome.counted == ()
    assert [event.client for event in outcome.events] == [-1, 0]
    assert "void" in outcome.events[0].reason
    assert made.state.round == 1
    assert made.state.counted == {}
    assert not made.state.model.vector.any()


def test_fixed_norm_limit() -> None:
    made = opened(validation=Validation(norm_limit="10"))
    assert made.receive(0, reply(vector(1))).taken
    assert "norm 10.4 is above the limit 10" in made.receive(1, reply(vector(3))).reason
    assert made.close_round().counted == (0,)
    made.open_round([0])
    assert Broadcast.decode(made.broadcast(0)).norm_limit == 10


def test_norm_limit_by_the_median() -> None:
    made = opened(asked=tuple(range(5)), validation=Validation(norm_limit="3x median"))
    for number, value in enumerate([1, -1, 1.1, 2.9, 100]):
        assert made.receive(number, reply(vector(value))).taken, "judged when all are there"
    outcome = made.close_round()
    assert outcome.counted == (0, 1, 2, 3)
    assert [event.client for event in outcome.events] == [4]
    np.testing.assert_allclose(made.state.model.vector, vector(1))
    made.open_round([4])
    request = Broadcast.decode(made.broadcast(4))
    assert request.acknowledged == NOTHING_COUNTED
    assert request.norm_limit == pytest.approx(3.3 * np.sqrt(LAYOUT.size))


def test_examples_limit_where_they_are_weights() -> None:
    for chosen, counted in ((FEDAVG, (0, 1)), (FEDSPARQ, (0, 1, 2))):
        made = opened(chosen=chosen, validation=Validation(examples_limit="10x median"))
        for number, examples in enumerate((10, 20, 4_000_000_000)):
            made.receive(number, reply(vector(1), chosen=chosen, examples=examples))
        assert made.close_round().counted == counted


def test_statistics_and_counters() -> None:
    layout = Layout.of({"weight": np.zeros(2, np.float32)})
    layout = Layout((*layout.tensors, *_buffers()))
    start = Model(np.zeros(2, np.float32), Buffers(np.zeros(2, np.float32), np.zeros(1, np.int64)))
    made = Server(layout, FEDAVG, start, validation=Validation(norm_limit="3x median"))
    made.open_round(range(4))

    def send(number: int, mean: float, count: int, examples: int = 10) -> bool:
        buffers = Buffers(np.full(2, mean, np.float32), np.array([count], np.int64))
        message = reply(np.ones(2, np.float32), layout=layout, buffers=buffers, examples=examples)
        return made.receive(number, message).taken

    assert send(0, 1.0, 5, 30)
    assert send(1, 5.0, 7, 10)
    assert send(2, 1e5, 6), "judged when all are there"
    assert not send(3, 1.0, 2**62), "a counter cannot be moved so far"
    outcome = made.close_round()
    assert outcome.counted == (0, 1)
    assert made.state.model.buffers is not None
    assert np.array_equal(made.state.model.buffers.statistics, np.full(2, 2.0))
    assert made.state.model.buffers.counters.tolist() == [7]


def _buffers() -> tuple[object, ...]:
    import torch

    norm = torch.nn.BatchNorm1d(1)
    tensors = Layout.of(norm).tensors
    return tuple(tensor for tensor in tensors if tensor.role != "parameter")


def test_measures_are_means_over_the_replies() -> None:
    measures = {"kept": lambda payload: payload.kept, "largest": Payload.largest}
    made = Server(LAYOUT, FEDAVG, Model(vector(0)), measures=measures)
    made.open_round([0, 1, 2])
    for number, value in enumerate((1, -4)):
        made.receive(number, reply(vector(value)))
    made.receive(2, b"nonsense")
    assert made.close_round().measures == {"kept": LAYOUT.size, "largest": 2.5}
    made.open_round([0])
    assert made.close_round().measures == {}


def test_plain_arrays_count_like_any_reply() -> None:
    made = opened(validation=Validation(deadline=5.0))

    def send(number: int, value: float, examples: int = 10, seconds: float = 0.0) -> Verdict:
        return made.receive_payload(number, Payload.full(LAYOUT, vector(value)), examples, seconds)

    assert send(0, 1, 30).taken
    assert send(1, 5).taken
    assert "already" in send(0, 1).reason
    assert "not asked" in send(7, 1).reason
    assert "deadline" in send(2, 1, seconds=6).reason
    assert "no example" in send(2, 1, examples=0).reason
    assert "above 1,000,000" in send(2, 1e7).reason
    assert "above 1,000,000" in send(2, np.nan).reason
    outcome = made.close_round()
    assert outcome.counted == (0, 1)
    assert np.array_equal(made.state.model.vector, vector(2))
    assert send(2, 1).reason == "no round is open"


def test_clients_may_have_methods_of_their_own() -> None:
    own = method("fedpaq", levels=8)
    made = Server(LAYOUT, FEDAVG, Model(vector(0)), own_methods={1: own})
    made.open_round([0, 1])
    assert [Broadcast.decode(made.broadcast(number)).method for number in (0, 1)] == [FEDAVG.identity, own.identity]
    assert "another method" in made.receive(1, reply(vector(1))).reason
    assert made.receive(1, reply(vector(1), chosen=own)).taken
    assert made.receive(0, reply(vector(1))).taken


def test_nothing_without_a_round() -> None:
    made = server()
    for call in (lambda: made.broadcast(0), made.close_round):
        with pytest.raises(RunError, match="open_round"):
            call()


def test_round_opened_again_forgets_what_it_had() -> None:
    made = opened()
    made.receive(0, reply(vector(7)))
    made.receive(1, b"nonsense")
    made.open_round([0])
    assert made.receive(0, reply(vector(1))).taken
    outcome = made.close_round()
    assert outcome.events == ()
    assert np.array_equal(made.state.model.vector, vector(1))


def hostile_messages(rng: np.random.Generator) -> list[Callable[[], bytes]]:
    honest = client(0).answer(_first_broadcast()).message
    assert honest is not None
    forged = [message for _, message, _ in REFUSED.values()]

    def flipped() -> bytes:
        data = bytearray(honest)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        return bytes(data)

    return [
        lambda: rng.bytes(int(rng.integers(200))),
        lambda: b"FSQR" + rng.bytes(int(rng.integers(200))),
        flipped,
        lambda: honest[: int(rng.integers(len(honest)))],
        lambda: honest + rng.bytes(int(rng.integers(1, 200))),
        lambda: forged[int(rng.integers(len(forged)))],
        lambda: FullWanted(int(rng.integers(2**32))).encode(),
        lambda: Reply(1, 0, 2**32 - 1, honest[24:]).encode(),
    ]


def _first_broadcast() -> bytes:
    return opened(chosen=FEDSPARQ).broadcast(0)


def test_a_hundred_thousand_hostile_messages() -> None:
    rng = np.random.default_rng(0)
    kinds = hostile_messages(rng)
    made = opened(chosen=FEDSPARQ)
    made.state.model.vector[:] = rng.normal(size=LAYOUT.size)
    before = made.state.model.vector.tobytes()

    def flood(count: int) -> None:
        for number in range(count):
            sender = (number * 7919) % 100_003 if number % 3 else number % 5
            assert not made.receive(sender, kinds[number % len(kinds)]()).taken

    flood(2000)
    gc.collect()  # other tests' garbage is not this one's memory
    tracemalloc.start()
    flood(1000)
    base, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    flood(97_000)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now - base < 20_000
    assert peak - base < 200_000
    outcome = made.close_round()
    assert len(outcome.events) <= 1000
    assert len(outcome.events) + outcome.unlisted == 100_001, "one refusal each, and the round is void"
    assert made.state.model.vector.tobytes() == before
    assert made.state.counted == {}
