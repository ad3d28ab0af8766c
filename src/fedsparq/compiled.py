"""Compile loops with numba, and count bits in them.

numba keeps machine code as long as a loop's own file stays as it is; it does not look at other files. So a loop calls
nothing of another file but what never changes: what is below, and what FORMAT.md fixes in payload/kernels.py.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

_UNCACHED = "FEDSPARQ_UNCACHED"
"""The variable by which a process tells those that it starts that this was said."""

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a loop on first use; the machine code is cached on disk."""
    return _compiled(function)


def jit_reordering_sums(function: F) -> F:
    """Compile as `jit`, free to add in another order: sums may differ in their last bits between kinds of CPU."""
    return _compiled(function, fastmath={"reassoc"})


def _compiled(function: F, **options: Any) -> F:
    compiled = numba.njit(nogil=True, **options)(function)
    try:
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # numba found no folder that it may write to
        _say_uncached()
    return cast(F, compiled)


class _Cache(FunctionCache):
    """numba's cache, which makes the whole compiler ready before it looks for machine code; this one only if there is
    none. It saves each new process a quarter of a second.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context) or super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def _say_uncached() -> None:
    """Warn, once for a process and those that it starts."""
    if _UNCACHED not in os.environ:
        os.environ[_UNCACHED] = "said"
        warnings.warn(
            "compiled code cannot be kept: neither the package's folder nor the home folder can be written to, so each "
            "process compiles anew, which takes some seconds; NUMBA_CACHE_DIR may name another folder",
            stacklevel=2,
        )


_1, _2, _4, _56 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_EIGHTS, _ALL_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


@jit
def count_ones(word: Any) -> Any:
    """Count the one bits of a 64-bit word. The compiler knows this sum, and takes the CPU's own instruction."""
    pairs = word - ((word >> _1) & _PAIRS)
    fours = (pairs & _FOURS) + ((pairs >> _2) & _FOURS)
    return (((fours + (fours >> _4)) & _EIGHTS) * _ALL_BYTES) >> _56


@jit
def trailing_zeros(word: Any) -> Any:
    """Count the zero bits below the lowest one bit of a 64-bit word; 64 if it has none."""
    return count_ones(~word & (word - _1))
