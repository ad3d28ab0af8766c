"""A user's own functions by `package.module:function`, from installed packages or from the working folder."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedsparq.errors import FedSparQError, OptionError

_HERE, _INSTALLED = os.path.dirname(__file__), "site-packages"
_FORM = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


def load_function(name: str, what: str, choices: Iterable[str] = ()) -> Callable[..., Any]:
    """Import the function ``package.module:function``; errors name `what` it is and the built-in `choices`."""
    found = _FORM.fullmatch(name)
    if found is None:
        known = ", ".join(choices)
        instead = f"choose from {known}, or give package.module:function" if known else "give package.module:function"
        raise OptionError(f"unknown {what} {name!r}: {instead}")
    with importable_from_here():
        try:
            function = getattr(importlib.import_module(found["module"]), found["function"], None)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise OptionError(
                f"{what} {name!r}: cannot import {found['module']!r} ({describe_error(error)})"
            ) from error
    if not callable(function):
        raise OptionError(f"{what} {name!r}: module {found['module']!r} has no function {found['function']!r}")
    made: Callable[..., Any] = function
    return made


def call_checked(what: str, make: Callable[..., Any], arguments: Mapping[str, Any], provided: Container[str]) -> Any:
    """Call a function that may be a user's own. Its options are its parameters except those that are `provided`."""
    signature = inspect.signature(make)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        own = ", ".join(key for key in signature.parameters if key not in provided)
        raise OptionError(f"{what}: {error}; its options are: {own or 'none'}") from error
    with importable_from_here():
        try:
            return make(**arguments)
        except FedSparQError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise OptionError(f"{what} failed: {describe_error(error)}") from error


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Let the files of the working folder be imported, after everything that is installed."""
    here = os.getcwd()
    importlib.invalidate_caches()
    sys.path.append(here)
    try:
        yield
    finally:
        del sys.path[-1 - sys.path[::-1].index(here)]


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with the place in the user's files where it was raised."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; looked for among the installed packages and in {os.getcwd()}"
    if isinstance(error, SyntaxError):
        return f"{error.msg}: {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        f for f in frames if not f.filename.startswith(("<frozen importlib", _HERE)) and _INSTALLED not in f.filename
    ]
    where = f": {theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
