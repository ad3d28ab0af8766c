"""A strategy as one file: everything that a new run of it needs to go on from the last closed round."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedsparq.archive import ArchiveError, pack, remove_scratch, unpack, write_safely
from fedsparq.errors import OptionError, RunError
from fedsparq.federate.messages import Acknowledgement
from fedsparq.federate.model import Model
from fedsparq.flower.channel import Channel
from fedsparq.flower.link import Link
from fedsparq.flower.records import Template, pack_arrays, unpack_arrays
from fedsparq.flower.strategy_state import check_state_known, random_state, restore, set_random_state, state_of
from fedsparq.flower.stream import Stream
from fedsparq.flower.wrappers import adds_noise, is_flowers
from fedsparq.layout import Arrays
from fedsparq.protocols import State

VERSION = 1


class Checkpoint:
    """A folder with the newest state of a strategy. It is locked as long as the strategy runs."""

    def __init__(self, folder: str | Path, strategy: Strategy, link: Link) -> None:
        if not link.federation:
            raise OptionError(
                'a checkpoint needs the name of the federation by which nodes find their states: federation="…"'
            )
        check_state_known(strategy)
        self._noise = adds_noise(strategy)
        self.each_model = self._noise or not is_flowers(strategy)
        """Whether a model must be safe before anybody sees it: the same round again could have other replies, and two
        models with noise tell more than one."""
        self._path, self._strategy, self._link = Path(folder) / "server.safetensors", strategy, link
        self._at_work = False
        self.extra: Arrays = {}
        """More arrays that are saved with it and were read from it."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away from the folder; the lock goes with the process, however it ends."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with (self._path.parent / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process works on the checkpoint {self._path.parent}; end it first") from None
            remove_scratch(self._path.parent)
            self._at_work = True
            try:
                yield
            finally:
                self._at_work = False

    def save(self, done: int, arrays: ArrayRecord) -> None:
        """Write that so many rounds are done, and everything as it is now; when this returns, it is safe."""
        if not self._at_work:
            raise OptionError(
                "a checkpoint is read by `start`, which a strategy around this one does not call; wrap the other way "
                "round: Compressed(Wrapper(FedAvg(...)), checkpoint=...)"
            )
        facts, moments = state_of(self._strategy)
        chance, generators = random_state(self._noise)
        link, tensors = _link_state(self._link)
        parts = {"strategy": moments, "random": generators, "link": tensors, "extra": self.extra}
        about = {
            "version": VERSION,
            "kind": _kind(self._strategy),
            "method": (self._link.method.identity.encode().decode() if self._link.method.identity else ""),
            "done": done,
            "strategy": facts,
            "random": chance,
            "link": link,
        }
        flat = {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}
        flat["arrays"] = np.frombuffer(pack_arrays(arrays), np.uint8)
        write_safely(self._path, pack(about, flat), 0o600)

    def load(self) -> tuple[int, ArrayRecord] | None:
        """Put everything back; how many rounds are done, and the model. None where nothing was saved yet."""
        if not self._path.exists():
            return None
        try:
            about, flat = unpack(self._path.read_bytes())
        except (OSError, ArchiveError) as error:
            raise RunError(f"the checkpoint {self._path} cannot be read: {error}; remove it to start anew") from error
        if about["version"] != VERSION or about["kind"] != _kind(self._strategy):
            raise RunError(
                f"the checkpoint {self._path} is of {about['kind']}, this strategy is {_kind(self._strategy)}; "
                "go back to it, or give another folder"
            )
        own = self._link.method.identity.encode().decode() if self._link.method.identity else ""
        if about["method"] != own:
            raise RunError(f"the checkpoint {self._path} is of the method {about['method']}, this one is {own}")

        def part(name: str) -> Arrays:
            return {key.removeprefix(f"{name}."): array for key, array in flat.items() if key.startswith(f"{name}.")}

        restore(self._strategy, about["strategy"], part("strategy"))
        set_random_state(about["random"], part("random"))
        _restore_link(self._link, about["link"], part("link"))
        self.extra = part("extra")
        return about["done"], ArrayRecord(unpack_arrays(flat["arrays"].tobytes()))


def _kind(strategy: Strategy) -> str:
    inner = getattr(strategy, "strategy", None)
    name = f"{type(strategy).__module__}.{type(strategy).__qualname__}"
    return f"{name}({_kind(inner)})" if isinstance(inner, Strategy) else name


def _link_state(link: Link) -> tuple[dict[str, Any], Arrays]:
    channels = [
        [node, layout, _listed(each.last), [_listed(one) for one in each.unconfirmed], each.numbering]
        for (node, layout), each in link.channels.items()
    ]
    streams, arrays = [], dict[str, Any]()
    for number, stream in enumerate(link.streams.values()):
        down = stream.downlink
        streams.append(
            {
                "template": stream.template.to_json(),
                "version": stream.version,
                "last": stream.last,
                "ties": stream.ties,
                "exact": [[version, digests] for version, digests in stream.exact.items()],
                "held": list(down.held.items()),
                "begun": down.state is not None,
            }
        )
        if down.public is not None:
            arrays[f"{number}.public"] = down.public.vector
        for version, blob in down.changes.items():
            arrays[f"{number}.change.{version}"] = np.frombuffer(blob, np.uint8)
        if down.state is not None:
            own = down.state.arrays()
            arrays |= {f"{number}.state.{name}": own[name] for name in own if name != "feedback.residual"}
    facts = {"number": link.number, "numbering": link.numbering, "channels": channels, "streams": streams}
    return facts | {"compressing": sorted(link.compressing), "slowest": link.slowest}, arrays


def _restore_link(link: Link, facts: dict[str, Any], arrays: Arrays) -> None:
    link.number, link.numbering, link.slowest = facts["number"], facts.get("numbering", 0), facts["slowest"]
    link.compressing = {(node, train) for node, train in facts["compressing"]}
    link.channels = {
        (node, layout): Channel(
            Acknowledgement(*last), [Acknowledgement(*each) for each in unconfirmed], numbering=(*numbering, 0)[0]
        )
        for node, layout, last, unconfirmed, *numbering in facts["channels"]
    }
    link.restored = {node for node, _ in link.channels}
    link.streams = {}
    for number, each in enumerate(facts["streams"]):
        template = Template.from_json(each["template"])
        stream = link.streams[template.digest] = Stream(template, link.downlink)
        stream.version, stream.last = each["version"], each["last"]
        stream.ties = tuple((one, other) for one, other in each["ties"])
        stream.exact = dict(each["exact"])
        own, down = f"{number}.", stream.downlink
        down.held, down.round = dict(map(tuple, each["held"])), stream.version
        if link.downlink is None or f"{own}public" not in arrays:
            continue
        down.public = Model(arrays[f"{own}public"])
        changes = {name: array for name, array in arrays.items() if name.startswith(f"{own}change.")}
        down.changes = {int(name.rsplit(".", 1)[1]): array.tobytes() for name, array in changes.items()}
        if each["begun"]:
            fresh, prefix = link.downlink.init(template.layout), f"{own}state."
            saved = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            down.state = State.of_arrays(template.layout, fresh.arrays() | saved, len(fresh.rules))


def _listed(each: Acknowledgement) -> list[Any]:
    return [each.round, each.digest, each.share]
