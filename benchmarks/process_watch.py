"""What a program's processes take, however they were started: looked at in /proc five times a second."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Seen:
    """A process when it was last looked at: the most resident memory it ever had in bytes, and its CPU seconds."""

    role: str
    begun: float
    rss: int
    cpu: float


class Watch:
    """Looks at processes with `mark` in their environment, and with the command of a role in their command line."""

    def __init__(self, mark: str, roles: Mapping[str, str]) -> None:
        self._mark, self._roles = mark.encode(), {role: command.encode() for role, command in roles.items()}
        self._seen: dict[tuple[str, float], Seen] = {}
        self._end, self._thread = threading.Event(), threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def seen(self) -> list[Seen]:
        return list(self._seen.values())

    def _look_on(self) -> None:
        while not self._end.wait(0.2):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError, KeyError, IndexError):  # it has just ended
                    self._look(Path("/proc", pid))

    def _look(self, folder: Path) -> None:
        words = (folder / "cmdline").read_bytes().split(b"\0")[:3]
        role = next((role for role, name in self._roles.items() if any(w.endswith(name) for w in words)), None)
        if role is None or self._mark not in (folder / "environ").read_bytes().split(b"\0"):
            return
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        begun, cpu = float(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS
        self._seen[folder.name, begun] = Seen(role, begun, 1024 * int(status["VmHWM"].split()[0]), cpu)
