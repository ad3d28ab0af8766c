"""Methods and parts of the server by name: the package's, a user's own that are registered or installed, and
`package.module:function`."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

import xxhash

from fedsparq.aggregate import (
    CenteredClipping,
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    Mean,
    MultiKrum,
    Robust,
    TrimmedMean,
    clipped_mean,
)
from fedsparq.errors import FedSparQError, OptionError, UnknownMethodError, did_you_mean
from fedsparq.imports import load_function
from fedsparq.method import Identity, Method
from fedsparq.optimize import Adam, Momentum, SparseStep, Step, Yogi
from fedsparq.options import validate_options
from fedsparq.protocols import Aggregator, Optimizer

Recipe = Callable[..., Method]
"""A function that builds a method; its keyword arguments are the method's options, their annotations the ranges."""

R = TypeVar("R", bound=Recipe)

ENTRY_POINT_GROUP = "fedsparq.methods"
"""The entry point group under which installed packages offer recipes."""

METHODS: dict[str, Recipe] = {}
"""What was registered, by name."""

AGGREGATORS: dict[str, Callable[..., Aggregator]] = {
    "mean": Mean,
    "robust": Robust,
    "centered-clipping": CenteredClipping,
    "clipped-mean": clipped_mean,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "fltrust": FLTrust,
    "coordinate-median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "step": Step,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "sparse-step": SparseStep,
}

SPELLINGS = {"random-k": "random-10", "top-k": "top-10"}
"""Other names that callers may use; messages, states, labels and folders keep the registered ones."""

FederationDefaults = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""From all options, and the fraction of clients per round: the defaults for such a federation, always the same keys."""

_COMPRESSES_DOWNLINK: set[str] = set()
_FEDERATION_DEFAULTS: dict[str, FederationDefaults] = {}


def register(
    name: str,
    *,
    version: int | str | None = None,
    in_federations: FederationDefaults | None = None,
    compresses_downlink: bool = False,
) -> Callable[[R], R]:
    """Register a recipe under a name: ``@fedsparq.register("every-tenth")``.

    Change `version` with what the recipe does, so that machines with different algorithms notice; without one, a digest
    of the module's source is used. `in_federations` returns the defaults for a federation whose server is the method's
    own; `compresses_downlink` says that its broadcasts are compressed by default.
    """
    if not name or ":" in name or any(character.isspace() for character in name):
        raise OptionError(f"a method cannot be registered as {name!r}; give a name such as 'every-tenth'")

    def enter(recipe: R) -> R:
        known = METHODS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (recipe.__module__, recipe.__qualname__):
            raise OptionError(f"there is a method {name!r} already, by {known.__module__}; choose another name")
        if version is not None:
            recipe.version = str(version)  # type: ignore[attr-defined]
        METHODS[name] = recipe
        _FEDERATION_DEFAULTS[name] = in_federations or _no_overrides
        if compresses_downlink:
            _COMPRESSES_DOWNLINK.add(name)
        return recipe

    return enter


def _no_overrides(options: Mapping[str, Any], fraction: float) -> Mapping[str, Any]:
    return {}


def method(name: str, /, **options: Any) -> Method:
    """Build a method by its name, or by ``package.module:function`` as a user's own; options by keyword."""
    name = SPELLINGS.get(name, name)
    return _make(name, find_recipe(name), options, {})


def federated_method(name: str, fraction: float, /, **options: Any) -> Method:
    """Build a method for a federation of which this fraction takes part in each round, and whose server has the
    method's own aggregator and optimizer."""
    name = SPELLINGS.get(name, name)
    recipe = find_recipe(name)
    usual = _FEDERATION_DEFAULTS.get(name, _no_overrides)(validate_options(name, recipe, options), fraction)
    return _make(name, recipe, {**usual, **options}, usual)


def left_to_federations(chosen: Method) -> frozenset[str]:
    """Return the options that `federated_method` sets if they are not given."""
    return frozenset(_FEDERATION_DEFAULTS.get(chosen.name, _no_overrides)(chosen.options, 1.0))


def compresses_downlink(name: str) -> bool:
    """Return whether a federation with this method compresses its broadcasts, unless it is told otherwise."""
    return name in _COMPRESSES_DOWNLINK


def aggregator(name: str, /, **options: Any) -> Aggregator:
    """Build an aggregator by its name, or by ``package.module:function``."""
    make = AGGREGATORS.get(name) or load_function(name, "aggregator", AGGREGATORS)
    return make(**validate_options(name, make, options, "aggregator"))


