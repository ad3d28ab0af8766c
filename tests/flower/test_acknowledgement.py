"""Nothing is lost over Flower: replies that never count, nodes that forget, states in files or in the context."""

import numpy as np
import pytest
from flwr.app import Array, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from toy import SHAPES, client_app, model

from fedsparq import DiskStore, Identity, decode
from fedsparq.federate.messages import Broadcast, Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.flower.records import unwrap
from fedsparq.flower.stores import ContextStore, store_for
from flower_models import layout_of, to_model
from inprocess_grid import InProcessGrid

LAYOUT = layout_of(model())
PARAMETERS = [t.name for t in LAYOUT.parameters]


def quiet(**options):
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, **options)


class Wire:
    """Keeps every reply that arrives, and loses those it is told to."""

    def __init__(self, lose) -> None:
        self.lose = lose
        self.sent: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, message: Message) -> Message | None:
        packed = unwrap(message.content["arrays"])
        reply = Reply.decode(packed)
        node = message.metadata.src_node_id
        self.sent[node, reply.round] = decode(reply.blob, LAYOUT).dense()
        return None if self.lose(node, reply.round) else message


@pytest.mark.parametrize(
    "make", [lambda: Compressed(quiet()), lambda: FedSparQ(), lambda: Compressed(quiet(), "fedsparq", multiplier=3)]
)
def test_all_deltas_are_counted_payloads_or_residual(make, tmp_path):
    """For each client: the sum of its deltas = payloads of its counted rounds + in flight + residual."""
    dropped = {(100, 1), (100, 2), (101, 3), (102, 5), (100, 5)}
    wire = Wire(lambda node, number: (node, number) in dropped)
    deltas: dict[int, list] = {}
    strategy = make()
    grid = InProcessGrid([client_app(compress(state=tmp_path), deltas=deltas)] * 3, fate=wire)
    strategy.start(grid, model(), num_rounds=6, timeout=0.01)
    (session,) = tmp_path.iterdir()
    for node in (100, 101, 102):
        counted = sum(wire.sent[node, r.round] for r in strategy.rounds if node in r.counted)
        state = DiskStore(session / f"node-{node}" / f"{LAYOUT.digest:016x}").load(node - 100, LAYOUT).state
        assert state.round == 6
        last = 0 if node in strategy.rounds[-1].counted else decode(Reply.decode(state.in_flight).blob, LAYOUT).dense()
        total = np.sum(deltas[node - 100], axis=0)
        assert [r.round for r in strategy.rounds if node not in r.counted] == [
            n for m, n in sorted(dropped) if m == node
        ]
        np.testing.assert_allclose(counted + last + state.compression.residual, total, atol=3e-5)


def test_a_dropped_reply_is_put_back_and_said():
    wire = Wire(lambda node, number: (node, number) == (101, 1))
    strategy = Compressed(quiet())
    strategy.start(InProcessGrid([client_app(compress())] * 3, fate=wire), model(), num_rounds=2, timeout=0.01)
    assert [(e.client, e.reason) for e in strategy.rounds[1].events] == [
        (101, "reply to round 1 was not counted: put back into the residual")
    ]


def test_a_round_that_the_inner_strategy_throws_away_counts_for_nobody():
    """With one reply missing, accounted differential privacy skips the round: all three must send theirs again."""
    wire = Wire(lambda node, number: False)
    failing = {1}

    def fate(message: Message) -> Message | None:
        arrived = wire(message)
        if message.metadata.src_node_id == 102 and 1 in failing:
            failing.clear()
            from flwr.app import Error

            return Message(Error(2, "out of memory"), reply_to=message)
        return arrived

    strategy = Compressed(DifferentialPrivacyServerSideFixedClipping(quiet(), 0.0, 10.0, 3))
    strategy.start(InProcessGrid([client_app(compress())] * 3, fate=fate), model(), num_rounds=2, timeout=0.01)
    assert [len(r.counted) for r in strategy.rounds] == [0, 3]
    put_back = [e for e in strategy.rounds[1].events if "put back" in e.reason]
    assert {e.client for e in put_back} == {100, 101, 102}


@pytest.mark.parametrize(
    "make", [lambda: Compressed(quiet(), downlink="lattice"), lambda: FedSparQ(downlink="lattice")]
)
def test_a_node_that_lost_its_model_is_sent_the_whole_one(make, tmp_path):
    seen: list = []
    strategy = make()
    app = client_app(compress(state=tmp_path), seen=seen)
    wipe_before = {4: 101}

    class Wiping(InProcessGrid):
        def push_messages(self, messages):
            listed = list(messages)
            number = int(listed[0].content["config"]["server-round"]) if listed else 0
            if wipe_before.pop(number, None):
                for path in tmp_path.glob("run-*/node-101/**/*.safetensors"):
                    path.unlink()
            return super().push_messages(listed)

    grid = Wiping([app] * 3)
    strategy.start(grid, model(), num_rounds=6, timeout=0.01)
    assert [len(r.counted) for r in strategy.rounds] == [3] * 6
    reasons = [e.reason for e in strategy.rounds[3].events if e.client == 101]
    assert "model not at hand: whole model asked for" in reasons
    assert any("residual lost" in reason for reason in reasons)


