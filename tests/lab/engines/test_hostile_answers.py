"""One node of three answers `fedsparq deploy` with what no client sends: the run goes on with the others, and its
events say who it was."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsparq.lab.engines.flower import GridEngine, client_app
from fedsparq.lab.experiments.flower_app import find_clients
from fedsparq.lab.experiments.run import run
from fedsparq.lab.specs import RunSpec
from inprocess_grid import Fate, InProcessGrid

SPEC = RunSpec(clients=3, rounds=2, train_limit=150, test_limit=50)
HOSTILE = 2
Change = Callable[[RecordDict], dict[str, object] | RecordDict]


def about(**more: object) -> Change:
    return lambda content: {"about": ConfigRecord({**content["about"], **more})}


def without(name: str) -> Change:
    return lambda content: RecordDict({key: record for key, record in content.items() if key != name})


def unsaid(name: str) -> Change:
    return lambda content: {"about": ConfigRecord({k: v for k, v in content["about"].items() if k != name})}


def array(*said: object) -> Change:
    return lambda content: {"arrays": ArrayRecord({"fedsparq": Array(*said)})}


SHAPES: dict[str, Change] = {
    "nothing": lambda content: RecordDict({}),
    "nothing about it": without("about"),
    "no arrays": without("arrays"),
    "about is a metric": lambda content: {"about": MetricRecord({"silent": 1})},
    "silent is not said": unsaid("silent"),
    "no remarks": unsaid("remarks"),
    "remarks are a text": about(remarks="text"),
    "remarks are bytes": about(remarks=[b"\xff"]),
    "seconds are one": about(seconds=[1.0]),
    "seconds are a text": about(seconds=["a", "b"]),
    "seconds below zero": about(seconds=[-1e9, 0.0]),
    "endless seconds": about(seconds=[float("inf"), float("nan")]),
    "metrics without values": about(metrics=["a", "b"], measured=[1.0]),
    "measured texts": about(metrics=["a"], measured=["x"]),
    "an array of another kind": array("uint8", (3,), "x/y", b"abc"),
    "an update of no bytes": array("uint8", (0,), "fedsparq/1", b""),
    "garbage": array("uint8", (7,), "fedsparq/1", b"garbage"),
}
IGNORED: dict[str, Change] = {
    "bytes sent are a text": about(sent="many"),
    "bytes sent are a very long number": about(sent="9" * 5000),
    "bytes sent below zero": about(sent=-(10**15)),
    "far too many bytes sent": about(sent=2**62),
}
"""The answer is sound, and how many bytes it has is seen."""


def changing(change: Change) -> Fate:
    def fate(reply: Message) -> Message:
        if reply.metadata.src_node_id == 100 + HOSTILE:
            changed = change(reply.content)
            reply.content = changed if isinstance(changed, RecordDict) else RecordDict({**reply.content, **changed})
        return reply

    return fate


def play(fate: Fate, folder: Path) -> list[dict]:
    def engine(spec, task, states):
        apps = [client_app(spec, states, str(Path.cwd()))] * spec.clients
        grid = InProcessGrid(apps, fate=fate)
        return GridEngine(grid, dict(enumerate(grid.get_node_ids())), timeout=5)

    run(SPEC, folder / "run", engine=engine)
    return [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("shape", SHAPES)
def test_answers_that_no_client_sends(shape, tmp_path):
    rounds = play(changing(SHAPES[shape]), tmp_path)
    assert [each["clients"] for each in rounds] == [2, 2]
    for each in rounds:
        assert any(event["client"] == HOSTILE for event in each["events"])
        assert 0 <= each["upload_bytes"] < 10**6
        assert all(0 <= spent < 10**6 for spent in each.get("seconds", {}).values())


@pytest.mark.parametrize("shape", IGNORED)
def test_how_many_bytes_came_is_counted_not_believed(shape, tmp_path):
    rounds = play(changing(IGNORED[shape]), tmp_path)
    assert [each["clients"] for each in rounds] == [3, 3]
    assert all(0 < each["upload_bytes"] < 10**6 for each in rounds)


class Introducing:
    """Nodes that say which part of the data they have; one says something else first."""

    def __init__(self, said: list[RecordDict]) -> None:
        self.said = said

    def app(self) -> ClientApp:
        app = ClientApp()

        @app.query()
        def introduce(message: Message, context: Context) -> Message:
            assert message.metadata.message_type == MessageType.QUERY
            return Message(self.said[context.node_id - 100], reply_to=message)

        return app


@pytest.mark.parametrize(
    "said",
    [
        RecordDict({}),
        RecordDict({"about": ConfigRecord({})}),
        RecordDict({"about": MetricRecord({"partition-id": 1})}),
        RecordDict({"about": ConfigRecord({"partition-id": "0"})}),
        RecordDict({"about": ConfigRecord({"partition-id": -1})}),
        RecordDict({"about": ConfigRecord({"partition-id": True})}),
    ],
)
def test_a_node_that_does_not_say_its_part_is_left_out(said):
    sound = [RecordDict({"about": ConfigRecord({"partition-id": number})}) for number in (1, 0)]
    grid = InProcessGrid([Introducing([said, *sound]).app()] * 3)
    assert find_clients(grid, 2) == {1: 101, 0: 102}


@pytest.mark.parametrize("measured", [(float("inf"), float("-inf")), (1e308, 1e308)])
def test_metrics_of_two_nodes_that_have_no_sum(measured, tmp_path):
    def fate(reply: Message) -> Message:
        number = reply.metadata.src_node_id - 100
        if number:
            more = about(metrics=["a"], measured=[measured[number - 1]])(reply.content)
            reply.content = RecordDict({**reply.content, **more})
        return reply

    rounds = play(fate, tmp_path)
    assert [each["clients"] for each in rounds] == [3, 3]
    assert all(each["metrics"]["a"] is None for each in rounds)