def optimizer(name: str, /, **options: Any) -> Optimizer:
    """Build a server optimizer by its name, or by ``package.module:function``."""
    make = OPTIMIZERS.get(name) or load_function(name, "optimizer", OPTIMIZERS)
    return make(**validate_options(name, make, options, "optimizer"))


def resolver(*trusted: str) -> Callable[[Identity], Method]:
    """Return a function that builds the method that a broadcast names.

    A name from the wire never triggers an import: it must be registered in this process, be installed as an entry
    point, or be among the `trusted`, which are names that this side was given by its own operator. The last method is
    kept: clients that take turns in one process are asked for the same one.
    """
    last: dict[bytes, Method] = {}

    def resolve(identity: Identity) -> Method:
        key = identity.encode()
        if key not in last:
            made = _resolve(identity, trusted)
            last.clear()
            last[key] = made
        return last[key]

    return resolve


def _resolve(identity: Identity, trusted: Iterable[str]) -> Method:
    if ":" in identity.name and identity.name not in trusted:
        raise UnknownMethodError(
            f"the server asks for the method {identity.name!r}, which this client was not told of; "
            "name it here too, as in compress(...), or register or install it"
        )
    try:
        made = _make(identity.name, find_recipe(identity.name), identity.options, {})
    except FedSparQError as error:
        raise UnknownMethodError(f"the server asks for a method this client does not have: {error}") from None
    own = made.identity
    difference = own.difference(identity) if own else "no identity"
    if difference:
        raise UnknownMethodError(
            f"the server's method {identity.name!r} is not the one this client has: it asks for {difference}; "
            "install the same version on both sides"
        )
    return made


def check_portable(chosen: Method, where: str) -> None:
    """Raise OptionError for a method that no other process could build."""
    if chosen.identity is None:
        raise OptionError(
            f"this method was made by hand ({chosen.label}), so {where} could not make the same one; write a function "
            "that returns it, and give its name as 'package.module:function' or register it with fedsparq.register"
        )
    if find_recipe(chosen.name).__module__ == "__main__":
        raise OptionError(
            f"the method {chosen.name!r} is a function of __main__, which {where} cannot import; move it into a module "
            "of its own and give its name as 'package.module:function'"
        )


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name: registered, of `package.module:function`, or installed."""
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return load_function(name, "method", METHODS)
    return _load_installed(name)


def known_methods() -> dict[str, Recipe]:
    """Return the recipe of every method with a name: registered or installed."""
    return {**METHODS, **{name: _load_installed(name) for name in _installed() if name not in METHODS}}


def _installed() -> Mapping[str, Any]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _load_installed(name: str) -> Recipe:
    installed = _installed()
    if name not in installed:
        known = {**METHODS, **installed}
        raise OptionError(
            f"there is no method {name!r}; {did_you_mean(name, known)}there is {', '.join(known)}, "
            "or give package.module:function"
        )
    point = installed[name]
    try:
        recipe: Recipe = point.load()
    except Exception as error:
        raise OptionError(f"method {name!r} of {point.value} cannot be imported: {error}") from error
    if not callable(recipe):
        raise OptionError(f"method {name!r} of {point.value} is not a function that returns a fedsparq.Method")
    return recipe


def _make(name: str, recipe: Recipe, options: Mapping[str, Any], usual: Mapping[str, Any]) -> Method:
    every = validate_options(name, recipe, options)
    made = recipe(**every)
    if not isinstance(made, Method):
        raise OptionError(f"method {name!r} gave a {type(made).__name__}; it must return a fedsparq.Method")
    for key, value in every.items():
        if not _is_json_serializable(value):
            raise OptionError(
                f"{key}={value!r} of method {name!r} cannot be told to other machines; an option is a number, a word, "
                "true or false, None, or a list of these"
            )
    defaults = {key: parameter.default for key, parameter in inspect.signature(recipe).parameters.items()}
    unusual = (f"{key}={value}" for key, value in every.items() if value != usual.get(key, defaults[key]))
    stated = getattr(recipe, "version", None)
    version = _source_digest(recipe) if stated is None else str(stated)
    return made.named(Identity(name, version, every, " ".join([name, *unusual])))


def _is_json_serializable(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


@cache
def _source_digest(recipe: Recipe) -> str:
    """The version of a recipe that states none: another source is another version.

    Taken once, as the file may be changed while the module that was read from it runs.
    """
    try:
        source = inspect.getsource(sys.modules[recipe.__module__])
    except (OSError, TypeError, KeyError):
        return ""
    return f"source {xxhash.xxh3_64_hexdigest(source.encode())}"
