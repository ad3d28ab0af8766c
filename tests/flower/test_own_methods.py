"""Methods from outside the package: a user's file through both strategies, and what a node never does for a server."""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model, step

from fedsparq import DiskStore, Identity, Mean, Method, OptionError, Step, decode, method
from fedsparq.federate.messages import Broadcast, Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.flower.records import unwrap, with_frame, without_frame
from fedsparq.methods.registry import METHODS
from flower_models import layout_of, to_model
from inprocess_grid import InProcessGrid

LAYOUT = layout_of(model())

MODULE = """
import numpy as np
import fedsparq as fq

class EveryTenth:
    def __init__(self, start):
        self.start = start
    def init(self, layout):
        return {"turn": np.full(1, self.start)}
    def compress(self, update, layout, state, rng):
        indices = np.arange(int(state["turn"][0]) % 10, layout.size, 10)
        return fq.Payload.sparse(layout, indices, update[indices]), {"turn": state["turn"] + 1}

def below_median(updates, layout):
    norms = {u.client: float(np.linalg.norm(u.payload.dense())) for u in updates}
    kept = {client for client, norm in norms.items() if norm <= np.median(list(norms.values()))}
    mean = sum(u.payload.dense() for u in updates if u.client in kept) / len(kept)
    return mean, {u.client: float(u.client in kept) for u in updates}

class SignStep:
    def init(self, layout):
        return {}
    def step(self, model, mean, state):
        return model + np.float32(0.001) * np.sign(mean), state

def every_tenth(start: int = 0):
    return fq.Method(EveryTenth(start), feedback="full")

def robust():
    return fq.Method(EveryTenth(0), feedback="full", aggregator=fq.whole_round(below_median), optimizer=SignStep())
"""


@pytest.fixture
def users_file(tmp_path, monkeypatch):
    """A file `own_methods.py` in the working folder; it is on no path that Python searches by itself."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_methods", None)


def updates() -> np.ndarray:
    """What each client of the toy trains in the first round."""
    before, start = to_model(model(), LAYOUT).vector, model()
    after = [np.concatenate([step(start, n)[t.name].ravel() for t in LAYOUT.parameters]) for n in range(3)]
    return np.stack(after) - before


def moved(strategy, rounds: int = 1, **options) -> np.ndarray:
    grid = InProcessGrid([client_app(compress("own_methods:every_tenth", **options))] * 3)
    result = strategy.start(grid, model(), num_rounds=rounds, timeout=0.01)
    return to_model(result.arrays, LAYOUT).vector - to_model(model(), LAYOUT).vector


def tenth(vector: np.ndarray) -> np.ndarray:
    return np.where(np.arange(vector.size) % 10 == 0, vector, 0)


@pytest.mark.usefixtures("users_file")
def test_a_users_method_runs_under_both_strategies():
    """One round moves every tenth coordinate, by the mean of the clients' updates: weighted by FedAvg, not by ours."""
    weighted = np.average(updates(), axis=0, weights=[10, 20, 30])
    got = moved(Compressed(FedAvg(fraction_evaluate=0.0), "own_methods:every_tenth"))
    np.testing.assert_allclose(got, tenth(weighted), atol=1e-6)
    got = moved(FedSparQ("own_methods:every_tenth"))
    np.testing.assert_allclose(got, tenth(updates().mean(0)), atol=1e-6)
    got = moved(FedSparQ(method("own_methods:every_tenth")), rounds=3)
    assert set(np.flatnonzero(got) % 10) == {0, 1, 2}


@pytest.mark.usefixtures("users_file")
def test_options_are_the_functions_keywords():
    got = moved(FedSparQ("own_methods:every_tenth", start=4), start=4)
    assert set(np.flatnonzero(got) % 10) == {4}
    with pytest.raises(OptionError, match=r"the server with 'own_methods:every_tenth' \(start=4 instead of 0\)"):
        moved(FedSparQ("own_methods:every_tenth", start=4))
    with pytest.raises(OptionError, match="no option 'begin'"):
        FedSparQ("own_methods:every_tenth", begin=4)


@pytest.mark.usefixtures("users_file")
def test_server_parts_can_be_replaced_alone():
    weighted = np.average(updates(), axis=0, weights=[10, 20, 30])
    got = moved(FedSparQ("own_methods:every_tenth", aggregator=Mean("examples"), optimizer=_Half()))
    np.testing.assert_allclose(got, tenth(weighted) / 2, atol=1e-6)


