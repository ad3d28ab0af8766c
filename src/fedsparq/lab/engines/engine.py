"""What carries a round's messages between server and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedsparq.federate.rounds import Delivery
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task


@dataclass(frozen=True)
class Asked:
    """What the server asks of some clients in a round."""

    round: int
    broadcasts: Mapping[int, bytes]
    saved: int
    """The round of the last checkpoint."""
    dying: frozenset[int] = frozenset()
    """These clients crash before they save their state."""


class Engine(Protocol):
    """Carries broadcasts to the clients and their answers back."""

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        """Answers of a round in the order of the clients' numbers."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        return


MakeEngine = Callable[[RunSpec, Task, Path], Engine]
"""Makes an engine for a run, given its task and a folder for the clients' states."""
