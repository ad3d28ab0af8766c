"""Compress an update of any size into a message, and put a message that was not sent back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from fedsparq import threads as threading
from fedsparq.archive import SCRATCH, create, make_folder, pack, sync_folder
from fedsparq.errors import OptionError, RunError, UpdateError
from fedsparq.large.container import About, MessageWriter, difference
from fedsparq.large.message import opened
from fedsparq.large.pieces import CUT, GROUP, Piece, Shapes, Tensors
from fedsparq.large.piecewise import PieceResult, Piecewise, return_payload
from fedsparq.large.residual import NewResidual, Record, Residual, locked
from fedsparq.large.residual import scratch_of as residual_scratch
from fedsparq.large.tensors import Given, tensors_of
from fedsparq.layout import Arrays, Vector
from fedsparq.method import Identity, Method
from fedsparq.methods import method as method_of
from fedsparq.wire import encode

_MAX_STATE = 1 << 25


@dataclass(frozen=True)
class Sent:
    """A message that was written."""

    path: Path
    round: int
    bytes: int
    coordinates: int
    kept: int


def compress(
    update: Given | Tensors,
    residual: Path | str,
    message: Path | str,
    *,
    method: str = "fedsparq",
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    group: int = GROUP,
    cut: int = CUT,
) -> Sent:
    """Compress an update into a message file, some layers at a time; what was not sent stays in the residual.

    Both files appear at once or not at all: a crash at any moment leaves the old residual and no message, or both new
    ones, the message perhaps under its name only when the residual is next used. A message that is still where it is
    to be written is never overwritten: send it and remove it, or `restore` it.

    Args:
        update: a safetensors file, arrays or memory maps by name, or a function that begins an iteration over
            (name, array). Every tensor of floats is compressed.
        residual: a safetensors file; it is created if there is none.
        message: where to write the message.
        method: by name; see `fedsparq methods`.
        options: of the method.
        threads: how many pieces are compressed in parallel; by default what the process may use.
        group: the most coordinates of neighbouring layers that are compressed together.
        cut: a layer with more coordinates than this is compressed as several layers of this size.
    """
    residual, message, source = Path(residual), Path(message), tensors_of(update)
    chosen = method_of(method, **(options or {}))
    with locked(residual):
        old = _settled(residual)
        if message.exists():
            raise RunError(
                f"{message} is there already; send it and remove it, or put it back: "
                f"fedsparq restore {message} --residual {residual}"
            )
        record = _next_record(old, source.shapes, chosen, message, group, cut)
        return _Round(source, old, record, chosen, threading.resolve_threads(threads)).make(message)


def restore(message: Path | str, residual: Path | str, *, method: str | None = None) -> int:
    """Put a message that was not sent, or did not count, back into the residual it came from, and remove its file.

    Returns the round it was made in. A message is put back once, however often this is called. The method is the one
    that the residual's own record names, never the message; `method` must repeat a name of the form
    ``package.module:function``, as importing it runs code.
    """
    message, residual = Path(message), Path(residual)
    with locked(residual):
        old = _settled(residual)
        record = old.record
        with opened(message) as reader:
            about = reader.about
            same = not old.shapes or list(about.shapes.items()) == list(old.shapes.items())
            if record is None or about.origin != record.origin or about.round > record.round or not same:
                raise RunError(f"{message} was not made from the residual {residual}: it cannot be put back into it")
            own = _method_of(record, about.method, method, message)
            if not own.traits.conserves_mass:
                raise RunError(f"{own.label!r} is unbiased: a lost message is not put back")
            if about.round not in record.restored:
                after = replace(record, restored=(*record.restored, about.round))
                new = NewResidual(residual, old.shapes)
                try:
                    new.begin(after, len(pack({}, old.states)))
                    for piece, payload in reader.payloads(threads=1):
                        before = old.piece(piece)
                        if before is not None:
                            old.passed(before)
                            new.add(return_payload(own, piece, before, payload))
                    old.check()
                    if about.round == record.round and reader.checksum != record.checksum:
                        raise RunError(f"{message} is not the message that was made in round {about.round}")
                    new.commit(after, old.states)
                except BaseException:
                    new.discard()
                    raise
        message.unlink()
        return about.round


class _Round:
    """One message in the making."""

    def __init__(self, source: Tensors, old: Residual, record: Record, method: Method, threads: int) -> None:
        self._source, self._old, self._record, self._threads = source, old, record, threads
        identity = method.identity or Identity("")
        self._about = About(identity, record.origin, record.round, source.shapes, record.group, record.cut)
        self._work = Piecewise(method, [*self._about.pieces()], old.states, record.origin, record.round)

    def make(self, path: Path) -> Sent:
        if self._work.needs_first_pass:
            given = threading.imap(lambda piece: self._work.measure(*piece), self._given(), self._threads)
            self._work.allocate(list(given))
        scratch = scratch_of(path, self._record)
        keeps = self._source.shapes if self._work.keeps_residual else {}
        try:
            make_folder(path.parent)
            new = NewResidual(self._old.path, keeps)
            try:
                with create(scratch) as file:
                    sent = self._write(MessageWriter(file, self._about), new, path)
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(path.parent)
                new.commit(replace(self._record, checksum=sent[1]), self._work.states(self._states))
            except BaseException:
                new.discard()
                scratch.unlink(missing_ok=True)
                raise
            os.replace(scratch, path)
            sync_folder(path.parent)
        except OSError as error:
            raise RunError(f"could not write {error.filename or path}: {error.strerror or error}") from error
        return sent[0]

    def _write(self, writer: MessageWriter, new: NewResidual, path: Path) -> tuple[Sent, str]:
        state_bytes = len(pack({}, self._work.initial_states()))
        if state_bytes > _MAX_STATE:
            raise OptionError(f"the method keeps {state_bytes:,} bytes beside its residual; {_MAX_STATE:,} fit")
        new.begin(self._record, state_bytes)
        self._states: list[Arrays] = []
        kept = 0
        for before, done, blob in threading.imap(self._piece, self._given(), self._threads):
            if before is not None:
                self._old.passed(before)
            if done.residual is not None:
                new.add(done.residual)
            writer.add(blob)
            kept += done.payload.kept
            self._states.append(done.state)
        self._old.check()
        checksum = writer.close()
        size = sum(piece.size for piece in self._work.pieces)
        return Sent(path, self._record.round, writer.bytes, size, kept), checksum

    def _piece(self, given: tuple[Piece, Vector, Vector | None]) -> tuple[Vector | None, PieceResult, bytes]:
        piece, update, before = given
        done = self._work.compress(piece, update, before)
        return before, done, encode(done.payload)

    def _given(self) -> Iterator[tuple[Piece, Vector, Vector | None]]:
        for piece in self._work.pieces:
            yield piece, piece.gather(self._source), self._old.piece(piece)


def scratch_of(message: Path, record: Record) -> Path:
    """Return where a message is written before the residual's record states that it was made."""
    return message.with_name(f".{message.name}.{record.origin}-{record.round}{SCRATCH}")


