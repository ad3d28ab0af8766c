"""Options and their ranges, stated once in annotations and checked by pydantic; each error is one sentence."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import BaseModel, ByteSize, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass

from fedsparq.errors import OptionError

Fraction = Annotated[float, Field(gt=0, le=1)]
"""A fraction of all coordinates, above 0."""
Decay = Annotated[float, Field(ge=0, lt=1)]
"""How much of the past a moving average or a momentum keeps."""
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

T = TypeVar("T")

_REQUIRED = inspect.Parameter.empty
_STRICT = ConfigDict(
    strict=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, validate_default=True
)
_KINDS = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "a word",
    "bool_type": "true or false",
    "finite_number": "a finite number",
}


@dataclass_transform(frozen_default=True)
def component(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are checked by their annotations; what does not fit is an `OptionError`.

    >>> @component
    ... class Average:
    ...     beta: Decay = 0.9
    >>> Average(beta=7)
    Traceback (most recent call last):
    fedsparq.errors.OptionError: beta=7 is not possible for Average: it must be less than 1
    """
    made: Any = dataclass(frozen=True, config=_STRICT)(cls)
    check, defaults = made.__init__, _defaults(made)

    @wraps(check)
    def init(self: T, *args: Any, **kwargs: Any) -> None:
        try:
            check(self, *args, **kwargs)
        except ValidationError as error:
            raise OptionError(_sentence(error, cls.__name__, defaults)) from None

    made.__init__ = init
    checked: type[T] = made
    return checked


@cache
def options_model(recipe: Callable[..., Any]) -> type[BaseModel]:
    """Return the options of a recipe (a function or a class), which are its parameters, as a pydantic model."""
    plain_class = isinstance(recipe, type) and not is_dataclass(recipe)
    try:
        hints = get_type_hints(recipe.__init__ if plain_class else recipe, include_extras=True)
    except NameError as error:
        raise OptionError(f"the annotations of {recipe.__qualname__} cannot be resolved: {error}") from None
    options: dict[str, Any] = {
        key: (hints.get(key, Any), ... if default is _REQUIRED else default)
        for key, default in _defaults(recipe).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an option may well be called `copy`
        return create_model(recipe.__name__, __config__=_STRICT, **options)


def validate_options(
    name: str, recipe: Callable[..., Any], options: Mapping[str, Any], what: str = "method"
) -> dict[str, Any]:
    """Return all options of a method, defaults included, in their order and with their own types.

    >>> def top(fraction: Fraction = 0.1, scope: str = "layer"): ...
    >>> validate_options("top", top, {"fraction": 1})
    {'fraction': 1.0, 'scope': 'layer'}
    >>> validate_options("top", top, {"fractoin": 1})
    Traceback (most recent call last):
    fedsparq.errors.OptionError: method 'top' has no option 'fractoin'; its options are: fraction=0.1, scope=layer
    """
    model = options_model(recipe)
    try:
        checked = model(**options)
    except ValidationError as error:
        raise OptionError(_sentence(error, f"{what} {name!r}", _defaults(recipe))) from None
    return {key: getattr(checked, key) for key in model.model_fields}


def parse_bytes(amount: str | int) -> int:
    """Read a number of bytes from text such as "20 kB", "5 MB", "1.5 MiB" or "4096"."""
    text = str(amount).strip()
    try:
        count = int(_BYTES.validate_python(text)) if ByteSize.byte_string_re.fullmatch(text) else -1
    except ValidationError:
        count = -1
    if count < 0:
        raise OptionError(f"{amount!r} is not an amount of bytes; write one such as '20 kB', '5 MB' or '1.5 MiB'")
    if count < 1:
        raise OptionError(f"{amount!r} is less than one byte")
    return count


_BYTES = TypeAdapter(ByteSize)


def _defaults(recipe: Callable[..., Any]) -> dict[str, Any]:
    keywords = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = inspect.signature(recipe).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind in keywords}


def _sentence(error: ValidationError, owner: str, defaults: Mapping[str, Any]) -> str:
    """Describe a validation error: what is wrong, then what is right."""
    first = error.errors(include_url=False)[0]
    kind, location = first["type"], first["loc"][0] if first["loc"] else ""
    names = list(defaults)
    key = names[location] if isinstance(location, int) and location < len(names) else str(location)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = ", ".join(name if default is _REQUIRED else f"{name}={default}" for name, default in defaults.items())
        return f"{owner} has no option {key!r}; its options are: {known or 'none'}"
    if kind == "missing":
        return f"{owner} needs the option {key!r}"
    default = defaults.get(key)
    example = f" such as {default!r}" if isinstance(default, int | float | str) and default != "" else ""
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be", 1)
    right = f"it must be {_KINDS[kind]}{example}" if kind in _KINDS else f"{message[0].lower()}{message[1:]}"
    return f"{key}={first['input']!r} is not possible for {owner}: {right}"
