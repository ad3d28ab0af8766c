"""Messages whose layers are all float16, with indices that are listed: a few compiled calls for all of their chunks.

It is what `chunks.py` does, with the same bytes, but without the interpreter between one chunk and the next; so several
threads get on side by side. Whatever is not as it should be is left to `chunks.py`, which has the words for it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.compiled import address_of
from fedsparq.layout import Layout
from fedsparq.payload import Dense, Float16Values, Payload, Reader, Seeded, Sparse, Writer
from fedsparq.payload.libzstd import packer, unpacker
from fedsparq.threads import with_help
from fedsparq.wire import float16_reading as reading
from fedsparq.wire import float16_writing as writing
from fedsparq.wire.chunks import BYTES_SENT, CHUNK, Body

Work = Callable[[NDArray[np.int64], NDArray[np.int64]], int]
"""Does what a list names, from the place on that a counter tells, which all threads share; negative if it cannot."""

_HALF, _INDEX = np.dtype(np.uint16), np.dtype(np.uint32)
_SENT_ALONE, _WRITTEN_ALONE = 1 << 15, 1 << 18
"""So many coordinates, of those that are sent or of all, take one thread as long as others take to come to an end."""


def read_float16(reader: Reader, layout: Layout, threads: int) -> Body | None:
    """What `read_layers` gives; None, with the reader where it was, for a message that is not known or not sound."""
    if unpacker() is None:
        return None
    bounds, message, end = layout.bounds, int(address_of(reader.rest())) - reader.at, reader.at + reader.left
    table = np.empty((int((-(-np.diff(bounds) // CHUNK)).sum()), reading.COLUMNS), np.int64)
    ends = np.empty(bounds.size - 1, np.int64)
    room = reader.left // BYTES_SENT
    for _ in range(2):
        indices = np.empty(min(room, layout.size), np.uint32)
        behind = reading.find_chunks(message, reader.at, end, bounds, table, ends, indices)
        sent = int(ends[-1]) if ends.size and behind >= 0 else 0
        if behind != reading.TOO_MANY and (sent <= indices.size or sent == layout.size):
            break
        room = sent or layout.size
    if behind < 0:
        return None
    if sent == layout.size:
        indices = np.empty(0, np.uint32)
    halves, counts = np.empty(sent, np.uint16), table[:, reading.COUNT]

    def read(order: NDArray[np.int64], counter: NDArray[np.int64]) -> int:
        scratch = np.empty(reading.scratch_size(table), np.uint8)
        return reading.read_chunks(message, end, table, order, counter, unpacker(), scratch, indices, halves)

    if any(_side_by_side(read, counts, _SENT_ALONE, threads)):
        return None
    reader.at = behind
    values = tuple(Float16Values(halves[first:last]) for first, last in pairwise([0, *ends.tolist()]))
    return Dense(layout.size) if sent == layout.size else Sparse(indices[:sent]), values


def write_float16(writer: Writer, payload: Payload, threads: int) -> bool:
    """What `write_layers` does; False, with nothing written, for a payload that is not known or not sound."""
    selection, bounds = payload.selection, payload.layout.bounds
    halves = [values.bits for values in payload.values if type(values) is Float16Values]
    indices = selection.indices if isinstance(selection, Sparse) else np.empty(0, np.uint32)
    if packer() is None or isinstance(selection, Seeded) or len(halves) < len(payload.values):
        return False
    if not all(_is_plain(bits, _HALF) for bits in halves) or not _is_plain(indices, _INDEX):
        return False
    table = np.empty((int(np.maximum(-(-np.diff(bounds) // CHUNK), 1).sum()), writing.COLUMNS), np.int64)
    addresses = np.array([address_of(bits) for bits in halves], np.int64)
    counts = np.array([bits.size for bits in halves], np.int64)
    if writing.list_chunks(bounds, indices, isinstance(selection, Dense), addresses, counts, table) < 0:
        return False
    stretches, begins, ends, sizes = np.empty((4, len(table) + 1), np.int64)
    number, room, most = writing.plan_stretches(table, stretches, begins, sizes)
    out = np.empty(room, np.uint8)

    def write(order: NDArray[np.int64], counter: NDArray[np.int64]) -> int:
        return writing.write_stretches(table, stretches, begins, ends, order, counter, packer(), most, indices, out)

    if any(_side_by_side(write, sizes[:number], _WRITTEN_ALONE, threads)):
        return False
    for begin, end in zip(begins[:number].tolist(), ends[:number].tolist(), strict=True):
        writer.lend(out[begin:end])
    return True


def _is_plain(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    return array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous


def _side_by_side(work: Work, sizes: NDArray[np.int64], alone: int, threads: int) -> list[int]:
    """Share pieces of work out: the largest first, each to whichever thread is free. The smallest are left to this one:
    while it is at them the others come to their end, so that it need not sleep until then."""
    order = np.argsort(-sizes)
    shared = np.searchsorted(np.cumsum(sizes[order]), sizes.sum() - alone)
    largest, smallest, counter = order[:shared], order[shared:], np.zeros(1, np.int64)
    return with_help(
        lambda: work(largest, counter) | work(smallest, np.zeros(1, np.int64)), lambda: work(largest, counter), threads
    )
