"""libzstd's own functions for compiled loops, which call them by their addresses without the interpreter's lock.

They are those that Python's zstd module is made of: where it shows them, frames are the same bytes either way. Where it
does not (another platform, another build), there is no packer and no unpacker, and callers take the module itself.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numpy.typing import NDArray

from fedsparq.compiled import jit, operation
from fedsparq.payload.streams import COMPRESSION, MOST_WINDOW, ZSTD_VERSION

Handle = NDArray[np.int64]
"""What compiled loops need to call libzstd: addresses of functions, of a context, and room for arguments."""

_EXTENSION = "_zstd" if sys.version_info >= (3, 14) else "backports.zstd._zstd"
_NAMES = (
    "ZSTD_createCCtx",
    "ZSTD_freeCCtx",
    "ZSTD_CCtx_setParameter",
    "ZSTD_compress2",
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_DCtx_reset",
    "ZSTD_decompressStream",
)
_SESSION_ONLY = 1
_BLOCK = 1 << 17
_MAGIC = (0x28, 0xB5, 0x2F, 0xFD)
_here = threading.local()


class _Context:
    """A context of libzstd, freed with this object: a thread's with the thread."""

    def __init__(self, functions: dict[str, Any], kind: str) -> None:
        self._free = functions[f"ZSTD_free{kind}"]
        self.address = functions[f"ZSTD_create{kind}"]()
        if not self.address:
            raise MemoryError("libzstd has no memory for a context")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._free(self.address)


@cache
def _functions() -> dict[str, Any] | None:
    """The functions by name; None unless all are there, of the version that Python's module has."""
    if struct.calcsize("P") != struct.calcsize("q"):
        return None
    try:
        library = ctypes.CDLL(import_module(_EXTENSION).__file__)
        found = {name: getattr(library, name) for name in _NAMES}
        if library.ZSTD_versionNumber() != _number(*ZSTD_VERSION):
            return None
    except (ImportError, AttributeError, OSError):
        return None
    for name, function in found.items():
        create = name.startswith("ZSTD_create")
        function.restype = ctypes.c_void_p if create else ctypes.c_size_t
        function.argtypes = [] if create else [ctypes.c_void_p]
    found["ZSTD_CCtx_setParameter"].argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return found


def _number(major: int, minor: int, release: int) -> int:
    return 10_000 * major + 100 * minor + release


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def packer() -> Handle | None:
    """This thread's, for `pack`; None where libzstd's functions cannot be had."""
    functions = _functions()
    if functions is None:
        return None
    if not hasattr(_here, "packer"):
        context = _Context(functions, "CCtx")
        for parameter, value in COMPRESSION.items():
            functions["ZSTD_CCtx_setParameter"](context.address, parameter, value)
        _here.packing_context = context
        _here.packer = np.array([_address(functions["ZSTD_compress2"]), context.address], np.int64)
    handle: Handle = _here.packer
    return handle


def unpacker() -> Handle | None:
    """This thread's, for `unpack`; None where libzstd's functions cannot be had."""
    functions = _functions()
    if functions is None:
        return None
    if not hasattr(_here, "unpacker"):
        context = _Context(functions, "DCtx")
        addresses = [_address(functions[name]) for name in ("ZSTD_DCtx_reset", "ZSTD_decompressStream")]
        _here.unpacking_context = context
        _here.unpacker = np.array([*addresses, context.address, *[0] * 6], np.int64)
    handle: Handle = _here.unpacker
    return handle


@operation
def _call(typing: Any, function: Any, arguments: Any) -> Any:
    """What the function at an address returns for a tuple of 64-bit numbers or addresses: negative is an error."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(64)
        values = [builder.extract_value(given[1], i) for i in range(len(signature.args[1]))]
        kind = ir.FunctionType(word, [word] * len(values))
        return builder.call(builder.inttoptr(given[0], kind.as_pointer()), values)

    return types.int64(types.int64, arguments), generate


@operation
def _pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@jit
def bytes_at(address: int, size: int) -> Any:
    """The bytes at an address as an array, which does not keep them alive."""
    return carray(_pointer(address), (size,), np.uint8)


@jit
def pack(packer: Any, data: Any, out: Any) -> int:
    """Write a zstd frame of these bytes, as `Writer.compress` makes it; returns its length, negative if `out` is too
    short: `most_packed` is enough."""
    function, context = packer[0], packer[1]
    length: int = _call(function, (context, out.ctypes.data, out.size, data.ctypes.data, data.size))
    return length


@jit
def most_packed(size: int) -> int:
    """Room for a frame of so many bytes: a little more than libzstd's own bound."""
    return size + size // 128 + 128


@jit
def unpack(unpacker: Any, frame: Any, out: Any) -> int:
    """Undo `pack`: 0, or -1 unless the frame is one that fills `out` exactly, as `Reader.stream` has it.

    A frame that is one block at most is unpacked at once. With more of them libzstd only looks whether blocks are too
    long if it cannot write all of `out` at once, so its last byte is held back.
    """
    window = _window(frame)
    if window < 0 or window > MOST_WINDOW:
        return -1
    reset, decompress, context = unpacker[0], unpacker[1], unpacker[2]
    if _call(reset, (context, _SESSION_ONLY)) < 0:
        return -1
    filled, given = unpacker[3:6], unpacker[6:9]
    filled[0], filled[2] = out.ctypes.data, 0
    given[0], given[1], given[2] = frame.ctypes.data, frame.size, 0
    for held_back in range(0 if out.size <= min(window, _BLOCK) else 1, -2, -1):
        filled[1] = out.size - max(held_back, 0)
        expected = _call(decompress, (context, filled.ctypes.data, given.ctypes.data))
        if expected < 0:
            return -1
        if expected == 0:
            return 0 if filled[2] == out.size and given[2] == frame.size else -1
    return -1


@jit
def _window(frame: Any) -> Any:
    """How much memory a zstd frame asks for, by its header (RFC 8878, 3.1.1.1); -1 if it has none, or no sound one."""
    if frame.size < 9:
        return -1
    for i in range(4):
        if frame[i] != _MAGIC[i]:
            return -1
    about, byte = np.int64(frame[4]), np.int64(frame[5])
    if not about & 0x20:
        base = np.int64(1) << (10 + (byte >> 3))
        return base + (base >> 3) * (byte & 7)
    flag = about >> 6
    begin, length = 5 + ((1 << (about & 3)) >> 1), 1 << flag
    if begin + length > frame.size:
        return -1
    size = np.int64(0)
    for i in range(length):
        size |= np.int64(frame[begin + i]) << (8 * i)
    return size + 256 if flag == 1 else size
