"""Tables of keys and values: read from TOML, merged, and checked with one sentence for what is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, Strict, ValidationError

from fedsparq.errors import OptionError, did_you_mean

Spec = TypeVar("Spec", bound=BaseModel)

Integer = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
"""Numbers of a spec: true, false and text are not taken for one."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"the spec {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the spec {path} is not TOML: {error}") from None


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, tables key by key."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def check(kind: type[Spec], data: Mapping[str, Any], where: str = "", context: object = None) -> Spec:
    """A spec from a table, or one sentence that says what is wrong with it."""
    try:
        return kind.model_validate(data, context=context)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = no_such_key(str(first["loc"][-1]), _keys_beside(kind, first["loc"]))
        elif first["type"] == "missing":
            message = "it is needed"
        elif key and first["type"] != "value_error":
            message = f"{message[0].lower()}{message[1:]}, got {first['input']!r}"
        raise OptionError(": ".join(part for part in (where, key, message) if part)) from None


def slug(text: str) -> str:
    """A name that is safe as a folder's."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-")


def no_such_key(key: str, known: Sequence[str]) -> str:
    """That a key is wrong, and which are right; first the one that was meant."""
    return f"there is no such key; {did_you_mean(key, known)}there is {', '.join(known)}"


def _keys_beside(kind: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """The keys that could have stood there."""
    for part in where[:-1]:
        if part in kind.model_fields:
            kind = next((inner for inner in _kinds(kind, str(part)) if issubclass(inner, BaseModel)), kind)
    return list(kind.model_fields)


def _kinds(kind: type[BaseModel], key: str) -> list[type]:
    """The types that a field is made of: of ``tuple[int, ...] | None``, int."""
    found, open_ = [], [kind.model_fields[key].annotation]
    while open_:
        each = open_.pop()
        open_ += get_args(each)
        if isinstance(each, type):
            found.append(each)
    return found
