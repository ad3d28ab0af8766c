"""A call of the command: errors that we foresee are one sentence on stderr, not a traceback."""

from __future__ import annotations

import os
import sys

from fedsparq.cli import commands, files, states
from fedsparq.cli.app import app
from fedsparq.errors import FedSparQError

__all__ = ["call", "commands", "files", "states"]


def call() -> None:
    """Do what the command line says, and exit."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except FedSparQError as error:
        print(f"fedsparq: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at the end
        print(f"fedsparq: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
