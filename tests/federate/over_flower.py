"""The model test over Flower: nodes with the mod, on a grid in this process that loses, repeats and damages messages.

A server process dies in the middle of a round, or after it and before its checkpoint; the next one goes on from there.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from protocol_books import CLIENTS, LAYOUT, METHODS, Held, Machine, Snapshot
from sharing import Sharing

from fedsparq.errors import RunError
from fedsparq.federate.messages import Reply, reply_digest
from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.records import KEY, unwrap, wrap
from fedsparq.methods import method
from fedsparq.payload.frame import frame_kind
from inprocess_grid import InProcessGrid, _carried

FATES = [
    *["fine"] * 4,
    "not asked",
    "not heard",
    "asked twice",
    "sent twice",
    "late",
    "lost",
    "twin",
    "broken before saving",
    "damaged request",
    "damaged reply",
]
NODES = {"min_train_nodes": 1, "min_available_nodes": 1}
FOUND = {"federation": "tests"}
SHAPES = {tensor.name: tensor.shape for tensor in LAYOUT.tensors}


class KilledError(BaseException):
    """The server's process ends here."""


class Play(InProcessGrid):
    """A grid whose messages have the fates of the round, drawn by the machine."""

    def __init__(self, machine: OverFlower, rounds: list[dict[int, str]], die_at: int) -> None:
        super().__init__([machine.app(client) for client in CLIENTS])
        self.machine, self.fates, self.left, self.die_at = machine, {}, rounds, die_at
        self.late: list[Message] = []
        self.due: list[Message] = []

    def get_node_ids(self) -> list[int]:
        """Asked once a round, by the strategy that samples."""
        if self.left:
            self.fates = self.left[0]
        return [100 + client for client, fate in sorted(self.fates.items()) if fate != "not asked"]

    def push_messages(self, messages) -> list[str]:
        listed = list(messages)
        if listed and self.left and self.fates is self.left[0]:
            self.machine.commit()
            self.machine.playing = True
            self.left, self.due, self.late = self.left[1:], self.late, []
        ids = super().push_messages(listed)
        self.die_at -= len(ids)
        if self.die_at < 0:
            raise KilledError
        return ids

    def pull_messages(self, message_ids) -> list[Message]:
        come = super().pull_messages(message_ids)
        twice = [_carried(reply)[0] for reply in come if self._fate(reply) == "sent twice"]
        self.late += [reply for reply in come if self._fate(reply) == "late"]
        due, self.due = self.due, []
        return [*due, *(reply for reply in come if self._fate(reply) != "late"), *twice]

    def _fate(self, reply: Message) -> str:
        return self.fates.get(reply.metadata.src_node_id - 100, "fine")

    def _serve(self, message: Message) -> Message | None:
        client, machine = message.metadata.dst_node_id - 100, self.machine
        fate = self.fates[client]
        if fate == "not heard":
            return None
        if fate == "damaged request":
            message = machine.damaged(message)
        before = machine.now[client]
        reply = self._answered(client, message, fate)
        if fate in ("asked twice", "twin"):
            if fate == "twin":
                machine.put_back(client, before)
            reply = self._answered(client, message, fate)
        if reply.has_content() and (frame := unwrap(reply.content["arrays"])) is not None:
            assert fate != "damaged request"
            machine.replied(client, frame, fate not in ("lost", "late", "damaged reply"))
        return None if fate == "lost" else machine.damaged(reply) if fate == "damaged reply" else reply

    def _answered(self, client: int, message: Message, fate: str) -> Message:
        machine = self.machine
        before, machine.trained, machine.breaks = machine.now[client], None, fate == "broken before saving"
        reply = super()._serve(message)
        assert reply is not None
        data, held = machine.files(client)
        if machine.trained is not None and not machine.breaks:
            assert data is not None
            about = reply.content.config_records.get(KEY, ConfigRecord())
            machine.enter_state(client, before, data, held, tuple(about.get("remarks", ())))
        else:
            assert data == (before and before.data), "only training changes a state"
        return reply


