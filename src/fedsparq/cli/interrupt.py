"""Ctrl-C ends a command within seconds, whatever it is doing, and says how to go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

EXIT_CODE = 130
"""What shells give for a command that was interrupted."""

_PATIENCE = 3.0
"""So many seconds a command has to end by itself. Its files are safe at any moment."""
_OVER = b"\0"
_SHOW_CURSOR = b"\x1b[?25h"


class InterruptedCommandError(Exception):
    """A command was interrupted: KeyboardInterrupt under a name that click lets pass."""


class Interrupts:
    """Holds the interrupt signal for the length of a command.

    A first interrupt is raised as KeyboardInterrupt. Compiled code can take long to see it, and a library may swallow
    it; so a thread, woken by the signal itself, ends the process if nothing else does. A second interrupt ends it at
    once.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.seen = False
        self._advice = advice(words)
        self._leaving = threading.RLock()
        self._before: object = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._before = signal.signal(signal.SIGINT, self._raise)
            self._writer, self._former = writer, signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._lost
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the signal; of a process that was interrupted, only its end does that."""
        if self._before is not None and not self.seen:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]
            signal.set_wakeup_fd(self._former)
            sys.unraisablehook = self._hook
            os.write(self._writer, _OVER)

    def leave(self) -> None:
        """Say how to go on, and end the process here and now.

        Python's own end could take long, or give the signal as the reason instead of the exit code.
        """
        with self._leaving, suppress(OSError):
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)
            os.write(2, f"fedsparq: interrupted{self._advice}\n".encode())
            os._exit(EXIT_CODE)
        os._exit(EXIT_CODE)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            self.leave()
        self.seen = True
        raise KeyboardInterrupt

    def _lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python tells of errors that a callback swallowed; if the interrupt is among them, it is answered here."""
        if self.seen and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.leave()
        self._hook(unraisable)

    def _watch(self) -> None:
        while (byte := os.read(self._reader, 1)) != bytes([signal.SIGINT]):
            if byte == _OVER:
                os.close(self._reader)
                os.close(self._writer)
                return
        time.sleep(_PATIENCE)
        self.leave()


def advice(words: Sequence[str]) -> str:
    """How to go on after a command of these words was interrupted."""
    command = next((word for word in words[1:] if not word.startswith("-")), "")
    if command == "run" and "--resume" not in words:
        return "; the same command with --resume goes on"
    return "; the same command goes on" if command in ("run", "compare", "reproduce") else ""
