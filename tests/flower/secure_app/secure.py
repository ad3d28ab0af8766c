"""An experiment under masks on real nodes, in which one node never answers: in each stage another, in another round."""

import time
from collections.abc import Iterator
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsparq.federate.rounds import Delivery
from fedsparq.flower.records import unwrap
from fedsparq.lab.engines.engine import Asked
from fedsparq.lab.engines.flower import GridEngine, work
from fedsparq.lab.experiments.flower_app import PARTITION, find_clients
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec, check
from fedsparq.secure.messages import Confirmations, Invitation, Neighbourhood, Survivors, kind_of

PLAIN = {"method": "fedsparq-private", "clients": 6, "rounds": 6, "train_limit": 500, "test_limit": 100}
SPEC = check(RunSpec, {**PLAIN, "privacy": {"secure_sums": True}})
DEATHS = (1, 2, 3, 4, 5)
"""In this round the node of this number dies in the stage of this number: its answer is made, and never sent."""
_STAGES = {Invitation.kind: 1, Neighbourhood.kind: 2, Survivors.kind: 4, Confirmations.kind: 5}

client_app = ClientApp()
server_app = ServerApp()


def stage_of(request: bytes) -> int:
    return 3 if request[:4] == b"FSQT" else _STAGES[kind_of(request)]


def stall(message: Message, context: Context, call_next) -> Message:
    folder, node = Path(str(context.run_config["folder"])), int(str(context.node_config[PARTITION]))
    reply = call_next(message, context)
    request = unwrap(message.content.array_records["arrays"])
    assert request is not None
    stage, told = stage_of(request), folder / f"round-{node}"
    if stage == 1:
        told.write_text(str(Invitation.decode(request).terms.round))
    if (int(told.read_text()), stage) == (node, node):
        (folder / f"stalled-{node}").touch()
        time.sleep(3600)
    return reply


@client_app.train(mods=[stall])
def train(message: Message, context: Context) -> Message:
    root = Path(str(context.node_config["fedsparq-state"]))
    client = int(str(context.node_config[PARTITION]))
    return work(message, SPEC.model_dump_json(), root / f"run-{context.run_id}", client, keys=root / "keys")


@client_app.query()
def introduce(message: Message, context: Context) -> Message:
    about = ConfigRecord({PARTITION: int(str(context.node_config[PARTITION]))})
    return Message(RecordDict({"about": about}), reply_to=message)


class Patient(GridEngine):
    """Says when a stage is over, and opens no round before the node that died in the last one is back."""

    def __init__(self, grid: Grid, nodes: dict[int, int], folder: Path) -> None:
        super().__init__(grid, nodes)
        self._folder = folder

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        stage = stage_of(next(iter(asked.broadcasts.values())))
        if stage == 1 and asked.round - 1 in DEATHS:
            self._wait_for(self._nodes[asked.round - 1])
        deliveries = list(super().exchange(asked))
        (self._folder / f"over-{asked.round}-{stage}").touch()
        return iter(deliveries)

    def _wait_for(self, node: int) -> None:
        while True:
            replies = list(self._grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY)], timeout=120))
            if replies and not replies[0].has_error():
                return
            time.sleep(3)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    engine = Patient(grid, find_clients(grid, SPEC.clients), folder)
    run(SPEC, folder / "masked", engine=lambda *_: engine)