def _settled(path: Path) -> Residual:
    """Finish or remove what a crash left behind, and return the residual."""
    residual_scratch(path).unlink(missing_ok=True)
    old = Residual(path)
    if old.record is not None and old.record.message:
        message = Path(old.record.message)
        scratch = scratch_of(message, old.record)
        if scratch.exists() and not message.exists():
            os.replace(scratch, message)
            sync_folder(message.parent)
    return old


def _next_record(old: Residual, shapes: Shapes, method: Method, message: Path, group: int, cut: int) -> Record:
    if not 1 <= group <= cut <= CUT:
        raise OptionError(f"group={group} and cut={cut}: they must be 1 <= group <= cut <= {CUT}")
    text = "\n".join(f"{name} {shape}" for name, shape in shapes.items())
    tensors = xxhash.xxh3_64_hexdigest(text.encode())
    identity = method.identity or Identity("")
    where, before = str(message.resolve()), old.record
    for stale in message.parent.glob(f".{message.name}.*{SCRATCH}"):
        stale.unlink(missing_ok=True)
    if before is None:
        return Record(identity.encode().decode(), tensors, group, cut, round=1, message=where)
    if before.tensors != tensors:
        more = f": {difference(old.shapes, shapes)}" if old.shapes else ""
        raise UpdateError(f"the residual {old.path} is for another model than this update{more}")
    former = Identity.decode(before.method.encode())
    if former != identity:
        raise OptionError(
            f"the residual {old.path} was made by another method ({former.difference(identity)}); begin another one"
        )
    if (before.group, before.cut) != (group, cut):
        raise OptionError(f"the residual {old.path} was made with group={before.group} and cut={before.cut}")
    return replace(before, round=before.round + 1, message=where)


def _method_of(record: Record, stated: Identity, given: str | None, message: Path) -> Method:
    """Make the method of a residual's record, if the message states the same one and the caller allows its name."""
    own = Identity.decode(record.method.encode())
    if stated != own:
        raise RunError(f"{message} states another method than its residual ({own.difference(stated)})")
    if given not in (None, own.name):
        raise OptionError(f"method={given!r}: the residual was made by {own.name!r}")
    if ":" in own.name and given is None:
        raise OptionError(f"the residual names code, {own.name!r}: to import it, pass method={own.name!r} (--method)")
    return method_of(own.name, **own.options)