class OverFlower(Machine):
    """Rounds of a strategy, by its `start`."""

    resumes = True
    """Whether a new server process goes on from a checkpoint."""

    @initialize(
        chosen=st.sampled_from(METHODS),
        sharing=st.booleans(),
        down=st.sampled_from([None, "lattice"]),
        seed=st.integers(0, 2**32),
    )
    def begin(self, chosen, sharing, down, seed) -> None:
        self.level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        self.name, self.options, self.down, self.sharing = *chosen, down, sharing and isinstance(self, OwnServer)
        self.method = method(self.name if isinstance(self, OwnServer) else "fedavg")
        self.begin_books(seed)
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.strategy, self.done, self.breaks = self.made(), 0, False
        self.arrays = ArrayRecord({n: Array(np.zeros(s, np.float32)) for n, s in SHAPES.items()})
        self.counts: dict[int, tuple[int, bool]] = {}
        """Digests of the round's replies, and whether they reach the server."""

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            logging.getLogger("flwr").setLevel(self.level)
            self.folder.cleanup()

    def made(self) -> FedSparQ:
        raise NotImplementedError

    @property
    def kept(self) -> dict:
        return {"checkpoint": Path(self.folder.name) / "server", "downlink": self.down, **FOUND}

    @rule(
        rounds=st.lists(
            st.fixed_dictionaries({client: st.sampled_from(FATES) for client in CLIENTS}).filter(
                lambda fates: set(fates.values()) != {"not asked"}
            ),
            min_size=1,
            max_size=3,
        ),
        end=st.sampled_from(["end", "end", "end", "die", "die after closing"]),
        die_at=st.integers(0, 5),
        anew=st.booleans(),
    )
    def play(self, rounds, end, die_at, anew) -> None:
        self.counts, self.playing, self.before = {}, False, len(self.strategy.rounds)

        def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
            if end == "die after closing" and number == self.done + 1:
                raise KilledError
            return MetricRecord({"none": 0})

        grid = Play(self, rounds, die_at if end == "die" and self.resumes else 1000)
        try:
            target = self.done + len(rounds)
            left = target if self.resumes else len(rounds)
            result = self.strategy.start(grid, self.arrays, num_rounds=left, timeout=0, evaluate_fn=evaluated)
        except (KilledError, RunError) as error:
            event(f"a run ends: {type(error).__name__}")
            anew = True
            if not self.resumes:
                self.commit()
        else:
            self.commit()
            assert self.done == target
            vector = np.concatenate([result.arrays[name].numpy().reshape(-1) for name in SHAPES])
            self.close(self.books.model, vector.astype(np.float64))
            self.arrays = self.arrays if self.resumes else result.arrays
        if anew and self.resumes:
            self.strategy = self.made()

    def commit(self) -> None:
        """What the round before counted is safe on the server's side: it goes into the books."""
        reports = {report.round: report for report in self.strategy.rounds[self.before :]}
        self.before = len(self.strategy.rounds)
        self.done += self.playing
        if self.done in reports and self.playing:
            counted = [node - 100 for node in reports.pop(self.done).counted]
            shares = {client: self.drawn[client] if self.sharing else 1.0 for client in counted}
            assert all(self.counts[client][1] for client in shares), "what did not arrive does not count"
            event(f"round closed with {len(shares)} replies")
            self.count({(client, self.counts[client][0]): share for client, share in shares.items()}, self.done)
        assert not reports, "a round that was not played is reported"
        self.counts, self.playing = {}, False

    def replied(self, client: int, frame: bytes, arrives: bool) -> None:
        if frame_kind(frame) == "W":
            event("whole model sent again")
            return
        assert Reply.decode(frame).round == self.done + 1
        self.counts[client] = reply_digest(frame), arrives

    def damaged(self, message: Message) -> Message:
        """The same message, with one bit of its frame turned."""
        content = RecordDict(dict(message.content)) if message.has_content() else RecordDict()
        for key, record in content.array_records.items():
            if (frame := unwrap(record)) is not None:
                content[key] = wrap(self.flipped(frame))
        for key, config in content.config_records.items():
            if isinstance(frame := config.get(KEY), bytes):
                content[key] = ConfigRecord({**config, KEY: self.flipped(frame)})
        if message.has_content():
            message.content = content
        return message

    # the nodes

    def app(self, client: int) -> ClientApp:
        app = ClientApp(mods=[compress(state=Path(self.folder.name) / "nodes", seed=1)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
            vector = np.concatenate([arrays[name].reshape(-1) for name in SHAPES])
            self.check_public(self.done + 1, vector)
            self.trained = self.rng.normal(size=LAYOUT.size).astype(np.float32)
            if self.breaks:
                raise MemoryError
            after = vector + self.trained
            self.trained = after - vector
            parts = np.split(after, LAYOUT.bounds[1:-1])
            record = ArrayRecord({n: Array(part.reshape(SHAPES[n])) for n, part in zip(SHAPES, parts, strict=True)})
            metrics = MetricRecord({"num-examples": 10})
            return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

        return app

    def home(self, client: int) -> Path:
        node = Path(self.folder.name) / "nodes" / "federation-tests" / f"node-{100 + client}"
        return node / f"{LAYOUT.digest:016x}" / f"client-{client}"

    def files(self, client: int) -> tuple[bytes | None, Held]:
        """A node's state, and its other files."""
        found = {path.name: path.read_bytes() for path in self.home(client).glob("*.safetensors")}
        states = sorted((int(name.split(".")[0]), name) for name in found if name[0].isdigit())
        assert len(states) < 2
        return found.pop(states[0][1]) if states else None, found

    def held(self, client: int) -> Held:
        return self.files(client)[1]

    def write(self, client: int, data: bytes | None, held: Held) -> None:
        assert not isinstance(held, bytes)
        shutil.rmtree(self.home(client), ignore_errors=True)
        self.home(client).mkdir(parents=True)
        state = {} if data is None else {f"{Snapshot(data, None, 0, frozenset(), None).state.round}.safetensors": data}
        for name, content in {**(held or {}), **state}.items():
            (self.home(client) / name).write_bytes(content)


class OwnServer(OverFlower):
    """The method's own server."""

    def made(self) -> FedSparQ:
        own = Sharing(self.drawn_share) if self.sharing else None
        return FedSparQ(self.name, aggregator=own, **NODES, **self.kept, **self.options)


class Foreign(OverFlower):
    """Around a strategy of Flower's."""

    def made(self) -> FedSparQ:
        return FedSparQ(FedAvg(fraction_evaluate=0.0, **NODES), self.name, **self.kept, **self.options)


class Loop(FedAvg):
    """A strategy with a loop of its own, to which nobody says what counted."""

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, *rest, **more) -> Result:
        result = Result()
        result.arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            result.arrays = self.aggregate_train(number, replies)[0] or result.arrays
        return result


class OwnLoop(OverFlower):
    """Around a strategy with a `start` of its own, which no checkpoint resumes."""

    resumes = False

    def made(self) -> FedSparQ:
        return FedSparQ(Loop(fraction_evaluate=0.0, **NODES), self.name, downlink=self.down, **self.options, **FOUND)