@pytest.mark.parametrize("rest", [0, 500])
def test_a_model_cut_short_by_a_power_failure_is_asked_for_again_and_the_residual_is_there(rest, tmp_path):
    """The file of the model is not synced: so many of its bytes may be all that is left."""
    strategy = Compressed(quiet(), downlink="lattice")

    class Failing(InProcessGrid):
        def push_messages(self, messages):
            listed = list(messages)
            if listed and listed[0].content["config"]["server-round"] == 3:
                (path,) = tmp_path.glob("run-*/node-101/*/client-*/held-*.safetensors")
                path.write_bytes(path.read_bytes()[:rest])
            return super().push_messages(listed)

    strategy.start(Failing([client_app(compress(state=tmp_path))] * 3), model(), num_rounds=4, timeout=0.01)
    assert [len(r.counted) for r in strategy.rounds] == [3] * 4
    assert [e.reason for e in strategy.rounds[2].events] == ["model not at hand: whole model asked for"]


def test_with_a_compressed_downlink_all_nodes_train_on_one_public_model(tmp_path):
    seen: list = []
    strategy = Compressed(quiet(), downlink="lattice")
    grid = InProcessGrid([client_app(compress(state=tmp_path), seen=seen)] * 3)
    strategy.start(grid, model(), num_rounds=4, timeout=0.01)
    for number in range(4):
        vectors = [to_model(arrays, LAYOUT).vector for arrays in seen[3 * number : 3 * number + 3]]
        assert all((vector == vectors[0]).all() for vector in vectors)


def test_a_late_joiner_gets_the_right_model_under_a_compressed_downlink(tmp_path):
    """First contact is plain: the node must not take the server's own model for the public one."""
    seen: list = []
    strategy = Compressed(quiet(), downlink="lattice")

    class Growing(InProcessGrid):
        asked = 0

        def get_node_ids(self):
            self.asked += 1
            return [100, 101] if self.asked <= 4 else [100, 101, 102]

    grid = Growing([client_app(compress(state=tmp_path), seen=seen)] * 3)
    strategy.start(grid, model(), num_rounds=7, timeout=0.01)
    last = [to_model(arrays, LAYOUT).vector for arrays in seen[-3:]]
    assert len(strategy.rounds[-1].counted) == 3
    assert all((vector == last[0]).all() for vector in last)


def test_a_second_strategy_in_the_same_run_starts_anew(tmp_path):
    app = client_app(compress(state=tmp_path))
    grid = InProcessGrid([app] * 3)
    for _ in range(2):
        strategy = Compressed(quiet())
        strategy.start(grid, model(), num_rounds=2, timeout=0.01)
        assert [len(r.counted) for r in strategy.rounds] == [3, 3]
        assert not any(r.events for r in strategy.rounds)
    strategy.start(grid, model(1), num_rounds=2, timeout=0.01)
    assert [r.round for r in strategy.rounds] == [1, 2, 3, 4]
    assert [len(r.counted) for r in strategy.rounds] == [3, 3, 3, 3]


def test_the_same_message_twice_trains_once(tmp_path):
    seen: list = []
    app = client_app(compress(state=tmp_path), seen=seen)

    class Doubling(InProcessGrid):
        def push_messages(self, messages):
            listed = list(messages)
            super().push_messages(listed)
            return super().push_messages(listed)

    strategy = FedSparQ()
    strategy.start(Doubling([app] * 3), model(), num_rounds=2, timeout=0.01)
    assert len(seen) == 6


def test_state_goes_where_it_is_safe(tmp_path, monkeypatch):
    grid = InProcessGrid([client_app(compress())] * 2, node_config={"fedsparq-state": str(tmp_path / "node")})
    Compressed(quiet()).start(grid, model(), num_rounds=1, timeout=0.01)
    assert len(list((tmp_path / "node").glob("run-1-*/node-10?/*/client-?/1.safetensors"))) == 2
    assert not grid.contexts[100].state

    context = grid.contexts[100]
    context.node_config.pop("fedsparq-state")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
    broadcast = Broadcast(1, None, 9, Identity("fedsparq"), 0, False, (), session=5)
    assert store_for(context, broadcast).folder.is_relative_to(tmp_path / "user" / "fedsparq")
    monkeypatch.setattr("fedsparq.flower.stores._simulated", lambda: True)
    assert store_for(context, broadcast) == ContextStore(context, 5, 9)


def test_context_state_carries_what_a_file_would(tmp_path, monkeypatch):
    results = []
    for simulated in (False, True):
        monkeypatch.setattr("fedsparq.flower.stores._simulated", lambda value=simulated: value)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
        wire = Wire(lambda node, number: (node, number) == (100, 2))
        strategy = FedSparQ()
        grid = InProcessGrid([client_app(compress())] * 3, fate=wire)
        result = strategy.start(grid, model(), num_rounds=4, timeout=0.01)
        results.append((to_model(result.arrays, LAYOUT).vector, wire.sent))
        assert bool(grid.contexts[100].state) == simulated
    assert (results[0][0] == results[1][0]).all()
    assert all((results[1][1][key] == value).all() for key, value in results[0][1].items())


def test_every_parameter_is_in_the_sum():
    assert sorted(PARAMETERS) == sorted(name for name in SHAPES if "running" not in name)
    assert isinstance(model()["fc.bias"], Array)
