"""A strategy as one file: everything that a new run of it needs to go on from the last closed round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedsparq.archive import ArchiveError, locked, pack, remove_scratch, unpack, write_safely
from fedsparq.errors import OptionError, RunError
from fedsparq.federate.exact import pack_arrays, unpack_arrays
from fedsparq.federate.ledger import Ledger
from fedsparq.federate.state import counted_number
from fedsparq.flower.advice import adds_noise, has_own_start, layers
from fedsparq.flower.records import to_record
from fedsparq.flower.strategy_state import check_state_known, random_state, restore, set_random_state, state_of
from fedsparq.layout import Arrays, part_of
from fedsparq.method import Method

VERSION = 2


class Checkpoint:
    """A folder with the newest state of a strategy. It is locked as long as the strategy runs."""

    def __init__(self, folder: str | Path, strategy: Strategy, ledger: Ledger) -> None:
        if not ledger.federation:
            raise OptionError(
                'a checkpoint needs the name of the federation by which nodes find their states: federation="…"'
            )
        if has_own_start(strategy):
            raise OptionError(
                f"{type(strategy).__name__} has a `start` of its own, which would count its rounds from 1 again: "
                "a checkpoint cannot resume it"
            )
        check_state_known(strategy)
        self._noise = adds_noise(strategy)
        flowers = all(type(each).__module__.startswith("flwr.") for each in layers(strategy))
        self.each_model = self._noise or not flowers
        """Whether a model must be safe before anybody sees it: the same round again could have other replies, and two
        models with noise tell more than one."""
        self._path, self._strategy, self._ledger = Path(folder) / "server.safetensors", strategy, ledger
        self.extra: Arrays = {}
        """More arrays that were read from it."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away from the folder; the lock goes with the process, however it ends."""
        with locked(self._path.parent / "lock"):
            remove_scratch(self._path.parent)
            yield

    def save(self, done: int, arrays: ArrayRecord, extra: Arrays) -> None:
        """Write how many rounds are done, and everything as it is now; when this returns, it is safe."""
        facts, moments = state_of(self._strategy)
        chance, generators = random_state(self._noise)
        ledger, tensors = self._ledger.save()
        parts = {"strategy": moments, "random": generators, "ledger": tensors, "extra": extra}
        about = {
            "version": VERSION,
            "kind": _kind(self._strategy),
            "method": _name(self._ledger.method),
            "done": done,
            "strategy": facts,
            "random": chance,
            "ledger": ledger,
        }
        flat = {f"{part}.{name}": array for part, own in parts.items() for name, array in own.items()}
        flat["arrays"] = np.frombuffer(pack_arrays(arrays), np.uint8)
        write_safely(self._path, pack(about, flat), private=True)

    def load(self) -> tuple[int, ArrayRecord] | None:
        """Put everything back; how many rounds are done, and the model. None where nothing was saved yet."""
        if not self._path.exists():
            return None
        try:
            about, flat = unpack(self._path.read_bytes())
        except (OSError, ArchiveError) as error:
            raise RunError(f"the checkpoint {self._path} cannot be read: {error}; remove it to start anew") from error
        if about.get("version") != VERSION:
            raise RunError(
                f"the checkpoint {self._path} has format {about.get('version')}, and this version of FedSparQ reads "
                f"format {VERSION}: go on with the version that wrote it, or give another folder"
            )
        for what, own in (("kind", _kind(self._strategy)), ("method", _name(self._ledger.method))):
            if about.get(what) != own:
                saved, name = about.get(what), "the method " if what == "method" else ""
                raise RunError(
                    f"the checkpoint {self._path} is of {name}{saved}, this strategy is {own}; go back to it, or give "
                    "another folder"
                )
        try:
            model = to_record(unpack_arrays(flat["arrays"].tobytes()))
            restore(self._strategy, about["strategy"], part_of("strategy", flat), model)
            set_random_state(about["random"], part_of("random", flat))
            self._ledger.load(about["ledger"], part_of("ledger", flat))
            self.extra = part_of("extra", flat)
            return counted_number(about["done"]), model
        except OptionError:
            raise
        except Exception as error:  # a strategy of somebody's may raise anything at what it did not write
            raise RunError(f"the checkpoint {self._path} is not what a strategy writes: {error}") from None


def _name(method: Method) -> str:
    return method.identity.encode().decode() if method.identity else ""


def _kind(strategy: Strategy) -> str:
    names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in layers(strategy)]
    return "(".join(names) + ")" * (len(names) - 1)