class _Half(Step):
    def step(self, model, mean, state):
        return model + mean / 2, state


@pytest.mark.usefixtures("users_file")
def test_what_an_aggregator_leaves_out_goes_back_to_its_client(tmp_path):
    """For each client: the sum of its deltas = what counted of its payloads + in flight + residual."""
    sent: dict[tuple[int, int], np.ndarray] = {}
    deltas: dict[int, list] = {}

    def fate(message: Message) -> Message:
        reply = Reply.decode(unwrap(message.content["arrays"]))
        sent[message.metadata.src_node_id, reply.round] = decode(reply.blob, LAYOUT).dense()
        return message

    app = client_app(compress("own_methods:robust", state=tmp_path / "states"), deltas=deltas)
    strategy = FedSparQ("own_methods:robust")
    result = strategy.start(InProcessGrid([app] * 3, fate=fate), model(), num_rounds=5, timeout=0.01)
    steps = (to_model(result.arrays, LAYOUT).vector - to_model(model(), LAYOUT).vector) / 0.001
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert [len(r.counted) for r in strategy.rounds] == [2] * 5
    (session,) = (tmp_path / "states").iterdir()
    for node in (100, 101, 102):
        state = DiskStore(session / f"node-{node}" / f"{LAYOUT.digest:016x}").load(node - 100, LAYOUT).state
        counted = sum(sent[node, r.round] for r in strategy.rounds if node in r.counted)
        in_flight = 0 if node in strategy.rounds[-1].counted else sent[node, 5]
        total = np.sum(deltas[node - 100], axis=0)
        np.testing.assert_allclose(counted + in_flight + state.compression.residual, total, atol=3e-5)


def test_a_method_that_nodes_could_not_make_is_refused_at_construction(monkeypatch):
    by_hand = Method(method("top-10").compressor)
    for refused in (
        lambda: Compressed(FedAvg(), by_hand),
        lambda: FedSparQ(by_hand),
        lambda: compress(by_hand),
    ):
        with pytest.raises(OptionError, match=r"made by hand .* a Flower node could not .* 'package.module:function'"):
            refused()

    def recipe() -> Method:
        return by_hand

    recipe.__module__ = "__main__"
    monkeypatch.setitem(METHODS, "of-main", recipe)
    with pytest.raises(OptionError, match="'of-main' is a function of __main__, which a Flower node cannot import"):
        Compressed(FedAvg(), "of-main")


def asking_for(identity: Identity):
    """A mod before ours that makes the server ask for another method than it does."""

    def forge(message: Message, context: Context, call_next) -> Message:
        content, data = without_frame(message.content)
        forged = replace(Broadcast.decode(data), method=identity)
        message.content = with_frame(content, forged.encode(), plain=True)
        return call_next(message, context)

    return forge


def ends_with(identity: Identity, sentence: str) -> None:
    grid = InProcessGrid([client_app(asking_for(identity), compress())] * 3)
    with pytest.raises(OptionError, match=sentence):
        FedSparQ().start(grid, model(), num_rounds=1, timeout=0.01)


def test_a_method_unknown_to_the_node_is_refused_with_its_name():
    ends_with(Identity("zip"), "no node could take part: .* there is no method 'zip'")
    own = method("fedsparq").identity
    ends_with(replace(own, version="7"), "'fedsparq' is not the one this client has: .* version 7 of 'fedsparq'")
    ends_with(replace(own, options={**own.options, "gamma": 1}), "no option 'gamma'")


def test_one_node_that_lacks_the_method_does_not_stop_the_others():
    unknowing = client_app(asking_for(Identity("zip")), compress())
    strategy = FedSparQ()
    grid = InProcessGrid([client_app(compress())] * 2 + [unknowing])
    strategy.start(grid, model(), num_rounds=2, timeout=0.01)
    assert [r.counted for r in strategy.rounds] == [(100, 101)] * 2
    assert any("no method 'zip'" in event.reason for event in strategy.rounds[0].events)


def test_a_name_from_the_wire_is_never_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentinel.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n{MODULE}")
    ends_with(
        Identity("sentinel:every_tenth"),
        r"no node could take part: the server asks for the method 'sentinel:every_tenth', .* compress\(\.\.\.\)",
    )
    importlib.invalidate_caches()
    assert "sentinel" not in sys.modules
    assert not (tmp_path / "imported").exists()
    compress("sentinel:every_tenth")  # named by the node's own operator
    assert sys.modules.pop("sentinel", None)
    assert (tmp_path / "imported").exists()
