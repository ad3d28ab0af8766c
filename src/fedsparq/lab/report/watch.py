"""A page that follows runs while they go."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedsparq.errors import RunError
from fedsparq.lab.report.write import write_snapshot


def watch(
    paths: Sequence[Path], out: Path, title: str | None = None, every: float = 5.0, tell: Callable[[str], None] = print
) -> None:
    """Write `out` anew while runs go on, until Ctrl-C; an open browser shows each round as it comes.

    Every version of the page is whole. Waits where no round has ended yet; the last version stands still.
    """
    before = ""
    try:
        while True:
            try:
                now = write_snapshot(paths, out, title, every).progress
            except RunError as error:
                now = f"waiting for the first round; {str(error).splitlines()[-1].strip()}"
            if now != before:
                tell(now)
            before = now
            time.sleep(every)
    except KeyboardInterrupt:
        write_snapshot(paths, out, title, 0)
