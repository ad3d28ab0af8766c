"""A model's tensors, in one flat vector: what both sides of a federation must agree on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, cast, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.errors import OptionError

Role = Literal["parameter", "buffer", "counter"]

MAX_SIZE = 2**32 - 1
"""Positions travel as 32-bit numbers."""

_STATISTICS = ("running_mean", "running_var")
_JSON_EXAMPLE = '{"fc.weight": [10, 4], "fc.bias": [10]}'


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model and the place its values take in the flat array of its role."""

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
class Layout:
    """The tensors of a model by role, each role in a flat array of its own.

    * parameters are trained, and travel compressed: ``float32[layout.size]``;
    * buffers are float statistics (BatchNorm), and travel exactly: ``float32[layout.buffer_size]``;
    * counters are integers, and travel exactly: ``int64[layout.counter_size]``.

    Tensors of other types are listed with their own type, and their values pass through these three.

    >>> layout = Layout.of({"fc.weight": (10, 4), "fc.bias": (10,)})
    >>> layout.size, [t.name for t in layout.parameters]
    (50, ['fc.weight', 'fc.bias'])
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
        """The layout of a torch module, or of a mapping from names to shapes or to arrays.

        A bare shape is a float32 parameter. Arrays bring their own dtype: integers are counters, floats are
        parameters, but for the running statistics of a normalization layer (by torch's names), which are buffers.
        """
        if isinstance(model, Mapping):
            return cls._build((str(name), *_describe(str(name), value)) for name, value in model.items())
        if hasattr(model, "named_parameters") and hasattr(model, "state_dict"):
            trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
            return cls._build(
                (
                    name,
                    tuple(value.shape),
                    _dtype_name(value.dtype),
                    _role(name, _dtype_name(value.dtype), name in trained),
                )
                for name, value in model.state_dict().items()
            )
        raise OptionError(
            f"cannot take a layout from {type(model).__name__}: give a torch module, or a mapping of names to shapes"
        )

    @classmethod
    def _build(cls, entries: Iterable[tuple[str, tuple[int, ...], str, Role]]) -> Layout:
        used: dict[Role, int] = {"parameter": 0, "buffer": 0, "counter": 0}
        tensors = []
        for name, shape, dtype, role in entries:
            tensors.append(Tensor(name, shape, dtype, role, used[role]))
            used[role] += tensors[-1].size
        return cls(tuple(tensors))

    def to_json(self) -> str:
        """The layout as text, for a file beside messages: a message names its layout only by the digest."""
        tensors = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "role": t.role} for t in self.tensors]
        return json.dumps({"tensors": tensors}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """What `to_json` wrote, or a plain object from names to shapes: ``{"fc.weight": [10, 4], "fc.bias": [10]}``."""
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

    def _of_role(self, role: Role) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == role)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """The layers: the tensors that are compressed, in order."""
        return self._of_role("parameter")

    @cached_property
    def buffers(self) -> tuple[Tensor, ...]:
        return self._of_role("buffer")

    @cached_property
    def counters(self) -> tuple[Tensor, ...]:
        return self._of_role("counter")

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

    def layer_at(self, position: int) -> str:
        """The name of the layer that holds a coordinate of the flat vector."""
        return self.parameters[int(np.searchsorted(self.bounds, position, side="right")) - 1].name


@dataclass(frozen=True)
class Exact:
    """The part of a model that travels as it is: float statistics and integer counters."""

    buffers: NDArray[np.float32]
    counters: NDArray[np.int64]


def _describe(name: str, value: Any) -> tuple[tuple[int, ...], str, Role]:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = _dtype_name(value.dtype)
        return (
            tuple(int(n) for n in value.shape),
            dtype,
            _role(name, dtype, trained=name.rsplit(".", 1)[-1] not in _STATISTICS),
        )
    return _shape(name, (value,) if isinstance(value, Integral) else value), "float32", "parameter"


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        shape = tuple(int(n) for n in value if isinstance(n, Integral) and not isinstance(n, bool))
        if len(shape) == len(value) and all(n >= 0 for n in shape):
            return shape
    raise OptionError(f"tensor {name!r}: expected a shape such as (128, 784) or an array, got {value!r}")


def _from_entry(entry: dict[str, Any]) -> tuple[str, tuple[int, ...], str, Role]:
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


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
