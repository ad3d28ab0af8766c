"""Who is told what a run does: progress bars, trackers, a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsparq.errors import FedSparQError
from fedsparq.imports import describe_error
from fedsparq.lab.records import Round
from fedsparq.lab.specs import RunSpec

Watch = Callable[[Round], None]
"""Called after each round, and once for each round that a resumed run has behind it."""


class Callback:
    """Told what a run does. Override what you need. An error that is raised here ends the run, which can go on later.

    In a comparison, runs may be under way side by side: each has a callback of its own.
    """

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        """The run begins, or goes on with these rounds behind it; a finished run has them all."""

    def round(self, record: Round) -> None:
        """A round is over, and saved."""

    def warn(self, text: str) -> None:
        """Something is not as it should be, and the run goes on."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run is finished."""

    def fail(self, error: str) -> None:
        """The run failed."""

    def close(self) -> None:
        """Nothing more will come: the run is finished, failed or interrupted."""


class Watching(Callback):
    """A plain function as a callback."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        if behind and len(behind) < spec.rounds:
            for record in behind:
                self._watch(record)

    def round(self, record: Round) -> None:
        self._watch(record)


class Relay(Callback):
    """Passes on what it is told, whatever it is, by one method."""

    def relay(self, hook: str, *told: Any) -> None:
        """Pass on a call of `hook`."""
        raise NotImplementedError

    def start(self, spec: RunSpec, folder: Path, behind: Sequence[Round]) -> None:
        self.relay("start", spec, folder, behind)

    def round(self, record: Round) -> None:
        self.relay("round", record)

    def warn(self, text: str) -> None:
        self.relay("warn", text)

    def end(self, summary: Mapping[str, Any]) -> None:
        self.relay("end", summary)

    def fail(self, error: str) -> None:
        self.relay("fail", error)

    def close(self) -> None:
        self.relay("close")


class Callbacks(Relay):
    """Several callbacks as one."""

    error: Exception | None = None
    """What one of them raised."""

    def __init__(self, callbacks: Iterable[Callback | Watch]) -> None:
        self._all = [each if isinstance(each, Callback) else Watching(each) for each in callbacks]

    def relay(self, hook: str, *told: Any) -> None:
        try:
            for each in self._all:
                getattr(each, hook)(*told)
        except Exception as error:
            self.error = error
            raise


@contextmanager
def closing(callbacks: Iterable[Callback | Watch]) -> Iterator[Callbacks]:
    """Callbacks for the length of a run: they hear of its failure, and of its end in any case."""
    told = Callbacks(callbacks)
    try:
        yield told
    except Exception as error:
        if error is not told.error:
            told.fail(in_words(error))
        raise
    finally:
        told.close()


def in_words(error: BaseException) -> str:
    """An error in one line; one that nobody foresaw says where it was raised."""
    return str(error) if isinstance(error, FedSparQError) else describe_error(error)
