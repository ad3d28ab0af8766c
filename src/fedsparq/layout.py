"""A model's tensors, in one flat vector: what both sides of a federation must agree on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, starmap
from numbers import Integral
from typing import Any, Literal, cast, get_args

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from fedsparq.errors import OptionError, UpdateError

Vector = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]
"""State: arrays by name, as they are saved and compared."""


def part_of(part: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays whose names start with `part.`, without this prefix."""
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}


Role = Literal["parameter", "buffer", "counter"]
Entry = tuple[str, tuple[int, ...], str, Role]
"""A tensor before its place is known: name, shape, dtype, role."""

MAX_SIZE = 2**32 - 1
"""Indices travel as 32-bit numbers."""

_STATISTICS = ("running_mean", "running_var")
_JSON_EXAMPLE = '{"fc.weight": [10, 4], "fc.bias": [10]}'


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model, and where its values lie in the flat array of its role."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    offset: int

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Buffers:
    """The part of a model that travels uncompressed: float statistics (BatchNorm) and integer counters."""

    statistics: NDArray[np.float32]
    counters: NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The tensors of a model by role, each role in a flat array of its own.

    * parameters are trained, and travel compressed: ``float32[layout.size]``;
    * buffers are float statistics (BatchNorm), and travel uncompressed: ``float32[layout.buffer_size]``;
    * counters are integers, and travel uncompressed: ``int64[layout.counter_size]``.

    Tensors of other types are listed with their own type, and their values pass through these three.
    """

    tensors: tuple[Tensor, ...]
    digest: int = field(init=False)
    """64 bits over names, shapes, types and roles; FORMAT.md defines it."""

    def __post_init__(self) -> None:
        _check_names([t.name for t in self.tensors])
        lines = (f"{t.role} {t.dtype} {'x'.join(map(str, t.shape))} {t.name}\n" for t in self.tensors)
        object.__setattr__(self, "digest", xxhash.xxh3_64_intdigest("".join(lines).encode()))
        if self.size > MAX_SIZE:
            raise OptionError(f"the model has {self.size:,} parameters; at most {MAX_SIZE:,} fit the wire format")

    @classmethod
    def of(cls, model: Any) -> Layout:
        """Build the layout of a torch module, or of a mapping from names to shapes or to arrays.

        A bare shape is a float32 parameter. Arrays bring their own dtype: integers are counters, floats are
        parameters, but for the running statistics of a normalization layer (by torch's names), which are buffers.
        """
        if isinstance(model, Mapping):
            trained = {name for name in model if str(name).rsplit(".", 1)[-1] not in _STATISTICS}
            return cls._build(_describe(str(name), value, name in trained) for name, value in model.items())
        if hasattr(model, "named_parameters") and hasattr(model, "state_dict"):
            trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
            return cls._build(_describe(name, value, name in trained) for name, value in model.state_dict().items())
        raise OptionError(
            f"cannot take a layout from {type(model).__name__}: give a torch module, or a mapping of names to shapes"
        )

    @classmethod
    def _build(cls, entries: Iterable[Entry]) -> Layout:
        used: dict[Role, int] = {"parameter": 0, "buffer": 0, "counter": 0}
        tensors = []
        for name, shape, dtype, role in entries:
            tensors.append(Tensor(name, shape, dtype, role, used[role]))
            used[role] += tensors[-1].size
        return cls(tuple(tensors))

    def to_json(self) -> str:
        """Return the layout as text, for a file next to messages: a message names its layout only by the digest."""
        tensors = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "role": t.role} for t in self.tensors]
        return json.dumps({"tensors": tensors}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what `to_json` wrote, or an object from names to shapes: ``{"fc.weight": [10, 4], "fc.bias": [10]}``."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise OptionError(f"a layout must be JSON such as {_JSON_EXAMPLE}: {error}") from None
        if not isinstance(data, dict):
            raise OptionError(f"a layout must be a JSON object such as {_JSON_EXAMPLE}, not {type(data).__name__}")
        tensors = data.get("tensors")
        if not (isinstance(tensors, list) and all(isinstance(t, dict) for t in tensors)):
            return cls.of(data)
        return cls._build(_from_entry(entry) for entry in tensors)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """The layers: the tensors that are compressed, in order."""
        return tuple(t for t in self.tensors if t.role == "parameter")

    @cached_property
    def buffers(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "buffer")

    @cached_property
    def counters(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "counter")

    @cached_property
    def size(self) -> int:
        """How many coordinates are compressed."""
        return sum(t.size for t in self.parameters)

    @cached_property
    def buffer_size(self) -> int:
        return sum(t.size for t in self.buffers)

    @cached_property
    def counter_size(self) -> int:
        return sum(t.size for t in self.counters)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where each layer starts in the flat vector, and at last its end: ``len(parameters) + 1`` numbers."""
        return np.array([0, *np.cumsum([t.size for t in self.parameters])], dtype=np.int64)

    def split(self, indices: NDArray[np.uint32]) -> list[slice]:
        """Return the slice of each layer among strictly increasing indices."""
        return list(starmap(slice, pairwise(np.searchsorted(indices, self.bounds.astype(np.uint32)).tolist())))

    def flatten(self, arrays: Mapping[str, ArrayLike]) -> tuple[Vector, Buffers | None]:
        """Return a flat copy of named arrays, and None for the buffers if it has neither buffers nor counters."""
        known = {tensor.name for tensor in self.tensors}
        for name in arrays:
            if name not in known:
                raise UpdateError(f"tensor {name!r} is not in the model; both sides need the same model")
        flat: dict[Role, NDArray[Any]] = {
            "parameter": np.empty(self.size, np.float32),
            "buffer": np.empty(self.buffer_size, np.float32),
            "counter": np.empty(self.counter_size, np.int64),
        }
        for tensor in self.tensors:
            if tensor.name not in arrays:
                raise UpdateError(f"tensor {tensor.name!r} of the model is missing; both sides need the same model")
            array = np.asarray(arrays[tensor.name])
            if array.shape != tensor.shape:
                raise UpdateError(
                    f"tensor {tensor.name!r} has shape {array.shape}, the model has {tensor.shape}; "
                    "both sides need the same model"
                )
            flat[tensor.role][tensor.span].reshape(tensor.shape)[...] = array
        buffers = Buffers(flat["buffer"], flat["counter"]) if self.buffers or self.counters else None
        return flat["parameter"], buffers

    def unflatten(self, vector: Vector, buffers: Buffers | None = None) -> Arrays:
        """Return named arrays in their own types and shapes, in the layout's order; not copied if the type allows."""
        buffers = buffers or Buffers(np.empty(0, np.float32), np.empty(0, np.int64))
        flat: dict[str, NDArray[Any]] = {"parameter": vector, "buffer": buffers.statistics, "counter": buffers.counters}
        sizes = (self.size, self.buffer_size, self.counter_size)
        for (role, values), size in zip(flat.items(), sizes, strict=True):
            if values.shape != (size,):
                raise UpdateError(f"the {role}s of the model are {size} values, got an array of {list(values.shape)}")
        return {t.name: np.ascontiguousarray(flat[t.role][t.span], t.dtype).reshape(t.shape) for t in self.tensors}


def _describe(name: str, value: Any, trained: bool) -> Entry:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        return name, tuple(int(n) for n in value.shape), dtype, _role(name, dtype, trained)
    return name, _shape(name, (value,) if isinstance(value, Integral) else value), "float32", "parameter"


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        shape = tuple(int(n) for n in value if isinstance(n, Integral) and not isinstance(n, bool))
        if len(shape) == len(value) and all(n >= 0 for n in shape):
            return shape
    raise OptionError(f"tensor {name!r}: expected a shape such as (128, 784) or an array, got {value!r}")


def _from_entry(entry: dict[str, Any]) -> Entry:
    name, dtype, role = entry.get("name"), entry.get("dtype"), entry.get("role")
    if not isinstance(name, str) or not isinstance(dtype, str) or role not in get_args(Role):
        raise OptionError(f"a tensor of a layout needs a name, a shape, a dtype and one of the roles {get_args(Role)}")
    return name, _shape(name, entry.get("shape")), dtype, cast(Role, role)


def _check_names(names: list[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise OptionError(f"the name {name!r} is used {times} times; every tensor needs a name of its own")
        if "\n" in name:
            raise OptionError(f"the name {name!r} holds a line break, which the digest of a layout cannot")


def _role(name: str, dtype: str, trained: bool) -> Role:
    if "float" in dtype:
        return "parameter" if trained else "buffer"
    if dtype.startswith(("int", "uint", "bool")):
        return "counter"
    raise OptionError(f"tensor {name!r} has dtype {dtype}; floats and integers can be sent")
