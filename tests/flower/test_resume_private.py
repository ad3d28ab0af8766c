"""Noise that protects nodes, and a ServerApp that is killed: no round's model is ever seen with two draws, or with one
draw on two aggregates."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from resumable import Fragile, Killed
from toy import model, step

from fedsparq.archive import unpack
from fedsparq.errors import OptionError
from fedsparq.flower import Compressed, FedSparQ, compress
from inprocess_grid import InProcessGrid

ROUNDS = 3


def app(seen: dict[int, set[bytes]], folder) -> ClientApp:
    """Says which models it saw after how many rounds."""
    made = ClientApp()

    def see(message: Message, done: int) -> None:
        seen.setdefault(done, set()).add(message.content["arrays"]["fc.weight"].numpy().tobytes())

    @made.train(mods=[compress(state=folder)])
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        see(message, int(message.content["config"]["server-round"]) - 1)
        after = step(message.content["arrays"], number)
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    @made.evaluate(mods=[compress(state=folder)])
    def evaluate(message: Message, context: Context) -> Message:
        see(message, int(message.content["config"]["server-round"]))
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1, "loss": 0.0})}), reply_to=message)

    return made


def without_first(reply: Message) -> Message | None:
    """What node 100 learned is lost."""
    mine = reply.metadata.src_node_id == 100 and reply.metadata.message_type.startswith("train")
    return None if mine else reply


def private(folder) -> Compressed:
    inner = DifferentialPrivacyServerSideFixedClipping(FedAvg(min_train_nodes=2), 0.5, 1.0, 3)
    return Compressed(inner, "fedavg", checkpoint=folder / "server", federation="f")


def die() -> None:
    raise Killed


def test_killed_at_any_moment_each_round_has_one_model(tmp_path):
    start = model(counters=False)
    moments = Fragile([app({}, tmp_path / "whole")] * 3, 0, die)
    private(tmp_path / "whole").start(moments, start, num_rounds=ROUNDS, timeout=0.2)
    for moment in range(1, moments.moment, 2):
        folder, seen = tmp_path / f"at-{moment}", dict[int, set[bytes]]()
        nodes = [app(seen, folder)] * 3
        with pytest.raises(Killed):
            private(folder).start(Fragile(nodes, moment, die), start, num_rounds=ROUNDS, timeout=0.2)
        again = InProcessGrid(nodes, fate=without_first)
        private(folder).start(again, start, num_rounds=ROUNDS, timeout=0.2)
        assert set(seen) >= set(range(ROUNDS))
        assert all(len(models) == 1 for models in seen.values()), (moment, {n: len(m) for n, m in seen.items()})


def test_the_checkpoint_does_not_say_which_noise_comes_next(tmp_path):
    private(tmp_path).start(InProcessGrid([app({}, tmp_path)] * 3), model(counters=False), num_rounds=1)
    about, arrays = unpack((tmp_path / "server" / "server.safetensors").read_bytes())
    assert "numpy" not in about["random"]
    assert "random.numpy" not in arrays
    plain = Compressed(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path / "plain", federation="g")
    plain.start(InProcessGrid([app({}, tmp_path)] * 3), model(counters=False), num_rounds=1)
    assert "numpy" in unpack((tmp_path / "plain" / "server.safetensors").read_bytes())[0]["random"]


def test_a_checkpoint_with_a_loop_of_its_own_is_refused(tmp_path):
    """Its rounds would begin at 1 again."""

    class OwnStart(FedAvg):
        def start(self, *given, **more):
            return super().start(*given, **more)

    with pytest.raises(OptionError, match="OwnStart"):
        FedSparQ(OwnStart(), checkpoint=tmp_path / "server", federation="f")
