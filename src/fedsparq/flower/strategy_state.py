"""The state of a strategy of Flower's between rounds, as facts and arrays that can be saved."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedsparq.errors import OptionError
from fedsparq.federate.exact import pack_arrays, unpack_arrays
from fedsparq.flower.advice import layers
from fedsparq.flower.records import to_record
from fedsparq.layout import Arrays

_MOMENTS = ("current_arrays", "momentum_vector", "m_t", "v_t", "clipping_norm", "current_bst")
_KEPT = (*_MOMENTS, "registered_nodes", "current_pos")
"""What Flower's own strategies keep from one round to the next."""


@runtime_checkable
class Resumable(Protocol):
    """A strategy that says itself what it must not lose."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def check_state_known(strategy: Strategy) -> None:
    """Refuse a strategy whose state we cannot know, before anything has started."""
    for each in layers(strategy):
        if isinstance(each, Resumable):
            return
        if not type(each).__module__.startswith("flwr."):
            raise OptionError(
                f"a checkpoint cannot know what {type(each).__name__} remembers between rounds: give it state_dict() "
                "and load_state_dict(state), with numbers, words, arrays, lists and dicts in it"
            )


def state_of(strategy: Strategy) -> tuple[Any, Arrays]:
    """Return everything that a strategy must not lose: facts for JSON, and arrays that they refer to.

    Each layer's own, the outermost first; one that says it itself speaks for those inside.
    """
    arrays, states = dict[str, Any](), list[dict[str, Any]]()
    for each in layers(strategy):
        if isinstance(each, Resumable):
            states.append({"own": each.state_dict()})
            break
        states.append({name: getattr(each, name) for name in _KEPT if hasattr(each, name)})
        if (accountant := getattr(each, "accountant", None)) is not None:
            states[-1]["accountant"] = accountant.state_dict()
    return _packed(states, arrays), arrays


def restore(strategy: Strategy, facts: Any, arrays: Arrays, model: ArrayRecord) -> None:
    """Undo `state_of` on a strategy that was made anew; ValueError for moments of another model than this one."""
    states = _unpacked(facts, arrays)
    for moment in (state.get(name) for state in states for name in _MOMENTS):
        named = moment if isinstance(moment, Mapping) else {}
        for name, each in named.items():
            if name not in model or tuple(getattr(each, "shape", ())) not in ((), tuple(model[name].shape)):
                raise ValueError("what the strategy remembers is of another model")
    for each, state in zip(layers(strategy), states, strict=False):
        target: Any = each
        for name, value in state.items():
            if name == "own":
                target.load_state_dict(value)
            elif name != "accountant":
                setattr(target, name, value)
            elif target.accountant is None:
                raise OptionError("this strategy lacks the checkpoint's accountant: what was spent would be forgotten")
            else:
                target.accountant.load_state_dict(value)


def random_state(noise: bool) -> tuple[Any, Arrays]:
    """Python's generator, by which Flower samples nodes, and numpy's, unless noise is drawn by that.

    Noise that protects somebody must not come twice, nor be known to who reads the file.
    """
    version, words, normal = random.getstate()
    facts: dict[str, Any] = {"python": [version, normal]}
    arrays: Arrays = {"python": np.array(words, np.uint64)}
    if not noise:
        kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
        facts["numpy"], arrays["numpy"] = [kind, int(place), int(has_gauss), float(gauss)], np.asarray(keys)
    return facts, arrays


def set_random_state(facts: Any, arrays: Arrays) -> None:
    version, normal = facts["python"]
    random.setstate((version, tuple(map(int, arrays["python"])), normal))
    if "numpy" in facts:
        kind, place, has_gauss, gauss = facts["numpy"]
        np.random.set_state((kind, arrays["numpy"].astype(np.uint32), place, has_gauss, gauss))


_LISTS = {"list": list, "tuple": tuple, "set": set}
_RECORDS: dict[str, Any] = {"MetricRecord": MetricRecord, "ConfigRecord": ConfigRecord}


def _packed(value: Any, arrays: Arrays) -> Any:
    """JSON for a value; arrays are put aside under numbers."""

    def aside(kind: str, array: Any) -> list[Any]:
        arrays[str(len(arrays))] = np.asarray(array)
        return [kind, str(len(arrays) - 1)]

    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic):
        return aside("array", value)
    if isinstance(value, bytes):
        return aside("bytes", np.frombuffer(value, np.uint8))
    if isinstance(value, ArrayRecord):
        return aside("record", np.frombuffer(pack_arrays(value), np.uint8))
    if isinstance(value, MetricRecord | ConfigRecord):
        return [type(value).__name__, _packed(dict(value), arrays)]
    if isinstance(value, Mapping):
        return ["dict", [[_packed(key, arrays), _packed(each, arrays)] for key, each in value.items()]]
    if isinstance(value, list | tuple | set):
        return [type(value).__name__, [_packed(each, arrays) for each in value]]
    raise OptionError(
        f"a strategy's state holds a {type(value).__name__}, which cannot be saved; numbers and arrays can"
    )


def _unpacked(packed: Any, arrays: Arrays) -> Any:
    kind, value = packed
    if kind == "plain":
        return value
    if kind == "array":
        return arrays[value]
    if kind == "bytes":
        return arrays[value].tobytes()
    if kind == "record":
        return to_record(unpack_arrays(arrays[value].tobytes()))
    if kind == "dict":
        return {_unpacked(key, arrays): _unpacked(each, arrays) for key, each in value}
    if kind in _RECORDS:
        return _RECORDS[kind](_unpacked(value, arrays))
    return _LISTS[kind](_unpacked(each, arrays) for each in value)
