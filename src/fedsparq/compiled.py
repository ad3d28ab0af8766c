"""How loops are compiled, and four operations that numba does not offer.

They are plain LLVM, for which each target's compiler picks its own instructions. `at_least_mask` counts on a
little-endian target, as all are that numba has.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys
from numba.extending import intrinsic

_UNCACHED = "FEDSPARQ_UNCACHED"
"""The variable by which a process tells those that it starts that this was said."""

F = TypeVar("F", bound=Callable[..., Any])

operation: Callable[[Callable[..., Any]], Any] = intrinsic
"""Makes an operation for compiled loops of a function that picks its types and writes its LLVM."""


def jit(function: F) -> F:
    """Compile a loop on first use; the machine code is cached on disk."""
    return _compiled(function)


def jit_reordering_sums(function: F) -> F:
    """`jit`, free to add in another order: sums may differ in their last bits between kinds of CPU."""
    return _compiled(function, fastmath={"reassoc"})


def _compiled(function: F, **options: Any) -> F:
    compiled = numba.njit(nogil=True, **options)(function)
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # numba found no folder that it may write to
        _say_uncached()
    return cast(F, compiled)


class _Cache(FunctionCache):
    """numba's cache, which makes the whole compiler ready before it looks for machine code; this one only if there is
    none. It saves each new process a quarter of a second.

    numba trusts machine code as long as a loop's own file does not change; this one also looks at what the loop takes
    from other files.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._function, self._own_stamp = function, self._cache_file._source_stamp

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        elsewhere = sorted(_taken_from_elsewhere(self._function))  # all of it is there only now, not while importing
        self._cache_file._source_stamp = self._own_stamp, repr(elsewhere)
        load: Callable[..., Any] = self._load_overload
        prepare_and_load: Callable[..., Any] = super().load_overload
        return load(sig, target_context) or prepare_and_load(sig, target_context)


def _taken_from_elsewhere(function: Callable[..., Any]) -> set[str]:
    """The files of the compiled functions that a loop calls, with their ages, and the constants that it knows."""
    found, left, seen = set[str](), [function], set[Callable[..., Any]]()
    while left:
        source = left.pop()
        seen.add(source)
        if source is not function:
            about = os.stat(source.__code__.co_filename)
            found.add(f"{source.__qualname__} {about.st_mtime_ns} {about.st_size}")
        known = {name: source.__globals__[name] for name in source.__code__.co_names if name in source.__globals__}
        for name, value in known.items():
            called = getattr(value, "py_func", None) or getattr(value, "_defn", None)
            if called is not None and called not in seen:
                left.append(called)
            elif isinstance(value, int | float | str | tuple | np.generic):
                found.add(f"{name}={value!r}")
    return found


def _say_uncached() -> None:
    """Warn, once for a process and those that it starts."""
    if _UNCACHED not in os.environ:
        os.environ[_UNCACHED] = "said"
        warnings.warn(
            "compiled code cannot be kept: neither the package's folder nor the home folder can be written to, so each "
            "process compiles anew, which takes some seconds; NUMBA_CACHE_DIR may name another folder",
            stacklevel=2,
        )


_LANES = 64


@operation
def at_least_mask(typing: Any, bits: Any, index: Any, limit: Any) -> Any:
    """Bit j tells whether ``bits[index + j]``, its sign bit cleared, is >= ``limit``; for j from 0 to 63."""
    if not (isinstance(bits, types.Array) and bits.dtype == types.uint32 and bits.layout == "C"):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        array = context.make_array(array_type)(context, builder, arguments[0])
        word = ir.IntType(32)
        lanes = ir.VectorType(word, _LANES)
        start = builder.gep(array.data, [arguments[1]], inbounds=True)
        values = builder.load(builder.bitcast(start, lanes.as_pointer()), align=4, typ=lanes)
        magnitudes = builder.and_(values, ir.Constant(lanes, [0x7FFFFFFF] * _LANES))
        lane_0 = builder.insert_element(ir.Constant(lanes, ir.Undefined), arguments[2], ir.Constant(word, 0))
        zeros = ir.Constant(ir.VectorType(word, _LANES), [0] * _LANES)
        limits = builder.shuffle_vector(lane_0, ir.Constant(lanes, ir.Undefined), zeros)
        return builder.bitcast(builder.icmp_unsigned(">=", magnitudes, limits), ir.IntType(_LANES))

    return types.uint64(bits, types.int64, types.uint32), generate


@operation
def trailing_zeros(typing: Any, word: Any) -> Any:
    """How many zero bits lie below the lowest one bit of a word; 64 if it has none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@operation
def count_ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@operation
def fetch_add(typing: Any, counter: Any, amount: Any) -> Any:
    """The first number of an array, to which an amount is then added: no other thread comes between."""
    if not (isinstance(counter, types.Array) and counter.dtype == types.int64):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, arguments[1], "acq_rel")

    return types.int64(counter, types.int64), generate


@jit
def address_of(array: Any) -> Any:
    """Where an array's memory begins: what its own `ctypes.data` says, in a third of the time."""
    return array.ctypes.data
